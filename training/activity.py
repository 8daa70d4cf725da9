"""What a command is doing, reported on stderr wherever it is silent for seconds."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

SECONDS = 3.0  # of silence, before a report; it is renewed on a terminal every second
APART = 60.0  # seconds between two activities of which the second does not follow

_spoken = _ended = time.monotonic()  # when something was printed, and when one ended
_running: list[threading.Event] = []  # what ends each activity, the innermost last


@contextlib.contextmanager
def activity(text: str, every: float | None = None) -> Iterator[None]:
    """Report an activity and its duration so far, while nothing else is printed.

    Short ones are reported, too, where several follow each other in silence; of one in
    another, the inner one.

    Args:
        text: What is done, such as "compiling the training step".
        every: Seconds of silence before a report, and between two; or `SECONDS`.
    """
    global _ended
    every = SECONDS if every is None else every
    if not _running and time.monotonic() > _ended + APART:
        spoken()
    ended = threading.Event()
    thread = threading.Thread(target=_report, args=(text, every, ended), daemon=True)
    _running.append(ended)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _running.remove(ended)
        _ended = time.monotonic()


def spoken() -> None:
    """Note that something was printed, so that the next report is later."""
    global _spoken
    _spoken = time.monotonic()


def _report(text: str, every: float, ended: threading.Event) -> None:
    terminal = sys.stderr.isatty()
    began, line = time.monotonic(), ""
    while not ended.wait(max(0.1, _spoken + every - time.monotonic())):
        now = time.monotonic()
        if _running[-1] is not ended or now < _spoken + every:
            continue
        line = f"{text}: {now - began:.0f} s" if now - began >= 1 else text
        start, end = ("\r", "") if terminal else ("", "\n")
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)
        every = min(every, 1.0) if terminal else every
        spoken()
    if terminal and line:  # cleared for what comes next
        print(f"\r{'':{len(line)}}\r", end="", file=sys.stderr, flush=True)
