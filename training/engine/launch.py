"""`launch`: start and stop all workers of a run on this machine together."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from ..cores import usable_cores
from ..errors import Preempted, RecipeError, WorkerLost
from .gpus import divided_gpus

Process: TypeAlias = subprocess.Popen[bytes]

PACKAGE = __name__.removesuffix(".engine.launch")
MODULE = PACKAGE if PACKAGE == "training" else "keras_vit"
COMMAND = (sys.executable, "-m", MODULE)
# Seconds in which the other workers must end by themselves once one has failed: they
# notice a lost one after 12 s (TensorFlow's heartbeat), but may be writing a checkpoint
# after SIGTERM.
LOST_TIMEOUT = 30.0
CHECKPOINT_TIMEOUT = 300.0
KILL_TIMEOUT = 10.0  # between SIGTERM and SIGKILL
LAUNCHED = "KERAS_VIT_LAUNCHED"  # variable of workers, for `end_with_launcher`


def launch(arguments: Sequence[str], workers: int, restarts: int = 0) -> int:
    """Run the same command once for each worker.

    Worker 0 writes to the terminal, each of the others to a file whose path is printed.
    The processor's cores and the GPUs are divided among them. SIGTERM, SIGINT and
    SIGHUP are forwarded to all, except those that this process was started to ignore,
    as SIGHUP by `nohup`: the workers inherit that.

    Args:
        arguments: `fit` or `resume`, and its arguments.
        workers: Number of workers.
        restarts: How often to restart all of them, with `--resume`, after one was
            killed.

    Returns:
        0, or the exit status of the worker that failed first, 128 + number where it was
        killed by a signal. WorkerLost's only if no other failed.

    Raises:
        RecipeError: `fit` or `resume` is missing, there is less than one worker, or the
            workers do not divide the GPUs evenly.
    """
    _check(arguments, workers, restarts)
    logs = Path(tempfile.mkdtemp(prefix="training-launch-"))
    for worker in range(1, workers):
        print(f"worker {worker} writes to {_log(logs, worker)}", flush=True)
    fresh = arguments[0] == "fit"
    if fresh:
        arguments = [*arguments, "--strategy", "multi_worker"]
    while True:
        status, signaled = _run(arguments, workers, logs)
        if not restarts or signaled or not _was_lost(status):
            return status
        restarts -= 1
        if fresh:
            arguments = [a for a in arguments if a not in ("--overwrite", "--resume")]
            arguments.append("--resume")
        print("restarting all workers with --resume", file=sys.stderr, flush=True)


def end_with_launcher() -> None:
    """In a worker, end this process when its launcher ends, even by SIGKILL."""
    if os.environ.pop(LAUNCHED, None):
        threading.Thread(target=_end_with_standard_input, daemon=True).start()


def _end_with_standard_input() -> None:
    """Wait for the end of the standard input, whose other end the launcher holds."""
    os.read(0, 1)
    print("the launcher has ended, so this worker ends", file=sys.stderr, flush=True)
    os._exit(WorkerLost.exit_status)


def _check(arguments: Sequence[str], workers: int, restarts: int) -> None:
    if not arguments or arguments[0] not in ("fit", "resume"):
        raise RecipeError(
            "`launch` must be followed by -- and the command to run, fit or resume, "
            "such as: launch --workers 2 -- fit --recipe digits. "
            f"Received: {' '.join(arguments)!r}"
        )
    for name, value, least in (("workers", workers, 1), ("restarts", restarts, 0)):
        if value < least:
            raise RecipeError(f"`{name}` must be at least {least}. Received: {value}")
    divided_gpus(workers)


def _was_lost(status: int) -> bool:
    return status > 128 or status == WorkerLost.exit_status


def _log(folder: Path, worker: int) -> Path:
    return folder / f"worker{worker}.log"


def _run(arguments: Sequence[str], workers: int, logs: Path) -> tuple[int, bool]:
    """Run all workers once: the exit status, and whether this process got a signal."""
    processes: list[Process] = []
    with _forwarded_signals(processes) as received:
        try:
            for worker, variables in enumerate(environments(workers)):
                log = _log(logs, worker) if worker else None
                processes.append(_start(arguments, variables, log))
                for number in received:  # while it was starting
                    processes[-1].send_signal(number)
            while not (failed := _failed(processes)) and _running(processes):
                time.sleep(0.1)
            if not failed:
                return 0, bool(received)
            status = _report(processes, failed[0])
            preempted = status == Preempted.exit_status
            _wait(processes, CHECKPOINT_TIMEOUT if preempted else LOST_TIMEOUT)
            if status == WorkerLost.exit_status:
                # The lost worker may end after the one that reports it.
                cause = _failed(processes)[0]
                if cause != failed[0]:
                    status = _report(processes, cause)
            return status, bool(received)
        finally:
            _stop(processes)


def environments(workers: int) -> list[dict[str, str]]:
    """Each worker's environment variables: `TF_CONFIG`, GPUs, and number of threads."""
    gpus = divided_gpus(workers)
    with contextlib.ExitStack() as stack:  # all at once, so that ports are distinct
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(workers)
        ]
        addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    threads = str(max(1, usable_cores() // workers))
    return [
        {
            "TF_CONFIG": json.dumps(
                {
                    "cluster": {"worker": addresses},
                    "task": {"type": "worker", "index": worker},
                }
            ),
            "TF_NUM_INTRAOP_THREADS": threads,
            "TF_NUM_INTEROP_THREADS": threads,
            **gpus[worker],
        }
        for worker in range(workers)
    ]


def _start(
    arguments: Sequence[str], variables: dict[str, str], log: Path | None
) -> Process:
    """Start a worker in its own session: Ctrl-C reaches it through this process."""
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab")) if log else None
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env=os.environ | variables | {LAUNCHED: "1"},
            stdin=subprocess.PIPE,  # which ends with this process
            stdout=output,
            stderr=output and subprocess.STDOUT,
            start_new_session=True,
        )


@contextlib.contextmanager
def _forwarded_signals(processes: list[Process]) -> Iterator[list[int]]:
    """Forward signals to the processes; yield the list of those received."""
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for process in processes:
            process.send_signal(number)  # does nothing where it has ended

    before = {
        name: signal.signal(name, forward)
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        if signal.getsignal(name) != signal.SIG_IGN
    }
    try:
        yield received
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _running(processes: Sequence[Process]) -> bool:
    return any(process.poll() is None for process in processes)


def _failed(processes: Sequence[Process]) -> list[int]:
    """Numbers of the workers that failed; last those that only lost another worker."""
    failed = [worker for worker, process in enumerate(processes) if process.poll()]
    lost = WorkerLost.exit_status
    return sorted(failed, key=lambda worker: processes[worker].poll() == lost)


def _report(processes: Sequence[Process], worker: int) -> int:
    """Print and return the exit status of a worker that has ended."""
    code = processes[worker].wait()
    status = code if code >= 0 else 128 - code
    print(f"worker {worker} ended with exit status {status}", file=sys.stderr)
    return status


def _wait(processes: Sequence[Process], seconds: float) -> None:
    end = time.monotonic() + seconds
    while _running(processes) and time.monotonic() < end:
        time.sleep(0.1)


def _stop(processes: Sequence[Process]) -> None:
    """Terminate all processes, and kill those that do not end."""
    for process in processes:
        process.terminate()
    _wait(processes, KILL_TIMEOUT)
    for process in processes:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
