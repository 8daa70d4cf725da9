"""Pauses between retries: exponential backoff with jitter, within a deadline.

A prediction changes nothing on the server, so that a retry is safe.
"""

import random
import time

# Readiness polling interval, in seconds.
READY_PAUSE = 0.25
# Mean pauses before the second attempt and between later ones, in seconds.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0
# Share of the time before the deadline; the rest is for the answer.
SHARE_OF_THE_REST = 0.5
# No further attempt if the pause would be shorter, in seconds.
SHORTEST_PAUSE = 0.05


def pause_after(attempt: int, deadline: float) -> float | None:
    """Seconds before the next attempt, if there is time for one.

    They double, with jitter so that clients that failed together do not retry together,
    and get shorter again shortly before the deadline.

    Args:
        attempt: The number of the one that failed, from 0.
        deadline: A time of `time.monotonic`.
    """
    pause = jittered(min(FIRST_PAUSE * 2 ** min(attempt, 10), LONGEST_PAUSE))
    pause = min(pause, SHARE_OF_THE_REST * (deadline - time.monotonic()))
    return pause if pause >= SHORTEST_PAUSE else None


def jittered(mean: float) -> float:
    """Add jitter: from 0.5 to 1.5 times the mean."""
    return mean * random.uniform(0.5, 1.5)
