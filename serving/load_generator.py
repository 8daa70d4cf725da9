"""A load generator: latency and throughput in a closed or an open loop.

Closed loop: N clients, each of which sends its next request once the last one is
answered. Open loop: Poisson arrivals at a given rate, however slow the server is. A
latency counts from the moment when its request was due, so that the wait for a slow
server is part of it (leaving it out is known as coordinated omission).
"""

import asyncio
import collections
import dataclasses
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import numpy as np

from .client.errors import ServingError, Unavailable

# Open loop: requests in flight; more of them are due, and wait for a free slot.
MAX_IN_FLIGHT = 256
# A server that is down refuses at once; asking again immediately measures nothing.
PAUSE_AFTER_UNAVAILABLE = 0.05
NOT_SENT = "not sent"


@dataclasses.dataclass(frozen=True)
class Load:
    """What to send: by `clients` in a closed loop, or at a `rate` in an open one.

    Attributes:
        clients: Closed loop: requests in flight.
        rate: Open loop: mean arrivals per second.
        duration: Seconds that are measured.
        warmup: Seconds of the same load before that, not measured.
        timeout: Seconds after the end in which late requests are still sent.
    """

    clients: int | None = None
    rate: float | None = None
    duration: float = 10.0
    warmup: float = 2.0
    timeout: float = 10.0

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g}/s"
        return f"{self.clients} client{'s' if self.clients != 1 else ''}"


class Sample(NamedTuple):
    """One request: seconds on the event loop's clock, and the kind of its error."""

    due: float
    finished: float
    error: str | None


@dataclasses.dataclass(frozen=True)
class Result:
    """The measurements of one load, without its warm-up.

    Attributes:
        load: The load.
        latencies: Seconds of the requests that succeeded, ascending, float64.
        requests_per_second: Successful answers within the measured time.
        errors: Failed requests by kind: a class of `serving.client.errors`, or "not
            sent".
        messages: The first error message of each kind.
        cpu: Share of one core that the generator used.
    """

    load: Load
    latencies: np.ndarray
    requests_per_second: float
    errors: dict[str, int]
    messages: dict[str, str]
    cpu: float

    @property
    def requests(self) -> int:
        """Requests that were due within the measured time."""
        return len(self.latencies) + sum(self.errors.values())

    def percentile(self, percent: float) -> float | None:
        """An observed latency in seconds, not interpolated; None without any."""
        if not len(self.latencies):
            return None
        return float(np.percentile(self.latencies, percent, method="inverted_cdf"))


async def generate(send: Callable[[], Awaitable[object]], load: Load) -> Result:
    """Run a load.

    Args:
        send: Sends one request and waits for its answer; raises `ServingError`.
        load: How much to send, and for how long.

    Returns:
        The measurements, at the latest two timeouts after the end of the load.
    """
    now = asyncio.get_running_loop().time
    start, cpu = now(), time.process_time()
    begin = start + load.warmup
    end = begin + load.duration
    schedule = _arrivals(load.rate, start, end) if load.rate else _at_once(now, end)
    samples: list[Sample] = []
    messages: dict[str, str] = {}

    async def work() -> None:
        for due in schedule:
            await asyncio.sleep(max(due - now(), 0))
            kind = NOT_SENT if now() > end + load.timeout else None
            try:
                if not kind:
                    await send()
            except ServingError as error:
                kind = type(error).__name__
                messages.setdefault(kind, str(error).partition("\n")[0])
            samples.append(Sample(due, now(), kind))
            if kind == Unavailable.__name__:
                await asyncio.sleep(PAUSE_AFTER_UNAVAILABLE)

    await asyncio.gather(*(work() for _ in range(load.clients or MAX_IN_FLIGHT)))
    measured = [sample for sample in samples if sample.due >= begin]
    answered = sum(s.error is None and begin <= s.finished <= end for s in samples)
    return Result(
        load=load,
        latencies=np.sort([s.finished - s.due for s in measured if s.error is None]),
        requests_per_second=answered / load.duration,
        errors=dict(collections.Counter(s.error for s in measured if s.error)),
        messages=messages,
        cpu=(time.process_time() - cpu) / max(now() - start, 1e-9),
    )


def _at_once(now: Callable[[], float], end: float) -> Iterator[float]:
    """Closed loop: a request is due when its client is free."""
    while (due := now()) < end:
        yield due


def _arrivals(rate: float, start: float, end: float) -> Iterator[float]:
    """Open loop: the moments of a Poisson process, the same in every run."""
    exponential = random.Random(0).expovariate
    due = start
    while due < end:
        yield due
        due += exponential(rate)
