"""Pauses between the attempts of a call, which end at its deadline.

A prediction changes nothing on the server, so that a retry is safe.
"""

import random
import time

from .errors import DeadlineExceeded, NotFound, ServingError, Unavailable

# Readiness polling interval, in seconds.
READY_PAUSE = 0.25
# Mean pauses before the second attempt and between later ones, in seconds.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0
# Share of the time before the deadline; the rest is for the answer.
SHARE_OF_THE_REST = 0.5
# No further attempt if the pause would be shorter, in seconds.
SHORTEST_PAUSE = 0.05


class Retries:
    """Exponential backoff with jitter, after errors that are `worth_retrying`.

    Args:
        timeout: Seconds until the deadline, a time of `time.monotonic`.
    """

    def __init__(self, timeout: float) -> None:
        self.deadline = time.monotonic() + timeout
        self._pause = FIRST_PAUSE
        self._reason: ServingError | None = None

    def pause_after(self, error: ServingError) -> float | None:
        """Seconds before the next attempt; None to raise the error instead.

        They double, with jitter so that clients that failed together do not retry
        together, and get shorter again shortly before the deadline.

        Raises:
            DeadlineExceeded: No answer in time, with the refusal before that.
        """
        reason = self._reason
        if reason is not None and isinstance(error, DeadlineExceeded):
            raise DeadlineExceeded(f"{error}; before that: {reason}") from reason
        if not error.worth_retrying:
            return None
        self._reason = error
        time_left = self.deadline - time.monotonic()
        pause = min(_jittered(self._pause), SHARE_OF_THE_REST * time_left)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return pause if pause >= SHORTEST_PAUSE else None


class ReadinessPolling(Retries):
    """Equal pauses, as long as the model is not there or does not answer."""

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self._timeout = timeout

    def pause_after(self, error: ServingError) -> float | None:
        """Seconds before the next attempt; None where waiting does not help.

        Raises:
            DeadlineExceeded: There is no time for another attempt.
        """
        if not isinstance(error, Unavailable | NotFound | DeadlineExceeded):
            return None
        # What the server said explains more than the silence at the end.
        if self._reason is None or not isinstance(error, DeadlineExceeded):
            self._reason = error
        pause = _jittered(READY_PAUSE)
        if pause >= self.deadline - time.monotonic():
            raise DeadlineExceeded(
                f"not ready within {self._timeout:g} s: {self._reason}"
            ) from self._reason
        return pause


def _jittered(mean: float) -> float:
    """Add jitter: from 0.5 to 1.5 times the mean."""
    return mean * random.uniform(0.5, 1.5)
