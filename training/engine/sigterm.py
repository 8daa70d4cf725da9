"""Handlers of SIGTERM: stop after the current step, or at once where none is lost.

Python runs a handler between two of its own instructions, so not while TensorFlow or
XLA compiles, which takes minutes. A thread notices the signal there.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from ..errors import CONTINUES, Preempted
from .progress import Progress

PATIENCE = 1.0  # seconds for Python to run the handler, where the process may end
STOPPED = f"stopped by SIGTERM{CONTINUES}"


class Terminated(KeyboardInterrupt):
    """SIGTERM came where no step is lost; no `except Exception` stops it."""


@contextlib.contextmanager
def terminated_at_once() -> Iterator[None]:
    """Raise Terminated at SIGTERM; see `stopped_after_the_step`."""

    def terminate() -> None:
        raise Terminated

    with _handler(terminate, lambda: True):
        yield


@contextlib.contextmanager
def stopped_after_the_step(progress: Progress) -> Iterator[None]:
    """Set `stop_requested` at SIGTERM, and raise Terminated where nothing is unsaved.

    In the latter case the process ends, with the same message and exit status, if
    Python does not come to it. A second SIGTERM ends it at once.
    """

    def request_stop() -> None:
        progress.stop_requested = True
        if not progress.unsaved:
            raise Terminated

    with _handler(request_stop, lambda: not progress.unsaved):
        yield


def keep_handler() -> None:
    """Install Python's handler once more, after other code has installed its own.

    That of TensorFlow's multi-worker runtime only notes the signal, for callbacks that
    Keras does not have: the process would train on.
    """
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)


@contextlib.contextmanager
def _handler(handle: Callable[[], None], may_end: Callable[[], bool]) -> Iterator[None]:
    """Handle SIGTERM; outside the main thread, where Python allows none, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noticed = threading.Event()

    def run_handler(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        noticed.set()
        handle()

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    threading.Thread(
        target=_watch, args=(reading, noticed, may_end), name="sigterm", daemon=True
    ).start()
    descriptor = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = signal.signal(signal.SIGTERM, run_handler)
    try:
        yield
    finally:
        # None: a handler that was not installed from Python
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        signal.set_wakeup_fd(descriptor)
        os.close(writing)


def _watch(reading: int, noticed: threading.Event, may_end: Callable[[], bool]) -> None:
    """End the process where the main thread cannot; `reading` has each signal."""
    with open(reading, "rb", buffering=0) as signals:
        came = False
        while number := signals.read(1):
            if number[0] != signal.SIGTERM:
                continue
            if came:
                os._exit(128 + signal.SIGTERM)
            came = True
            if may_end() and not noticed.wait(PATIENCE):
                os.write(2, f"keras-vit: {STOPPED}\n".encode())
                os._exit(Preempted.exit_status)
