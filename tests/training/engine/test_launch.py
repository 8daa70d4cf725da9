"""`launch`: local workers start together, end together, and may restart."""

import contextlib
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from training.engine import launch as launching
from training.engine.launch import environments, launch
from training.errors import RecipeError

ROOT = pathlib.Path(__file__).parents[3]

# A worker without TensorFlow; the option `--do<index>` says what it does.
STUB = """
import json, os, signal, sys, time
worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
act = sys.argv[sys.argv.index(f"--do{worker}") + 1]
print(worker, *sys.argv[1:], flush=True)
with open(os.environ["STUB_LOG"], "a") as log:
    log.write(f"{worker} {os.getpid()} {' '.join(sys.argv[1:])}\\n")
if act == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    time.sleep(60)
elif act == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
elif act == "late":
    time.sleep(0.5)
    sys.exit(76)
elif act == "killed-later":
    time.sleep(1)
    if "--resume" not in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
elif act == "killed":
    while len(open(os.environ["STUB_LOG"]).readlines()) < 2:
        time.sleep(0.01)  # for the other worker
    if "--resume" not in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
else:
    while act != "0" and len(open(os.environ["STUB_LOG"]).readlines()) % 2:
        time.sleep(0.01)  # for the other worker
    sys.exit(int(act))
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """A function that returns the stubs' lines: worker, process id, arguments."""
    script, log = tmp_path / "stub.py", tmp_path / "log"
    script.write_text(STUB)
    log.touch()
    monkeypatch.setenv("STUB_LOG", str(log))
    monkeypatch.setattr(launching, "COMMAND", (sys.executable, str(script)))
    monkeypatch.setattr(launching, "LOST_TIMEOUT", 2.0)
    monkeypatch.setattr(launching, "KILL_TIMEOUT", 0.5)
    return lambda: [line.split(maxsplit=2) for line in log.read_text().splitlines()]


@pytest.fixture(autouse=True)
def usual_signals():
    """Default handlers: children inherit that SIGINT or SIGHUP is ignored."""
    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, how) for number, how in usual.items()}
    yield
    for number, how in before.items():
        signal.signal(number, how)


def arguments(*acts):
    return ["fit", *(word for i, act in enumerate(acts) for word in (f"--do{i}", act))]


def alive(lines):
    return [pid for _, pid, _ in lines if os.path.exists(f"/proc/{pid}")]


def test_all_workers_get_the_same_arguments_and_their_own_index(stub):
    assert launch([*arguments("0", "0", "0"), "--recipe", "x"], 3) == 0
    lines = stub()
    assert sorted(worker for worker, *_ in lines) == ["0", "1", "2"]
    said = {said for *_, said in lines}
    assert len(said) == 1
    assert said.pop().endswith("--recipe x --strategy multi_worker")


def test_worker_0_writes_to_the_terminal_and_the_others_to_log_files(stub, capfd):
    launch(arguments("0", "0"), 2)
    out = capfd.readouterr().out
    assert "\n0 fit" in out
    assert "\n1 fit" not in out
    path = re.search(r"worker 1 writes to (\S+)", out)[1]
    assert pathlib.Path(path).read_text().startswith("1 fit")


@pytest.mark.parametrize(
    ("acts", "status"),
    [
        (("0", "3"), 3),
        (("2", "wait"), 2),
        (("wait", "1"), 1),
        (("77", "76"), 76),  # a worker that only lost another one is not the cause
        (("77", "late"), 76),
        (("wait", "killed"), 128 + signal.SIGKILL),
        (("stubborn", "1"), 1),
    ],
)
def test_one_failure_ends_all_and_gives_the_exit_status(
    stub, acts, status, monkeypatch
):
    if "late" in acts:  # however long it takes to start
        monkeypatch.setattr(launching, "LOST_TIMEOUT", 60.0)
    assert launch(arguments(*acts), 2) == status
    assert len(stub()) == 2
    assert not alive(stub())


SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@contextlib.contextmanager
def sending(number, stub):
    """A block in which this process gets a signal once both stubs run."""

    def send():
        while len(stub()) < 2:
            time.sleep(0.05)
        time.sleep(0.3)  # until the stubs have their handlers
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive(), stub()


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_are_passed_on_and_nothing_starts_again(stub, number):
    before = signal.getsignal(number)
    with sending(number, stub):
        status = launch(arguments("wait", "wait"), 2, restarts=3)
    expected = {signal.SIGTERM: 75, signal.SIGHUP: 129, signal.SIGINT: 1}
    assert status in (expected[number], 128 + number)
    assert len(stub()) == 2
    assert not alive(stub())
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_the_workers_start_reaches_all(stub, monkeypatch, number):
    start = launching._start

    def start_and_send(arguments, variables, log):
        process = start(arguments, variables, log)
        if log is None:
            os.kill(os.getpid(), number)
        return process

    monkeypatch.setattr(launching, "_start", start_and_send)
    status = launch(arguments("wait", "wait"), 2, restarts=3)
    # The stubs may not even have begun to run.
    assert status in (75, 1, 128 + number)
    assert len(stub()) <= 2
    assert not alive(stub())


@pytest.mark.parametrize("number", SIGNALS)
def test_no_worker_outlives_a_second_signal(stub, monkeypatch, number):
    monkeypatch.setattr(launching, "KILL_TIMEOUT", 2.0)
    end = launching._stop

    def end_and_send(processes):
        timer = threading.Timer(0.5, os.kill, (os.getpid(), number))
        timer.start()
        end(processes)
        timer.join()

    monkeypatch.setattr(launching, "_stop", end_and_send)
    assert launch(arguments("stubborn", "1"), 2) == 1
    assert not alive(stub())


@pytest.mark.parametrize("number", SIGNALS)
def test_an_ignored_signal_ends_no_worker(stub, number):
    """As SIGHUP under nohup; a worker that is lost afterwards is restarted."""
    signal.signal(number, signal.SIG_IGN)
    with sending(number, stub):
        assert launch(arguments("0", "killed-later"), 2, restarts=1) == 0
    assert len(stub()) == 4
    assert signal.getsignal(number) == signal.SIG_IGN


def test_a_lost_worker_makes_all_restart_and_resume(stub):
    assert launch([*arguments("0", "killed"), "--overwrite"], 2, restarts=1) == 0
    lines = stub()
    assert [worker for worker, *_ in sorted(lines)] == ["0", "0", "1", "1"]
    first, again = lines[0][2], lines[-1][2]
    assert "--overwrite" in first
    assert "--resume" not in first
    assert "--overwrite" not in again
    assert again.count("--resume") == 1


@pytest.mark.parametrize(
    ("acts", "starts"), [(("0", "77"), 3), (("0", "1"), 1), (("75", "75"), 1)]
)
def test_only_lost_workers_are_restarted_and_at_most_n_times(stub, acts, starts):
    assert launch(arguments(*acts), 2, restarts=2) == int(acts[1])
    assert len(stub()) == 2 * starts


def test_workers_have_different_ports_and_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(9)))
    variables = environments(4)
    configs = [json.loads(v["TF_CONFIG"]) for v in variables]
    assert len({json.dumps(config["cluster"]) for config in configs}) == 1
    addresses = configs[0]["cluster"]["worker"]
    assert len(set(addresses)) == 4
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", address) for address in addresses)
    assert [config["task"]["index"] for config in configs] == [0, 1, 2, 3]
    assert {v["TF_NUM_INTRAOP_THREADS"] for v in variables} == {"2"}


def test_cores_are_shared_where_affinity_is_unknown(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert {v["TF_NUM_INTRAOP_THREADS"] for v in environments(3)} == {"2"}


def test_a_run_is_resumed_with_the_strategy_of_its_recipe(stub):
    acts = arguments("0", "killed")[1:]
    lost = 128 + signal.SIGKILL
    assert launch(["resume", "runs/a", *acts], 2, restarts=1) == lost
    assert len(stub()) == 4
    assert {said for *_, said in stub()} == {" ".join(["resume", "runs/a", *acts])}


def test_sigkill_of_the_launcher_ends_its_workers(tmp_path):
    process = start(*RUN, str(tmp_path / "run"), "--epochs=100000")
    wait_for(lambda: len(children(process)) == 2, process)
    process.kill()
    output, _ = process.communicate(timeout=120)  # until worker 0 has ended
    message = "the launcher has ended, so this worker ends"
    assert message in output
    end = time.monotonic() + 120
    while message not in other_log(output):
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 2), "`launch` must be followed by -- and the command"),
        ((["evaluate", "x"], 2), "Received: 'evaluate x'"),
        ((["fit"], 0), "`workers` must be at least 1. Received: 0"),
        ((["fit"], 2, -1), "`restarts` must be at least 0. Received: -1"),
    ],
)
def test_wrong_arguments_are_refused_before_any_worker_starts(stub, arguments, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        launch(*arguments)
    assert not stub()


# With TensorFlow: whole runs of two workers.

RUN = [
    *("fit", "--recipe=digits", "--batch_size=256", "--data.validation=0.1"),
    *("--model.depth=1", "--model.width=12", "--model.heads=3", "--model.mlp_dim=16"),
    *("--model.patch_size=4", "--schedule.warmup_epochs=1", "--optimizer.ema=0.9"),
    "--output_dir",
]

# Logs the names of all files that a worker changes in the run's folder, and how many
# workers there are some seconds after it began with the last one, worker 0's report.
AUDIT = """
import json, os, sys, time
worker = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": -1}}'))["task"]
log = os.open(f"{os.environ['AUDIT_LOG']}{worker['index']}", os.O_CREAT | os.O_WRONLY)
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")

def note(event, details):
    writes = event == "open" and isinstance(details[2], int) and details[2] & 3
    if (writes or event in CHANGES) and os.environ["AUDIT_FOLDER"] in str(details[0]):
        os.write(log, f"{event} {details[0]}\\n".encode())
    if event == "os.rename" and str(details[1]).endswith("report.json"):
        time.sleep(8)
        parent = os.getppid()
        children = open(f"/proc/{parent}/task/{parent}/children").read().split()
        os.write(log, f"workers: {len(children)}\\n".encode())

sys.addaudithook(note)
"""


def start(*options, workers=2, restarts=0, **variables):
    counts = ["--workers", str(workers), "--restarts", str(restarts)]
    return start_training("launch", *counts, "--", *options, **variables)


def start_training(*words, **variables):
    return subprocess.Popen(
        [sys.executable, "-m", "training", *words],
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def other_log(output):
    return pathlib.Path(re.search(r"worker 1 writes to (\S+)", output)[1]).read_text()


def children(process):
    """The workers' process ids, by index."""
    listed = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in listed.read_text().split()]


def wait_for(reached, process, seconds=300):
    end = time.monotonic() + seconds
    while not reached():
        assert process.poll() is None, process.communicate(timeout=60)[0]
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
def test_two_workers_train_and_only_the_chief_writes(tmp_path):
    """The other waits until it has, as TensorFlow would report it as crashed."""
    (tmp_path / "sitecustomize.py").write_text(AUDIT)
    folder, log = tmp_path / "run", tmp_path / "changes"
    process = start(
        *RUN,
        str(folder),
        "--epochs=2",
        PYTHONPATH=str(tmp_path),
        AUDIT_FOLDER=str(folder),
        AUDIT_LOG=str(log),
    )
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert re.search(r"^ +2/2 ", output, re.MULTILINE)
    assert "2/2" not in other_log(output)
    report = json.loads((folder / "report.json").read_text())
    assert report["recipe"]["strategy"] == "multi_worker"
    written = pathlib.Path(f"{log}0").read_text()
    assert "report.json" in written
    assert "workers: 2\n" in written
    assert pathlib.Path(f"{log}1").read_text() == ""


def checkpoints(folder):
    return {path.name for path in (folder / "checkpoints").glob("*.json")}


@pytest.mark.slow
def test_a_killed_worker_makes_all_resume_and_sigterm_to_one_stops_all(tmp_path):
    folder = tmp_path / "run"
    process = start(*RUN, str(folder), "--epochs=5000", restarts=1)
    wait_for(lambda: (folder / "history.csv").exists(), process)
    first = children(process)
    os.kill(first[1], signal.SIGKILL)
    wait_for(lambda: len(set(children(process)) - set(first)) == 2, process)
    before = checkpoints(folder)
    wait_for(lambda: checkpoints(folder) - before, process)
    os.kill(children(process)[1], signal.SIGTERM)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 75, output
    assert "keras-vit fit: another worker has ended" in output
    assert "worker 1 ended with exit status 137" in output
    assert "restarting all workers with --resume" in output
    message = r"keras-vit fit: stopped by SIGTERM after step (\d+)"
    steps = [re.search(message, text)[1] for text in (output, other_log(output))]
    assert steps[0] == steps[1]
    assert f"{int(steps[0]):08d}.json" in checkpoints(folder)
    rows = (folder / "history.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == [
        str(1 + number) for number in range(len(rows))
    ]


@pytest.mark.slow
def test_sigterm_before_the_first_step_stops_all_workers(tmp_path):
    """TensorFlow's runtime of several workers has a handler that would ignore it."""
    process = start(*RUN, str(tmp_path / "run"), "--epochs=100000")
    lines = iter(process.stdout.readline, "")
    output = "".join(itertools.takewhile(lambda line: "digits: " not in line, lines))
    process.terminate()
    rest, _ = process.communicate(timeout=300)
    assert process.returncode == 75, output + rest
    for text in (rest, other_log(output)):
        assert "keras-vit fit: stopped by SIGTERM" in text


@pytest.mark.slow
def test_a_worker_of_another_cluster_is_refused(tmp_path):
    """Both workers report it, and neither has touched the folder."""
    variables = environments(2)
    config = json.loads(variables[1]["TF_CONFIG"])
    config["cluster"]["worker"].append("127.0.0.1:9")
    variables[1]["TF_CONFIG"] = json.dumps(config)
    folder = tmp_path / "run"
    words = [*RUN, str(folder), "--batch_size=252"]  # two and three workers share it
    processes = [start_training(*words, **own) for own in variables]
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 2, output
        # TensorFlow may log lines of its own after it.
        assert "keras-vit fit: TF_CONFIG must name the same workers" in output, output
    assert not folder.exists()
