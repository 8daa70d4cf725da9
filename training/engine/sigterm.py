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
    """Set `stop_requested` at SIGTERM; a second one ends the process at once.

    Enter it after the strategy was created, as TensorFlow's multi-worker runtime
    installs a handler of its own.
    """

    def request_stop(number: int, frame: FrameType | None) -> None:
        progress.stop_requested = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    with _handler(request_stop):
        yield


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
