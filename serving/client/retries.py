"""Pauses between retries: exponential backoff with jitter, within a deadline.

A prediction changes nothing on the server, so that a retry is safe.
"""

import itertools
import random
import time
from collections.abc import Iterator

# Readiness polling interval, in seconds.
READY_PAUSE = 0.25
# Mean pauses before the second attempt and between later ones, in seconds.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0
# Share of the time before the deadline; the rest is for the answer.
SHARE_OF_THE_REST = 0.5
# No further attempt if the pause would be shorter, in seconds.
SHORTEST_PAUSE = 0.05


def pauses(deadline: float) -> Iterator[float]:
    """Generate the pauses before retries, in seconds, until a time of `time.monotonic`.

    They double, with jitter so that clients that failed together do not retry together,
    and get shorter again shortly before the deadline.
    """
    for attempt in itertools.count():
        pause = jittered(min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))
        pause = min(pause, SHARE_OF_THE_REST * (deadline - time.monotonic()))
        if pause < SHORTEST_PAUSE:
            return
        yield pause


def jittered(mean: float) -> float:
    """Add jitter: from 0.5 to 1.5 times the mean."""
    return mean * random.uniform(0.5, 1.5)
