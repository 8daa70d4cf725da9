"""What a command is doing, reported on stderr wherever it is silent for seconds."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

SECONDS = 4.0  # between two lines; on a terminal, one line changes every second


@contextlib.contextmanager
def activity(text: str, every: float = SECONDS) -> Iterator[None]:
    """Report an activity and its duration so far, unless it ends before `every`.

    Args:
        text: What is done, such as "compiling the training step".
        every: Seconds before the first report, and between two.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_report, args=(text, every, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _report(text: str, every: float, ended: threading.Event) -> None:
    terminal = sys.stderr.isatty()
    start, end = ("\r", "") if terminal else ("", "\n")
    began, line = time.monotonic(), ""
    while not ended.wait(min(every, 1) if terminal and line else every):
        line = f"{text}: {time.monotonic() - began:.0f} s"
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)
    if terminal and line:  # cleared for what comes next
        print(f"\r{'':{len(line)}}\r", end="", file=sys.stderr, flush=True)
