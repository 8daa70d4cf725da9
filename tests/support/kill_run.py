"""Kill a run, resume it, and compare its final state with an uninterrupted run.

    python tests/support/kill_run.py --kills writing training preempted --seed 1
    python tests/support/kill_run.py --task masked_patches

`writing` is a SIGKILL while a checkpoint is written, with half of a file on the disk or
between two changes of its folder; `training` a SIGKILL in a training step; `preempted`
a SIGTERM in one; `evaluating` a SIGTERM in an epoch's evaluation. TensorFlow is
imported once: each run is a fork of this process, which therefore calls no TensorFlow
function itself.
"""

import argparse
import dataclasses
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.insert(0, str(Path(__file__).parents[2]))

import matplotlib

matplotlib.use("agg")

import keras
import matplotlib.pyplot
import numpy as np
import tensorflow as tf
from tiny_recipe import TINY_MODEL, TINY_RECIPE
from without_pictures import leave_out_pictures

from training.engine import checkpoint
from training.errors import Preempted
from training.evaluation import evaluate  # noqa: F401
from training.fitting import fit
from training.recipe import (
    AugmentationConfig,
    DataConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    SelfSupervisionConfig,
)

# strategy: workers, replicas in each
WORLDS = {"one_device": (1, 1), "mirrored": (1, 2), "multi_worker": (2, 1)}
KINDS = ("writing", "training", "preempted", "evaluating")
# Seconds in which the other workers must end after the first one has.
PATIENCE = 60


def make_recipe(strategy: str, task: str = "none") -> Recipe:
    """A tiny recipe with all that has a state or draws random numbers.

    RandAugment is off: its operations depend on (seed, epoch, index) alone, as the
    shifts and mixup here do, and take longer to trace than all the rest.
    """
    recipe = dataclasses.replace(
        TINY_RECIPE,
        seed=3,
        strategy=strategy,
        epochs=3,
        batch_size=128,
        label_smoothing=0.1,
        model=dataclasses.replace(TINY_MODEL, dropout=0.2, stochastic_depth=0.2),
        data=DataConfig("digits", validation=0.1),
        augmentation=AugmentationConfig(shift=1, mixup=0.2),
        optimizer=OptimizerConfig(
            learning_rate=3e-3,
            weight_decay=0.01,
            clip_norm=1.0,
            ema=0.9,
            head_first=0.5,
        ),
        schedule=ScheduleConfig("cosine", warmup_epochs=0.5),
    )
    if task == "none":
        return recipe
    return dataclasses.replace(
        recipe,
        label_smoothing=0.0,
        augmentation=dataclasses.replace(recipe.augmentation, mixup=0.0),
        optimizer=dataclasses.replace(recipe.optimizer, head_first=0.0),
        self_supervision=SelfSupervisionConfig(
            task, decoder_width=12, decoder_depth=1, decoder_heads=3
        ),
    )


@dataclass(frozen=True)
class Kill:
    """A signal to one worker at one moment.

    Args:
        kind: One of `KINDS`.
        worker: The one that is killed.
        change: Before which change of the checkpoints' folder, counted from 1.
        step: In which step from its start on, where `change` is 0; of `evaluating`, in
            which evaluation.
        seconds: After the start of the step.
    """

    kind: str
    worker: int = 0
    change: int = 0
    step: int = 0
    seconds: float = 0.0

    @property
    def signal(self) -> int:
        """SIGTERM for a preemption, else SIGKILL."""
        preempted = self.kind in ("preempted", "evaluating")
        return signal.SIGTERM if preempted else signal.SIGKILL


def draw_kill(rng: random.Random, kind: str, workers: int) -> Kill:
    """Draw the moment of a kill, and the worker; only worker 0, the chief, writes."""
    if kind == "writing":
        # The first change is the one with half of a file written.
        return Kill(kind, change=rng.choice([1, rng.randint(2, 20)]))
    if kind == "evaluating":
        return Kill(kind, rng.randrange(workers), step=2)
    worker, step = rng.randrange(workers), rng.randint(1, 12)
    return Kill(kind, worker, step=step, seconds=rng.uniform(0, 0.1))


def ended_as_planned(kill: Kill, codes: list[int]) -> bool:
    """Whether these are the exit codes that the kill must lead to."""
    if kill.signal == signal.SIGTERM:
        return all(code == Preempted.exit_status for code in codes)
    return codes[kill.worker] == -signal.SIGKILL


# In the forked workers.


def start(
    strategy: str, task: str, folder: Path, kill: Kill | None, ports: list[int]
) -> list[int]:
    """Fork the workers, and return their process ids."""
    pids = []
    for worker in range(WORLDS[strategy][0]):
        pid = os.fork()
        if pid == 0:
            _work(strategy, task, folder, kill, ports, worker)
        pids.append(pid)
    return pids


def _work(strategy, task, folder, kill, ports, worker) -> None:
    """Train as one worker; never returns."""
    status = 1
    try:
        log = os.open(f"{folder}-{worker}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if kill is not None and kill.worker == worker:
            die_as_planned(kill)
        _set_world(strategy, ports, worker)
        leave_out_pictures()
        recipe = make_recipe(strategy, task)
        fit.fit(recipe, folder, resume=True, checkpoint_every=4)
        status = 0
    except BaseException as error:
        traceback.print_exc()
        status = getattr(error, "exit_status", 1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _set_world(strategy, ports, worker) -> None:
    workers, replicas = WORLDS[strategy]
    if workers > 1:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        task = {"type": "worker", "index": worker}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    if replicas > 1:
        device = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * replicas
        tf.config.set_logical_device_configuration(device, logical)


def die_as_planned(kill: Kill) -> None:
    """Prepare this process to kill itself."""
    if kill.change:
        die_while_writing(kill.change)
    else:
        die_while_training(kill)


def die_while_training(kill: Kill) -> None:
    """Start a timer when the step begins, so that the work goes on until it rings."""
    left = kill.step
    of_training = kill.kind != "evaluating"
    event = "on_train_batch_begin" if of_training else "on_test_batch_begin"
    begin = getattr(keras.callbacks.CallbackList, event)

    def counted(self, batch, logs=None):
        nonlocal left
        left -= 1
        if left == 0:
            timer = threading.Timer(kill.seconds, os.kill, [os.getpid(), kill.signal])
            timer.daemon = True
            timer.start()
        begin(self, batch, logs)

    setattr(keras.callbacks.CallbackList, event, counted)


def die_while_writing(change: int) -> None:
    """Replace the functions that change the disk by ones that count and kill."""
    left = change

    def reached(path) -> bool:
        nonlocal left
        left -= "checkpoints" in os.fspath(path)
        return left == 0 and "checkpoints" in os.fspath(path)

    def counted(function):
        def call(path, *args, **kwargs):
            if reached(path):
                os.kill(os.getpid(), signal.SIGKILL)
            return function(path, *args, **kwargs)

        return call

    def savez(path, **arrays):
        original_savez(path, **arrays)
        if reached(path):
            os.truncate(path, os.path.getsize(path) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    original_savez, np.savez = np.savez, savez
    for name in ("replace", "remove", "open"):
        setattr(os, name, counted(getattr(os, name)))


# In the parent process.


def attempt(strategy: str, task: str, folder: Path, kill: Kill | None) -> list[int]:
    """Run all workers once, with at most one kill.

    Returns:
        Their exit codes, negative for a signal.
    """
    pids = start(strategy, task, folder, kill, free_ports(WORLDS[strategy][0]))
    codes: dict[int, int] = {}
    while not codes:
        _wait(pids, codes, 1)
    if not _wait(pids, codes, PATIENCE):
        left = [pid for pid in pids if pid not in codes]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        raise SystemExit(f"{len(left)} workers did not end; see {folder}-*.log")
    return [codes[pid] for pid in pids]


def _wait(pids: list[int], codes: dict[int, int], seconds: float) -> bool:
    """Collect exit codes until all are there or the time is over."""
    end = time.monotonic() + seconds
    while len(codes) < len(pids) and time.monotonic() < end:
        for pid in set(pids) - set(codes):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return len(codes) == len(pids)


def free_ports(count: int) -> list[int]:
    """Free TCP ports of 127.0.0.1."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def final_state(folder: Path) -> dict[str, np.ndarray]:
    """The arrays and history of the last checkpoint, and the saved weights."""
    last = checkpoint.latest(folder / "checkpoints")
    state = dict(last.arrays)
    state["step"] = np.array(last.step)
    for number, row in enumerate(last.history):
        timeless = [value for name, value in row.items() if "second" not in name]
        state[f"row {number} of the history"] = np.array(timeless, "float64")
    for name in ("best", "last"):
        state[f"{name}.keras"] = np.frombuffer(_weights_file(folder, name), "uint8")
    return state


def _weights_file(folder: Path, name: str) -> bytes:
    with zipfile.ZipFile(folder / f"{name}.keras") as archive:
        return archive.read("model.weights.h5")


def differences(
    ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]
) -> list[str]:
    """Names of the arrays whose bits differ.

    The history may differ in its last digits: each of several replicas adds up an
    epoch's losses, and a checkpoint holds only their sum.
    """
    return [
        name
        for name in {**ours, **theirs}
        if name not in ours
        or name not in theirs
        or not (
            np.allclose(ours[name], theirs[name], rtol=1e-5, atol=0)
            if name.startswith("row")
            else ours[name].tobytes() == theirs[name].tobytes()
        )
    ]


def run(
    strategy: str, task: str, kinds: Sequence[str], seed: int, folder: Path
) -> None:
    """Kill and resume one run, once for each kind, and compare it with the reference.

    Raises:
        SystemExit: An attempt did not end by its kill, or the resumed run ended in
            another state than the uninterrupted one.
    """
    rng = random.Random(seed)
    if any(attempt(strategy, task, folder / "reference", None)):
        _fail("the uninterrupted run failed", folder)
    killed = folder / "killed"
    for kind in kinds:
        kill = draw_kill(rng, kind, WORLDS[strategy][0])
        codes = attempt(strategy, task, killed, kill)
        print(kill, codes, _progress(killed), flush=True)
        if not ended_as_planned(kill, codes):
            _fail(f"exit codes {codes}", folder)
    if any(attempt(strategy, task, killed, None)):
        _fail("the resumed run failed", folder)
    reference = final_state(folder / "reference")
    different = differences(final_state(killed), reference)
    if different:
        _fail(f"{killed}: not the same bits: {', '.join(different)}", folder)


def _progress(folder: Path) -> str:
    return " ".join(sorted(path.name for path in folder.glob("checkpoints/*")))


def _fail(reason: str, folder: Path) -> NoReturn:
    logs = "\n".join(log.read_text()[-2000:] for log in folder.glob("*.log"))
    raise SystemExit(f"{logs}\n{reason}")


def main() -> None:
    """Print one line for each kill."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", choices=WORLDS, default="one_device")
    parser.add_argument("--kills", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--task", default="none", help="of self-supervision")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    run(options.strategy, options.task, options.kills, options.seed, folder)


if __name__ == "__main__":
    main()
