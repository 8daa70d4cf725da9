"""When a request is sent again: pauses, the time that is left, and a budget.

A call of a model changes nothing on the server, so asking twice is safe. But a server
that sheds load must not get more of it, so the retries of a client may add a fifth to
its requests, and a few in reserve for a client that asks seldom.
"""

import random
import threading
import time

# Mean pauses before the second and the third attempt, in seconds.
RETRY_PAUSES = (0.1, 0.3)
# Calls that earn one retry, and retries in reserve.
CALLS_PER_RETRY = 5
RESERVE = 10


class RetryBudget:
    """How many retries the calls so far have earned; safe between threads."""

    def __init__(self) -> None:
        self._calls = RESERVE * CALLS_PER_RETRY
        self._lock = threading.Lock()

    def earn(self) -> None:
        """A call begins."""
        with self._lock:
            self._calls = min(self._calls + 1, RESERVE * CALLS_PER_RETRY)

    def spend(self) -> bool:
        """Whether there is a retry left, which is then used up."""
        with self._lock:
            affordable = self._calls >= CALLS_PER_RETRY
            self._calls -= CALLS_PER_RETRY * affordable
            return affordable


def jittered(mean: float) -> float:
    """Spread by half, so that clients that failed together do not return together."""
    return mean * random.uniform(0.5, 1.5)


def seconds_left(deadline: float) -> float:
    """Seconds until a time of `time.monotonic`, never zero: that would be for ever."""
    return max(deadline - time.monotonic(), 0.001)
