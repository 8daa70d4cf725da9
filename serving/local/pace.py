"""How long runs take: what the event loop may wait for, and what needs no deadline.

To hand a request to a thread and its answer back takes longer than a small model: a run
is done at once if those before it were short, and if it cannot wait for anything.

TensorFlow never frees the 700 bytes of the rendezvous of a run that fails under a
deadline (LocalRendezvous::aborted_rendezs_), and refused requests are many: a run gets
no deadline if those before it ended long before theirs.
"""

import asyncio
import itertools
import math
import time

from tensorflow.core.framework import graph_pb2

# A run of at most so many microseconds is short; so many in a row show that they are.
_SHORT = 2000
_ENOUGH = 16
# What is written for more outputs than this takes long, too.
_OUTPUTS = 4096
# A deadline is far if it leaves so many times what the longest run took, which counts a
# little less after each other run.
_FAR = 10
_FORGET = 0.99
# Loops, whose number of turns is in the data, and batching, which waits for others.
_WAITING = frozenset(
    ("While", "StatelessWhile", "For", "Enter", "BatchFunction", "Batch")
)


class MayTakeLong(Exception):
    """What was called in an event loop's thread belongs into another."""


class Pace:
    """How long the latest runs of one signature took. Any thread may call it.

    Args:
        steady: whether equal sizes take equal times; otherwise no run is short.
    """

    def __init__(self, steady: bool):
        self._steady = steady
        self._short_runs = 0
        self._largest = 0
        self._longest = math.inf  # microseconds; nothing is known before the first run
        self._running: list[int] = []  # when the runs that are under way began

    def is_short(self, inputs: int) -> bool:
        """Whether a run is expected to be short.

        Args:
            inputs: how many numbers the run is fed with.

        Raises:
            MayTakeLong: it is not, and this is the thread of an event loop.
        """
        short = self._short_runs >= _ENOUGH and inputs <= self._largest
        if not short and _in_event_loop():
            raise MayTakeLong
        return short

    def ends_before(self, timeout: float) -> bool:
        """Whether a run is expected to end long before so many seconds are over."""
        first = min(list(self._running), default=math.inf)
        under_way = (time.perf_counter_ns() - first) / 1000
        return timeout * 1e6 > _FAR * max(self._longest, under_way)

    def begin(self) -> int:
        """Begins a run; returns what `end` wants."""
        begin = time.perf_counter_ns()
        self._running.append(begin)
        return begin

    def end(self, begin: int) -> int:
        """Ends a run, as it may; returns how many microseconds it took."""
        self._running.remove(begin)
        took = (time.perf_counter_ns() - begin) // 1000
        known = 0 if self._longest == math.inf else self._longest
        self._longest = max(took, _FORGET * known)
        return took

    def note(self, inputs: int, outputs: int, microseconds: int) -> None:
        """Remembers a run that gave an answer.

        Args:
            inputs: how many numbers it was fed with.
            outputs: how many came out.
            microseconds: how long it took.
        """
        if microseconds > _SHORT or outputs > _OUTPUTS or not self._steady:
            self._short_runs = self._largest = 0
        else:
            self._short_runs += 1
            self._largest = max(self._largest, inputs)


def may_wait(graph: graph_pb2.GraphDef) -> bool:
    """Whether a graph has operations whose time does not follow from sizes."""
    in_functions = (node for f in graph.library.function for node in f.node_def)
    nodes = itertools.chain(graph.node, in_functions)
    return any(node.op in _WAITING for node in nodes)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
