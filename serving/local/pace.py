"""How long runs take: what the event loop may wait for, and what needs no deadline.

To hand a request to a thread and its answer back takes longer than a small model: a run
is done at once if those before it were short, and if it cannot wait for anything.

TensorFlow never frees the 700 bytes of the rendezvous of a run that fails under a
deadline (LocalRendezvous::aborted_rendezs_), and refused requests are many: a run gets
no deadline if those before it ended long before theirs.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

# A run of at most so many microseconds is short; so many in a row show that they are.
_SHORT = 2000
_ENOUGH = 16
# What is written for more outputs than this takes long, too.
_OUTPUTS = 4096
# A deadline is far if it leaves so many times what the longest run took, which counts a
# little less after each other run.
_FAR = 10
_FORGET = 0.99
# Operations whose time follows from the sizes of what goes in. All others, such as
# loops, branches, batching, tables and what makes shapes of values, may take any time.
_STEADY = """
    Abs Add AddN AddV2 ArgMax ArgMin AvgPool BatchMatMulV2 BiasAdd Cast ConcatV2 Const
    Conv2D DepthwiseConv2dNative Div DivNoNan Einsum Elu Equal Erf Exp ExpandDims Floor
    FusedBatchNormV3 GatherV2 Greater GreaterEqual Identity IdentityN LeakyRelu Less
    LessEqual Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr MatMul Max MaxPool
    Maximum Mean Min Minimum Mul Neg NoOp NotEqual Pack Placeholder
    PlaceholderWithDefault Pow ReadVariableOp RealDiv Reciprocal Relu Relu6 Reshape
    Round Rsqrt SelectV2 Selu Shape Sigmoid Sign Softmax Softplus Split SplitV Sqrt
    Square SquaredDifference Squeeze StridedSlice Sub Sum Tanh TopKV2 Transpose Unpack
    VarHandleOp VariableV2 ZerosLike _Arg _Retval
"""
_STEADY_OPERATIONS = frozenset(_STEADY.split())
_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))


class MayTakeLong(Exception):
    """What was called in an event loop's thread belongs into another."""


# Shapes of what a run is fed with.
Shapes = Sequence[tuple[int, ...]]


class Pace:
    """How long the latest runs of one signature took. Any thread may call it.

    Args:
        steady: whether equal sizes take equal times; otherwise no run is short.
    """

    def __init__(self, steady: bool):
        self._steady = steady
        self._short_runs = 0
        self._largest = 0
        self._alike: tuple[Any, ...] | None = None
        self._longest = math.inf  # microseconds; nothing is known before the first run
        self._running: list[int] = []  # when the runs that are under way began

    def runs_here(self, shapes: Shapes) -> bool:
        """Whether this is the thread of an event loop, which a short run may keep.

        Args:
            shapes: of the run's inputs, in the same order each time.

        Raises:
            MayTakeLong: it is, and the run is not expected to be short.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        alike, rows = _alike(shapes)
        if alike is None or alike != self._alike or rows > self._largest:
            raise MayTakeLong
        if self._short_runs < _ENOUGH:
            raise MayTakeLong
        return True

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
        if took > _SHORT:
            self._short_runs = self._largest = 0
        return took

    def note(self, shapes: Shapes, outputs: int, microseconds: int) -> None:
        """Remembers a run that gave an answer.

        Args:
            shapes: of its inputs.
            outputs: how many numbers came out.
            microseconds: how long it took.
        """
        if not self._steady or microseconds > _SHORT:
            return
        alike, rows = _alike(shapes)
        if outputs > _OUTPUTS or alike != self._alike:
            self._short_runs = self._largest = 0
        if outputs <= _OUTPUTS:
            self._alike = alike
            self._short_runs += 1
            self._largest = max(self._largest, rows)


def _alike(shapes: Shapes) -> tuple[tuple[Any, ...] | None, int]:
    """What runs share that differ in their number of rows alone, and that number.

    None for inputs of different numbers of rows, which may become a table of both.
    """
    rows = {shape[0] for shape in shapes if shape}
    if len(rows) > 1:
        return None, 0
    return tuple(shape[1:] if shape else None for shape in shapes), max(rows, default=1)


def is_steady(
    graph: tf.Graph, functions: Mapping[str, Any], names: Iterable[str]
) -> bool:
    """Whether the time of a run follows from the sizes of what it is fed with.

    Args:
        graph: a loaded graph.
        functions: its FunctionDefs by name.
        names: of the tensors that are computed.
    """
    operations = [graph.get_tensor_by_name(name).op for name in names]
    seen: set[Any] = set()
    while operations:
        operation = operations.pop()
        if operation in seen:
            continue
        seen.add(operation)
        if not _takes_steady_time(operation.node_def, functions):
            return False
        operations.extend(tensor.op for tensor in operation.inputs)
        operations.extend(operation.control_inputs)
    return True


def _takes_steady_time(node: Any, functions: Mapping[str, Any]) -> bool:
    if node.op in _CALLS:
        body = functions[node.attr["f"].func.name].node_def
        return all(_takes_steady_time(inner, functions) for inner in body)
    return node.op in _STEADY_OPERATIONS
