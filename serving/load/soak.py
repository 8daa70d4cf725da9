"""Soak: good and bad requests for hours while versions are swapped, and what was seen.

Good requests must be answered, each time as the first time; bad ones must be refused
with the code that TensorFlow Serving gives.
"""

import asyncio
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .senders import GrpcRequest, Reply, RestRequest, Sender
from .soak_requests import Answer, Case
from .soak_versions import SoakVersions

# For a request, and for a new version to serve.
_REQUEST_SECONDS = 30.0
_SWAP_SECONDS = 180.0


class Asked(NamedTuple):
    """One request; times in seconds from the start of the soak.

    Attributes:
        case: what was sent.
        begin: when it was sent.
        seconds: what it took.
        fault: what is wrong with what came of it, "" where nothing is.
    """

    case: Case
    begin: float
    seconds: float
    fault: str


# Without a repr: asyncio.run writes that of what its coroutine returns, for nothing.
@dataclasses.dataclass(repr=False)
class Record:
    """What was seen; times in seconds from the start.

    Attributes:
        asked: every request, in order of their ends.
        memory: times and bytes of the server's resident memory.
        swaps: when each new version began to serve.
        faulty: how many of the requests have a fault.
        faults: what went wrong beside the requests.
        seconds: how long it took.
    """

    asked: list[Asked] = dataclasses.field(default_factory=list)
    memory: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    swaps: list[float] = dataclasses.field(default_factory=list)
    faulty: int = 0
    faults: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


class Soak:
    """A soak of one model on one server.

    Args:
        model: name of the model.
        senders: what carries the cases, by the type of their requests.
        cases: what is sent, good ones and bad ones as often as each other.
        tolerance: how far a number may be from that of the first answer; relative
            where it is above 1.
    """

    def __init__(
        self,
        model: str,
        senders: Mapping[type, Sender],
        cases: Sequence[Case],
        tolerance: float,
    ):
        self.record = Record()
        self._model = model
        self._cases = cases
        self._weights = _balanced(cases)
        self._tolerance = tolerance
        self._first: dict[str, Answer] = {}
        self._senders = senders
        self._now = asyncio.get_running_loop().time
        self._start = self._now()

    async def run(
        self,
        seconds: float,
        clients: int,
        memory: Callable[[], int] | None = None,
        versions: SoakVersions | None = None,
        swap_every: float = 60.0,
        progress: Callable[[float, Record], None] = lambda share, record: None,
    ) -> Record:
        """Sends each case once, then all of them at random until the time is over.

        Args:
            seconds: how long.
            clients: requests under way.
            memory: the server's resident memory in bytes, or raises ProcessLookupError
                once it is gone.
            versions: where versions are swapped; None: they are not.
            swap_every: seconds from swap to swap.
            progress: called each second with the share that is done (0 to 1).
        """
        for case in self._cases:
            await self._ask(case)
        workers = [self._work(number) for number in range(clients)]
        tasks = [*workers, self._watch(seconds, memory, progress)]
        if versions:
            tasks.append(self._swap(versions, swap_every))
        running = [asyncio.create_task(task) for task in tasks]
        # The watch ends with the time or the server, swapping when it fails.
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        self.record.seconds = self._elapsed()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for task in running:
            if not task.cancelled() and (error := task.exception()):
                raise error
        return self.record

    async def _work(self, number: int) -> None:
        choose = random.Random(number).choices
        while True:
            [case] = choose(self._cases, self._weights)
            await self._ask(case)

    async def _ask(self, case: Case) -> None:
        begin = self._elapsed()
        reply = await self._send(case.request)
        seconds = self._elapsed() - begin
        fault = self._fault(case, reply)
        self.record.asked.append(Asked(case, begin, seconds, fault))
        self.record.faulty += bool(fault)

    async def _send(self, request: RestRequest | GrpcRequest) -> Reply:
        return await self._senders[type(request)].ask(request, _REQUEST_SECONDS)

    def _fault(self, case: Case, reply: Reply) -> str:
        if reply.code != case.code:
            text = reply.body[:200].decode("utf-8", "replace")
            return f"{reply.code} in place of {case.code}: {text}"
        if case.read is None:
            return ""
        try:
            answer = case.read(reply.body)
        except (ValueError, KeyError, TypeError) as error:
            return f"an answer that cannot be read: {error!r}"
        first = self._first.setdefault(case.name, answer)
        return _difference(first, answer, self._tolerance)

    async def _watch(
        self,
        seconds: float,
        memory: Callable[[], int] | None,
        progress: Callable[[float, Record], None],
    ) -> None:
        """Looks at the server each second; ends with the time, or the server."""
        begin = self._elapsed()
        while (done := self._elapsed() - begin) < seconds:
            progress(done / seconds, self.record)
            if memory:
                try:
                    self.record.memory.append((self._elapsed(), memory()))
                except ProcessLookupError:
                    self.record.faults.append("the server ended")
                    return
            await asyncio.sleep(min(1.0, seconds - done))
        progress(1.0, self.record)

    async def _swap(self, versions: SoakVersions, every: float) -> None:
        """Puts new versions beside the old ones and removes those once they serve."""
        due = self._elapsed()
        while True:
            due += every
            await asyncio.sleep(due - self._elapsed())
            await asyncio.to_thread(versions.add)
            path = f"/v1/models/{self._model}/versions/{versions.number}"
            begin = self._elapsed()
            while b'"AVAILABLE"' not in (await self._send(RestRequest("GET", path)))[1]:
                if self._elapsed() > begin + _SWAP_SECONDS:
                    fault = f"version {versions.number} did not serve in time"
                    self.record.faults.append(fault)
                    return
                await asyncio.sleep(0.2)
            self.record.swaps.append(self._elapsed())
            await asyncio.to_thread(versions.remove_older)

    def _elapsed(self) -> float:
        return self._now() - self._start


def _balanced(cases: Sequence[Case]) -> list[float]:
    """Weights under which good and bad ones are as likely as each other."""
    total = {
        good: sum(case.weight for case in cases if case.good == good)
        for good in (True, False)
    }
    return [case.weight / total[case.good] for case in cases]


def _difference(first: Answer, answer: Answer, tolerance: float) -> str:
    if set(answer) != set(first):
        return f"outputs {sorted(answer)} in place of {sorted(first)}"
    for name, want in first.items():
        got = answer[name]
        if got.shape != want.shape:
            return f"{name} has the shape {got.shape} in place of {want.shape}"
        if want.dtype.kind not in "iuf":
            if not np.array_equal(got, want):
                return f"{name} is another one than at first"
        elif not np.allclose(got, want, rtol=tolerance, atol=tolerance):
            return f"{name} differs from the first by {np.abs(got - want).max():.2g}"
    return ""
