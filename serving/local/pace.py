"""Which runs are so short that the event loop waits for them instead of a thread.

To hand a request to a thread and its answer back takes longer than a small model. A run
is short if those before it were; what may wait for something is never taken for short.
"""

import asyncio
import itertools

from tensorflow.core.framework import graph_pb2

# A run of at most so many microseconds is short; so many in a row show that they are.
_SHORT = 2000
_ENOUGH = 16
# What is written for more outputs than this takes long, too.
_OUTPUTS = 4096
# Loops, whose number of turns is in the data, and batching, which waits for others.
_WAITING = frozenset(
    ("While", "StatelessWhile", "For", "Enter", "BatchFunction", "Batch")
)


class MayTakeLong(Exception):
    """What was called in an event loop's thread belongs into another."""


class Pace:
    """How long the latest runs of one signature took.

    Args:
        steady: whether equal sizes take equal times; otherwise no run is short.
    """

    def __init__(self, steady: bool):
        self._steady = steady
        self._short_runs = 0
        self._largest = 0

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

    def note(self, inputs: int, outputs: int, microseconds: int) -> None:
        """Remembers a run.

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
