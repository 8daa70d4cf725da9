"""`launch`: all workers of a run on this machine, started and ended together."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import Preempted, RecipeError, WorkerLost

COMMAND = (sys.executable, "-m", "training")
# Seconds that the others have to end by themselves once one has failed: they notice a
# lost one after 12 (TensorFlow's heartbeat); to write a checkpoint may take longer.
PATIENCE = 30.0
SAVING = 300.0
LAST_CHANCE = 10.0  # between SIGTERM and SIGKILL


def launch(words: Sequence[str], workers: int, restarts: int = 0) -> int:
    """Runs `python -m training` with the same words once for each worker.

    Worker 0 writes to the terminal, each of the others to a file whose path is printed.
    The processor's cores are divided among them. SIGTERM, SIGINT and SIGHUP are passed
    on to all, but not what this process was started to ignore, as SIGHUP by `nohup`:
    the workers inherit that.

    Args:
        words: `fit` and its options.
        workers: How many.
        restarts: How often to start all of them again, with `--resume`, after one was
            killed.

    Returns:
        0, or the exit status of the worker that failed first, 128 + number where it was
        killed by a signal. WorkerLost's only if no other failed.

    Raises:
        RecipeError: There is no `fit`, or fewer than one worker.
    """
    if list(words[:1]) != ["fit"]:
        raise RecipeError(
            "`launch` must be followed by -- and the command to start, such as: "
            f"launch --workers 2 -- fit --recipe digits. Received: {' '.join(words)!r}"
        )
    for name, value, least in (("workers", workers, 1), ("restarts", restarts, 0)):
        if value < least:
            raise RecipeError(f"`{name}` must be at least {least}. Received: {value}")
    logs = Path(tempfile.mkdtemp(prefix="training-launch-"))
    for worker in range(1, workers):
        print(f"worker {worker} writes to {_log(logs, worker)}", flush=True)
    words = [*words, "--strategy", "multi_worker"]
    while True:
        status, asked = _run(words, workers, logs)
        if not restarts or asked or not _was_lost(status):
            return status
        restarts -= 1
        words = [word for word in words if word not in ("--overwrite", "--resume")]
        words.append("--resume")
        print("all workers start again, with --resume", file=sys.stderr, flush=True)


def _was_lost(status: int) -> bool:
    return status > 128 or status == WorkerLost.exit_status


def _log(folder: Path, worker: int) -> Path:
    return folder / f"worker{worker}.log"


def _run(words: Sequence[str], workers: int, logs: Path) -> tuple[int, bool]:
    """All workers once: the exit status, and whether a signal asked for the end."""
    processes: list[subprocess.Popen[bytes]] = []
    with _signals_passed_on(processes) as received:
        try:
            for worker, variables in enumerate(environments(workers)):
                log = _log(logs, worker) if worker else None
                processes.append(_start(words, variables, log))
                for number in received:  # while it started
                    processes[-1].send_signal(number)
            while not (failed := _failed(processes)) and _running(processes):
                time.sleep(0.1)
            if not failed:
                return 0, bool(received)
            status = _told(processes, failed[0])
            _wait(processes, SAVING if status == Preempted.exit_status else PATIENCE)
            if status == WorkerLost.exit_status:
                # The lost worker may end after the one that has lost it.
                cause = _failed(processes)[0]
                if cause != failed[0]:
                    status = _told(processes, cause)
            return status, bool(received)
        finally:
            _end(processes)


def environments(workers: int) -> list[dict[str, str]]:
    """What each worker's environment says: the others, its number, its threads."""
    with contextlib.ExitStack() as stack:  # all at once, so that no port comes twice
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(workers)
        ]
        addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    threads = str(max(1, len(os.sched_getaffinity(0)) // workers))
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
        }
        for worker in range(workers)
    ]


def _start(words, variables, log: Path | None) -> subprocess.Popen[bytes]:
    """A worker, in a session of its own: Ctrl-C reaches it through this process."""
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab")) if log else None
        return subprocess.Popen(
            [*COMMAND, *words],
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output and subprocess.STDOUT,
            start_new_session=True,
        )


@contextlib.contextmanager
def _signals_passed_on(processes) -> Iterator[list[int]]:
    """Gives the list of the signals that come."""
    received: list[int] = []

    def pass_on(number, frame):
        received.append(number)
        for process in processes:
            process.send_signal(number)  # does nothing where it has ended

    before = {
        name: signal.signal(name, pass_on)
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        if signal.getsignal(name) != signal.SIG_IGN
    }
    try:
        yield received
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _running(processes) -> bool:
    return any(process.poll() is None for process in processes)


def _failed(processes) -> list[int]:
    """Numbers of the workers that failed, those that only lost another one last."""
    failed = [worker for worker, process in enumerate(processes) if process.poll()]
    lost = WorkerLost.exit_status
    return sorted(failed, key=lambda worker: processes[worker].poll() == lost)


def _told(processes, worker: int) -> int:
    """Exit status of a worker that has ended, said to the user."""
    code = processes[worker].poll()
    status = code if code >= 0 else 128 - code
    print(f"worker {worker} ended with exit status {status}", file=sys.stderr)
    return status


def _wait(processes, seconds: float) -> None:
    end = time.monotonic() + seconds
    while _running(processes) and time.monotonic() < end:
        time.sleep(0.1)


def _end(processes) -> None:
    """Leaves none running."""
    for process in processes:
        process.terminate()
    _wait(processes, LAST_CHANCE)
    for process in processes:
        process.kill()
        process.wait()
