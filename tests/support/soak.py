"""A soak: valid and invalid requests while versions are swapped; faults and memory.

Valid requests must be answered, each time as the first time; invalid ones must be
refused with the right error; the server's memory must not grow.
"""

import asyncio
import collections
import dataclasses
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from serving.client import ServingError

SWAP_SECONDS = 180.0
MEBIBYTE = 2**20
# Every path must be taken and every thread started before memory is judged: a quarter
# of the time is ignored, and a short soak is not judged at all.
WARM_UP = 0.25
SHORTEST = 600.0
# Allowed growth between the first and the last third of the rest.
GROWTH_SHARE = 0.05
GROWTH_BYTES = 32 * MEBIBYTE


class Growth(NamedTuple):
    """The server's resident memory in bytes, and how much it may grow.

    A second version and garbage come and go, so that the 10th percentiles of the first
    and of the last third are compared.
    """

    first: float
    last: float
    limit: float

    @property
    def flat(self):
        return self.last - self.first <= self.limit


def growth(memory):
    """The growth in [(seconds, bytes), ...]; None for less than ten minutes."""
    if not memory or memory[-1][0] - memory[0][0] < SHORTEST:
        return None
    times, sizes = np.array(memory, dtype=np.float64).T
    begin = times[0] + WARM_UP * (times[-1] - times[0])
    times, sizes = times[times >= begin], sizes[times >= begin]
    third = (times[-1] - times[0]) / 3
    first = float(np.percentile(sizes[times <= times[0] + third], 10))
    last = float(np.percentile(sizes[times >= times[-1] - third], 10))
    return Growth(first, last, GROWTH_SHARE * first + GROWTH_BYTES)


@dataclasses.dataclass
class Record:
    """The observations of a soak.

    Attributes:
        sent: Number of requests by case.
        faults: Number of each fault, by its description without details.
        examples: The first fault of each description, in full.
        swaps: Versions that were swapped.
        memory: Times and bytes of the server's resident memory.
    """

    sent: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    faults: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    examples: dict[str, str] = dataclasses.field(default_factory=dict)
    swaps: int = 0
    memory: list[tuple[float, int]] = dataclasses.field(default_factory=list)

    def add_fault(self, what, details=""):
        self.faults[what] += 1
        self.examples.setdefault(what, details)

    def complaints(self):
        """One line for each kind of fault; none if the soak passed."""
        lines = [
            f"{n} x {what}: {self.examples[what]}" for what, n in self.faults.items()
        ]
        grown = growth(self.memory)
        if grown and not grown.flat:
            megabytes = (grown.last - grown.first) / MEBIBYTE
            lines.append(f"memory grew by {megabytes:.0f} MiB")
        return lines


class Versions:
    """A folder whose versions are copies of one version, made one after the other.

    Args:
        source: The folder of the version; it is not changed.
        folder: An empty folder for the copies, which the server watches.
    """

    def __init__(self, source: Path, folder: Path):
        self.source, self.folder, self.number = source, folder, 0
        self.add()

    def add(self):
        """Add a copy under the next number, atomically."""
        self.number += 1
        staging = self.folder / ".staging"
        shutil.copytree(self.source, staging)
        staging.rename(self.folder / str(self.number))

    def remove_older(self):
        """Remove all but the newest copy, each atomically."""
        for path in list(self.folder.glob("[0-9]*")):
            if int(path.name) < self.number:
                shutil.rmtree(path.rename(self.folder / f".removed-{path.name}"))


class Soak:
    """A soak of one server.

    Args:
        clients: Asyncio clients by the transport of the cases.
        cases: The requests; valid and invalid ones are sent equally often.
        tolerance: Of numbers in the answers; relative above 1.
    """

    def __init__(self, clients, cases, tolerance=1e-3):
        self.record = Record()
        self._clients, self._cases, self._tolerance = clients, cases, tolerance
        totals = collections.Counter()
        for case in cases:
            totals[case.error is None] += case.weight
        self._weights = [case.weight / totals[case.error is None] for case in cases]
        self._first: dict[str, dict[str, np.ndarray]] = {}

    async def run(
        self,
        seconds: float,
        in_flight: int = 4,
        memory: Callable[[], int] | None = None,
        versions: Versions | None = None,
        swap_every: float = 60.0,
        is_available=None,
    ) -> Record:
        """Send each case once, then cases at random until the time is over.

        Args:
            seconds: How long at least; until the first swap, if versions are swapped.
            in_flight: Concurrent requests.
            memory: The server's resident memory, or ProcessLookupError once it is gone.
            versions: Versions to swap.
            swap_every: Seconds between swaps.
            is_available: `await is_available(number)`: whether a version is loaded.
        """
        for case in self._cases:
            await self._ask(case)
        tasks = [self._work(number) for number in range(in_flight)]
        tasks.append(self._watch(seconds, memory, int(versions is not None)))
        if versions:
            tasks.append(self._swap(versions, swap_every, is_available))
        running = [asyncio.create_task(task) for task in tasks]
        # Watching ends with the time or with the server, swapping if it fails.
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for task in done:
            task.result()
        return self.record

    async def _work(self, seed):
        choose = random.Random(seed).choices
        while True:
            [case] = choose(self._cases, self._weights)
            await self._ask(case)

    async def _ask(self, case):
        name = f"{case.transport} {case.name}"
        self.record.sent[name] += 1
        error, answer = None, {}
        try:
            answer = await self._clients[case.transport].ask_once(case.call)
        except ServingError as raised:
            error = raised
        if type(error) is not (case.error or type(None)):
            wanted = case.error.__name__ if case.error else "an answer"
            got = type(error).__name__ if error else "an answer"
            self.record.add_fault(f"{name}: {got} instead of {wanted}", str(error))
        elif not error:
            first = self._first.setdefault(name, answer)
            if differing := difference(first, answer, self._tolerance):
                self.record.add_fault(f"{name}: {differing} changed")

    async def _watch(self, seconds, memory, least_swaps):
        now = asyncio.get_running_loop().time
        begin = now()
        while (elapsed := now() - begin) < seconds or self.record.swaps < least_swaps:
            if memory:
                try:
                    self.record.memory.append((elapsed, memory()))
                except ProcessLookupError:
                    self.record.add_fault("the server terminated")
                    return
            await asyncio.sleep(min(1.0, max(seconds - elapsed, 0.1)))

    async def _swap(self, versions, every, is_available):
        while True:
            await asyncio.sleep(every)
            await asyncio.to_thread(versions.add)
            try:
                async with asyncio.timeout(SWAP_SECONDS):
                    while not await is_available(versions.number):
                        await asyncio.sleep(0.2)
            except TimeoutError:
                self.record.add_fault(f"version {versions.number} was not loaded")
                return
            self.record.swaps += 1
            await asyncio.to_thread(versions.remove_older)


def difference(first, answer, tolerance):
    """The name of an output that differs, or ""."""
    if set(answer) != set(first):
        return "set of outputs"
    for name, want in first.items():
        got = answer[name]
        numbers = want.dtype.kind in "iuf" and got.dtype.kind in "iuf"
        if got.shape != want.shape:
            return name
        if numbers and not np.allclose(got, want, rtol=tolerance, atol=tolerance):
            return name
        if not numbers and not np.array_equal(got, want):
            return name
    return ""
