"""Handlers of SIGTERM: stop after the current step, or at once outside of steps."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from .progress import Progress


class Terminated(KeyboardInterrupt):
    """SIGTERM came where no step was running; no `except Exception` stops it."""


@contextlib.contextmanager
def terminated_at_once() -> Iterator[None]:
    """Raise Terminated at SIGTERM."""

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    with _handler(terminate):
        yield


@contextlib.contextmanager
def stopped_after_the_step(progress: Progress) -> Iterator[None]:
    """Set `stop_requested` at SIGTERM; a second one ends the process at once."""

    def request_stop(number: int, frame: FrameType | None) -> None:
        progress.stop_requested = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    with _handler(request_stop):
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
def _handler(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGTERM; outside the main thread, where Python allows none, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        # None: a handler that was not installed from Python
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
