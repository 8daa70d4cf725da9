"""What a command is doing, reported on stderr wherever it is silent for seconds."""

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator

SECONDS = 3.0  # of silence, before a report and between two
# Of an activity that has taken `BEGINNING` seconds, a log has a line in `LATER`.
BEGINNING, LATER = 600.0, 60.0


@dataclasses.dataclass(eq=False)
class _Activity:
    text: str
    redraw: bool
    every: float | None
    began: float


_lock = threading.Lock()
_running: list[_Activity] = []  # the innermost last
_reporter: threading.Thread | None = None
_spoken = 0.0  # when something was last printed
_line = ""  # what is on the terminal and has to be cleared


@contextlib.contextmanager
def activity(
    text: str, every: float | None = None, *, redraw: bool = True
) -> Iterator[Callable[[str], None]]:
    """Report an activity and its duration so far, while nothing else is printed.

    The inner one of two nested activities is reported.

    Args:
        text: What is done, such as "compiling the training step".
        every: Seconds of silence before a report, and between two; or those of
            `silence`.
        redraw: Whether a terminal has one line for all reports, which is cleared in the
            end. Not where others print meanwhile.

    Yields:
        What says that another activity has taken its place.
    """
    current = _Activity(text, redraw, every, time.monotonic())
    with _lock:
        _begin(current)

    def become(text: str) -> None:
        with _lock:
            _clear()
            current.text, current.began = text, time.monotonic()

    try:
        yield become
    finally:
        with _lock:
            _running.remove(current)
            _clear()


def spoken() -> None:
    """Note that something was printed, so that the next report is later."""
    global _spoken
    _spoken = time.monotonic()


def silence(seconds: float) -> float:
    """How long a log may be silent, after so many seconds of the same activity."""
    return SECONDS if seconds < BEGINNING else LATER


def _begin(current: _Activity) -> None:
    global _reporter
    if not _running:
        spoken()
    _clear()
    _running.append(current)
    if _reporter is None:
        _reporter = threading.Thread(target=_report_all, name="activity", daemon=True)
        _reporter.start()


def _report_all() -> None:
    """Report the innermost activity whenever it is time, as long as there is one."""
    global _reporter
    while True:
        time.sleep(0.1)
        with _lock:
            if not _running:
                _reporter = None
                return
            _report(_running[-1])


def _report(current: _Activity) -> None:
    global _line
    now = time.monotonic()
    seconds = now - current.began
    redraw = current.redraw and sys.stderr.isatty()
    pause = silence(seconds) if current.every is None else current.every
    if redraw and _line:
        pause = min(pause, 1.0)
    if now < _spoken + pause:
        return
    text = f"{current.text}: {seconds:.0f} s" if seconds >= 1 else current.text
    start, end = ("\r", "") if redraw else ("", "\n")
    print(f"{start}{text}", end=end, file=sys.stderr, flush=True)
    _line = text if redraw else ""
    spoken()


def _clear() -> None:
    global _line
    if _line:
        print(f"\r{'':{len(_line)}}\r", end="", file=sys.stderr, flush=True)
        _line = ""
