"""Generates load: closed loop (clients that wait) or open loop (arrivals that do not).

Each request has the moment when it should be sent, and its latency counts from there.
In a closed loop that is the moment when the client is free. In an open loop it comes
from a Poisson process that knows nothing of the server: a request that is late, since
the server keeps all connections busy, has waited, and the wait is part of its latency
(Tene's "coordinated omission" is to leave it out).
"""

import asyncio
import dataclasses
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .senders import NO_CONNECTION, Reply, Sender

NOT_SENT = "not sent"

# A server that is away refuses at once; asking it again and again proves nothing.
_PAUSE_WITHOUT_CONNECTION = 0.05


@dataclasses.dataclass(frozen=True)
class Load:
    """How much to send, and for how long.

    Args:
        clients: closed loop: so many clients, each sends as soon as it has its answer.
        rate: open loop: mean arrivals per second.
        duration: seconds that are measured.
        requests: requests that are measured; None: as many as fit into `duration`.
        warmup: seconds before, under the same load, not measured.
        timeout: seconds for each request once it is sent; and how long after the end
            requests are sent that waited for a connection.
        connections: open loop: requests under way at most.
        seed: of the arrivals.
    """

    clients: int | None = None
    rate: float | None = None
    duration: float = 10.0
    requests: int | None = None
    warmup: float = 2.0
    timeout: float = 10.0
    connections: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.clients is None) == (self.rate is None):
            raise ValueError(
                "One of `clients` and `rate` must be given. "
                f"Received: clients={self.clients}, rate={self.rate}"
            )
        for name in ("clients", "rate", "duration", "requests", "timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"`{name}` must be above 0. Received: {name}={value}")
        if not 0 <= self.warmup < math.inf:
            raise ValueError(
                f"`warmup` must not be below 0. Received: warmup={self.warmup}"
            )

    @property
    def length(self) -> float:
        """Seconds of the window; infinite where only answers end it."""
        if self.requests is None:
            return self.duration
        return math.inf if self.rate is None else self.requests / self.rate

    @property
    def workers(self) -> int:
        """Requests under way at most."""
        return self.connections if self.clients is None else self.clients


class Sample(NamedTuple):
    """One request; times in seconds of the event loop's clock."""

    intended: float
    sent: float
    finished: float
    code: str


class Run(NamedTuple):
    """What a load made of a server.

    Attributes:
        load: what was asked for.
        samples: every request, the warm-up's too, in order of their ends.
        begin: when measuring began, as the samples' times.
        end: when it ended.
        cpu_share: of one core, used by this process while measuring.
        texts: the first body of each code that is not OK.
    """

    load: Load
    samples: list[Sample]
    begin: float
    end: float
    cpu_share: float
    texts: dict[str, bytes]


async def generate(
    sender: Sender,
    requests: Sequence[Any],
    load: Load,
    progress: Callable[[float, int, int], None] = lambda share, answers, errors: None,
) -> Run:
    """Runs a load.

    Args:
        sender: carries the requests.
        requests: sent in turn.
        load: how much.
        progress: called now and then with the share that is done (0 to 1), and how many
            answers and errors there were.

    Returns:
        The samples. It ends within the load's warm-up, duration and twice the timeout;
        with a number of `requests` in a closed loop, when they are answered.
    """
    return await _Generator(sender, requests, load, progress).run()


class _Generator:
    def __init__(self, sender, requests, load, progress) -> None:
        self._sender = sender
        self._requests = itertools.cycle(requests)
        self._load = load
        self._progress = progress
        self._samples: list[Sample] = []
        self._texts: dict[str, bytes] = {}
        self._measured = 0
        self._errors = 0
        self._now = asyncio.get_running_loop().time

    async def run(self) -> Run:
        load = self._load
        self._start = self._now()
        self._begin = self._start + load.warmup
        self._end = self._begin + load.length
        moments = self._moments()
        reporter = asyncio.create_task(self._report())
        clock = asyncio.create_task(self._processor_time())
        try:
            await asyncio.gather(*(self._work(moments) for _ in range(load.workers)))
        finally:
            reporter.cancel()
        finished = self._now()
        used = time.process_time() - await clock
        return Run(
            load,
            self._samples,
            self._begin,
            # The last requests of a number end later than sending; those of a duration
            # do so too, but what comes after it is not of the window.
            finished if math.isinf(self._end) else min(finished, self._end),
            used / (finished - self._begin),
            self._texts,
        )

    def _moments(self) -> Iterator[float]:
        """When each request should be sent; all workers take from here, in order."""
        load = self._load
        next_moment = self._now if load.rate is None else self._arrivals()
        most = load.requests or math.inf
        end = math.inf if load.requests else self._end
        while self._measured < most and (moment := next_moment()) < end:
            self._measured += moment >= self._begin
            yield moment

    def _arrivals(self) -> Callable[[], float]:
        """The moments of a Poisson process."""
        exponential = random.Random(self._load.seed).expovariate
        gaps = (exponential(self._load.rate) for _ in itertools.count())
        return itertools.accumulate(gaps, initial=self._start).__next__

    async def _work(self, moments: Iterator[float]) -> None:
        for intended in moments:
            wait = intended - self._now()
            if wait > 0:
                await asyncio.sleep(wait)
            sent = self._now()
            reply = await self._ask(sent)
            self._samples.append(Sample(intended, sent, self._now(), reply.code))
            if reply.code != "OK":
                self._errors += 1
                self._texts.setdefault(reply.code, reply.body)
            if reply.code == NO_CONNECTION:
                await asyncio.sleep(_PAUSE_WITHOUT_CONNECTION)

    async def _ask(self, now: float) -> Reply:
        if now > self._end + self._load.timeout:
            return Reply(NOT_SENT, b"no connection was free")
        return await self._sender.ask(next(self._requests), self._load.timeout)

    async def _processor_time(self) -> float:
        """This process's CPU seconds at the beginning of measuring."""
        await asyncio.sleep(self._begin - self._now())
        return time.process_time()

    async def _report(self) -> None:
        load = self._load
        while True:
            await asyncio.sleep(0.25)
            elapsed = self._now() - self._start
            share = elapsed / (load.warmup + load.length)
            if load.requests:
                share = self._measured / load.requests
            answers = len(self._samples) - self._errors
            self._progress(min(share, 1.0), answers, self._errors)
