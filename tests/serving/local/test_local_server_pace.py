"""Short runs are answered in the event loop; most runs need no deadline."""

import asyncio
import ctypes
import gzip
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
import tensorflow as tf
from test_local_server import request
from test_local_server_lifecycle import run, wait_for

from serving.local import LocalServer, pace
from serving.local.pace import MayTakeLong, Pace, is_steady
from serving.local.session import LoadedModel

IN_LOOP = "local-server"
ENOUGH = 16
ROWS = tf.TensorSpec([None], tf.float32, "x")


SHORT, LONG = (8, 8, 2000), (8, 8, 2001)


def noted(*notes, steady=True):
    """A pace after runs: rows fed, numbers out, microseconds; None out: failed."""
    runs = Pace(steady)
    with pytest.MonkeyPatch.context() as patch:
        for inputs, outputs, took in notes:
            patch.setattr(pace.time, "perf_counter_ns", lambda: 0)
            begin = runs.begin()
            patch.setattr(pace.time, "perf_counter_ns", lambda took=took: 1000 * took)
            runs.end(begin)
            if outputs is not None:
                runs.note([(inputs,)], outputs, took)
    return runs


@pytest.mark.parametrize(
    ("runs", "inputs", "short"),
    [
        (noted(*[SHORT] * ENOUGH), 8, True),
        (noted(*[SHORT] * ENOUGH), 9, False),
        (noted(*[SHORT] * (ENOUGH - 1)), 8, False),
        (noted(*[SHORT] * ENOUGH, LONG), 8, False),
        (noted(*[SHORT] * ENOUGH, (8, None, 2001)), 8, False),
        (noted(*[SHORT] * ENOUGH, (8, None, 100)), 8, True),
        (noted(*[SHORT] * ENOUGH, (8, 4097, 100)), 8, False),
        (noted(LONG, *[SHORT] * ENOUGH), 8, True),
        # What was short once is not known to be short after a long run.
        (noted((64, 8, 100), LONG, *[SHORT] * ENOUGH), 64, False),
        (noted(*[SHORT] * ENOUGH, steady=False), 8, False),
    ],
)
def test_short_is_what_was_short_often_enough_at_that_size(runs, inputs, short):
    assert is_short(runs, [(inputs,)]) is short


def is_short(runs, shapes):
    async def in_loop():
        return runs.runs_here(shapes)

    assert not runs.runs_here(shapes)
    try:
        return asyncio.run(in_loop())
    except MayTakeLong:
        return False


@pytest.mark.parametrize(
    ("known", "shapes", "short"),
    [
        ([(8, 2), (8,), ()], [(8, 2), (8,), ()], True),
        ([(8, 2), (8,), ()], [(4, 2), (4,), ()], True),
        ([(8, 2)], [(8, 1)], False),
        ([(8,)], [(8, 1)], False),
        ([(8,)], [()], False),
        ([(8,)], [(8,), (8,)], False),
        # Rows and columns may become a table.
        ([(8, 1), (8, 1)], [(8, 1), (1, 8)], False),
        ([(8, 1), (1, 8)], [(8, 1), (1, 8)], False),
    ],
)
def test_short_is_what_has_the_shapes_of_short_runs(known, shapes, short):
    runs = Pace(steady=True)
    for _ in range(ENOUGH):
        runs.end(runs.begin())
        runs.note(known, 8, 100)
    assert is_short(runs, shapes) is short
    runs.note([(8, 3)], 8, 100)
    assert not is_short(runs, [(8, 3)])


def save(folder, function, *signature):
    """Saves a function as version 1; returns the folder of versions."""
    module = tf.Module()
    module.serve = tf.function(function, input_signature=signature)
    tf.saved_model.save(module, str(folder / "1"), signatures=module.serve)
    return folder


def double(x):
    return {"y": 2 * x}


def loop(x):
    turns = tf.cast(tf.reduce_sum(x), tf.int32)
    return {"y": tf.while_loop(lambda i, y: i < turns, next_turn, [0, x])[1]}


def next_turn(i, y):
    return i + 1, y / 2


def batched(x):
    batch = tf.nondifferentiable_batch_function(1, 4, 1000)
    return {"y": batch(lambda x: 2 * x)(x)}


def echo(s):
    return {"s": tf.identity(s)}


def branch(x):
    return {"y": tf.cond(x[0] > 1, lambda: 2 * x, lambda: x)}


def numbers_up_to(x):
    return {"y": tf.range(x[0])}


KERNEL = tf.Variable(tf.ones([1, 3]))


def dense(x):
    return {"y": tf.nn.softmax(tf.nn.relu(x[:, None] @ KERNEL + 1.0))}


@pytest.mark.parametrize(
    ("function", "steady"),
    [
        (double, True),
        (dense, True),
        (lambda x: tf.function(double)(x), True),
        (loop, False),
        (batched, False),
        (branch, False),
        (numbers_up_to, False),
        # In a function that another one calls.
        (lambda x: tf.function(loop)(x), False),
    ],
)
def test_steady_is_what_depends_on_sizes_alone(function, steady):
    concrete = tf.function(function).get_concrete_function(ROWS)
    names = [tensor.name for tensor in concrete.outputs]
    library = concrete.graph.as_graph_def().library
    functions = {f.signature.name: f for f in library.function}
    assert is_steady(concrete.graph, functions, names) is steady


@pytest.fixture
def ran_in(monkeypatch):
    """Names of the threads in which models ran, one for each run."""
    names = []
    run = LoadedModel._run

    def note(*arguments):
        names.append(threading.current_thread().name)
        return run(*arguments)

    monkeypatch.setattr(LoadedModel, "_run", note)
    return names


def ask(server, value):
    body = json.dumps({"instances": value})
    return request(server, "POST", "/v1/models/m:predict", body)


@pytest.fixture
def monitoring(tmp_path):
    """The file that gives a server a page of metrics."""
    path = tmp_path / "monitoring.config"
    path.write_text("prometheus_config { enable: true }")
    return str(path)


def counted(server, code):
    """Requests for the model `m`, by the page of metrics."""
    page = request(server, "GET", "/monitoring/prometheus/metrics")[1]
    pattern = rf'request_count\{{model_name="m",status="{code}"\}} (\d+)'
    return sum(map(int, re.findall(pattern, page)))


def test_a_short_model_runs_in_the_loop(ran_in, monkeypatch, monitoring, tmp_path):
    # The machine may be busy.
    monkeypatch.setattr(pace, "_SHORT", 10_000_000)
    with LocalServer(
        {"m": save(tmp_path / "m", double, ROWS)},
        rest_port=0,
        grpc_port=0,
        monitoring_config_file=monitoring,
    ) as server:
        for number in range(ENOUGH + 3):
            expected = {"predictions": [0.0, 2.0 * number]}
            assert ask(server, [0, number]) == (200, expected)
        assert IN_LOOP not in ran_in[:ENOUGH]
        assert ran_in[ENOUGH:] == [IN_LOOP] * 3
        assert ask(server, [0, "x"])[0] == 400
        # More numbers than ever before, and a body that takes time to read.
        assert ask(server, [1, 2, 3])[0] == 200
        assert IN_LOOP not in ran_in[-1]
        assert ask(server, [1, 2, 3])[0] == 200
        assert IN_LOOP in ran_in[-1]
        padded = json.dumps({"instances": [1]}) + " " * 5000
        assert request(server, "POST", "/v1/models/m:predict", padded)[0] == 200
        assert IN_LOOP not in ran_in[-1]
        packed = gzip.compress(json.dumps({"instances": [1]}).encode())
        headers = {"Content-Encoding": "gzip"}
        path = "/v1/models/m:predict"
        assert request(server, "POST", path, packed, headers)[0] == 200
        assert IN_LOOP not in ran_in[-1]
        monkeypatch.setattr(pace, "_SHORT", -1)
        for where in (True, False):
            assert ask(server, [1])[0] == 200
            assert (ran_in[-1] == IN_LOOP) is where
        # Asked in the loop and in vain is not asked twice.
        assert counted(server, "OK") == len(ran_in)


@pytest.mark.parametrize(
    ("function", "signature", "value"),
    [
        (loop, ROWS, [1.0]),
        (batched, ROWS, [1.0]),
        (branch, ROWS, [1.0]),
        (echo, tf.TensorSpec([None], tf.string, "s"), ["x"]),
    ],
    ids=["loop", "batch", "branch", "string"],
)
def test_what_may_wait_never_runs_in_the_loop(
    ran_in, monkeypatch, tmp_path, function, signature, value
):
    monkeypatch.setattr(pace, "_SHORT", 10_000_000)
    models = {"m": save(tmp_path / "m", function, signature)}
    with LocalServer(models, rest_port=0, grpc_port=0) as server:
        for _ in range(ENOUGH + 3):
            assert ask(server, value)[0] == 200
    assert IN_LOOP not in ran_in
    assert len(ran_in) == ENOUGH + 3


def below_100(x):
    check = tf.debugging.assert_less(x, 100.0, message="x must be below 100")
    with tf.control_dependencies([check]):
        return {"y": tf.identity(x)}


def each_below_100(x):
    return {"y": tf.map_fn(one_below_100, x)}


def one_below_100(x):
    return below_100(x)["y"]


def kept_rendezvous():
    """How many rendezvous of failed runs TensorFlow keeps for ever."""
    library = Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    try:
        vector = ctypes.c_void_p.in_dll(
            ctypes.CDLL(str(library)),
            "_ZN10tensorflow15LocalRendezvous16aborted_rendezs_E",
        )
    except (OSError, ValueError):
        pytest.skip("this TensorFlow does not show its list of rendezvous")
    begin, end = (ctypes.c_size_t * 2).from_address(vector.value)
    return (end - begin) // ctypes.sizeof(ctypes.c_void_p)


@pytest.mark.parametrize("function", [below_100, each_below_100])
def test_refused_requests_leave_nothing_in_tensorflow(tmp_path, function):
    models = {"m": save(tmp_path / "m", function, ROWS)}
    with LocalServer(models, rest_port=0, grpc_port=0) as server:
        for _ in range(3):
            assert ask(server, [1.0])[0] == 200
        kept = kept_rendezvous()
        for _ in range(50):
            assert ask(server, [1000.0])[0] == 400
        # A machine that was busy for a moment may have made one run look long.
        assert kept_rendezvous() - kept < 10


def test_a_deadline_is_given_unless_runs_end_long_before(monkeypatch):
    now = [0]
    monkeypatch.setattr(pace.time, "perf_counter_ns", lambda: now[0])

    def run(runs, milliseconds):
        begin = runs.begin()
        now[0] += milliseconds * 10**6
        runs.end(begin)

    runs = Pace(steady=False)
    assert not runs.ends_before(1e6)  # nothing is known
    run(runs, 10)
    assert runs.ends_before(0.11)
    assert not runs.ends_before(0.09)
    run(runs, 3000)
    assert not runs.ends_before(29)
    for _ in range(300):
        run(runs, 10)
    assert runs.ends_before(29)
    # One that is under way for long tells it before it ends.
    runs.begin()
    now[0] += 3 * 10**9
    assert not runs.ends_before(29)


def spin(x):
    """Takes x[0] seconds."""
    end = tf.timestamp() + tf.cast(x[0], tf.float64)
    turns = tf.while_loop(lambda i: tf.timestamp() < end, lambda i: [i + 1], [0.0])
    return {"y": x + 0 * turns[0]}


def test_runs_without_a_deadline_leave_threads_to_others(tmp_path):
    process = run(
        "--model_name=m",
        f"--model_base_path={save(tmp_path / 'm', spin, ROWS)}",
        "--rest_api_num_threads=4",
        "--rest_api_timeout_in_ms=2000",
        # Each run that does not end keeps one of these busy.
        "--tensorflow_inter_op_parallelism=8",
    )
    rest = process.stdout.readline().partition("REST ")[2].partition("/v1")[0]
    server = SimpleNamespace(rest_url=rest)
    try:
        for _ in range(5):
            assert ask(server, [0.0])[0] == 200
        with ThreadPoolExecutor(6) as threads:
            late = [threads.submit(ask, server, [600.0]) for _ in range(6)]
            assert [future.result()[0] for future in late] == [504] * 6
        # Two go on, the others end at their deadline.
        wait_for(lambda: ask(server, [0.0])[0] == 200)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_requests_that_no_thread_took_in_time_are_counted(
    monitoring, monkeypatch, tmp_path
):
    """One request holds the only thread, five wait for it."""
    go, run_model = threading.Event(), LoadedModel.run

    def held(*arguments):
        if threading.current_thread().name == IN_LOOP:
            raise MayTakeLong
        assert go.wait(60)
        return run_model(*arguments)

    with (
        LocalServer(
            {"m": save(tmp_path / "m", double, ROWS)},
            rest_port=0,
            grpc_port=0,
            monitoring_config_file=monitoring,
            rest_api_num_threads=1,
            rest_api_timeout_in_ms=100,
            rest_api_enable_cors_support=True,
        ) as server,
        httpx2.Client(timeout=30) as client,
        ThreadPoolExecutor(6) as threads,
    ):
        monkeypatch.setattr(LoadedModel, "run", held)
        body = {"json": {"instances": [1.0]}}
        url = f"{server.rest_url}/v1/models/m:predict"
        late = [threads.submit(client.post, url, **body) for _ in range(6)]
        answers = [future.result() for future in late]
        go.set()
        assert [answer.status_code for answer in answers] == [504] * 6, answers[0].text
        for answer in answers:
            assert answer.headers["Access-Control-Allow-Origin"] == "*"
        wait_for(lambda: counted(server, "DEADLINE_EXCEEDED") == 6)
