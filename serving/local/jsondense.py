"""One JSON value -> the leaves and the shape of a tensor.

A JSON value becomes a `Dense`: its shape, read from the first element of each level,
and its leaves. It becomes an array only later, since a shape that no tensor has is an
error of its own in TensorFlow Serving.
"""

import base64
import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tensorflow.core.framework import types_pb2

from .jsonreader import Repeated
from .jsontext import echo, format_error, type_of
from .session import type_name
from .status_errors import InvalidArgument, Unimplemented
from .tensor_proto import numpy_type, parsing_error


@dataclasses.dataclass(frozen=True)
class Dense:
    """The leaves of nested lists, which all have the same shape.

    Attributes:
        shape: sizes of the lists, outermost first.
        values: the leaves [product of shape], in the input's type.
    """

    shape: tuple[int, ...]
    values: np.ndarray

    def array(self, alias: str) -> np.ndarray:
        """The array.

        Raises:
            InvalidArgument: more dimensions than an array has.
        """
        try:
            return self.values.reshape(self.shape)
        except ValueError as error:
            raise parsing_error(alias) from error


def is_base64(value: Any) -> bool:
    """Whether a JSON value is bytes: `{"b64": "..."}` and no other key."""
    return (
        isinstance(value, dict)
        and value.keys() == {"b64"}
        and not isinstance(value, Repeated)
        and isinstance(value["b64"], str)
    )


_DATA = re.compile(r"([A-Za-z0-9+/]*)([=.]*)")
_WHITESPACE = dict.fromkeys(map(ord, " \t\n\v\f\r"))


def decode_base64(value: Mapping[str, str]) -> bytes:
    """The bytes of `{"b64": "..."}`, in the dialect of TensorFlow Serving's decoder.

    White space counts nowhere, padding may be missing and may be dots; only the
    standard alphabet is known.

    Raises:
        InvalidArgument: anything else.
    """
    parts = _DATA.fullmatch(value["b64"].translate(_WHITESPACE))
    if parts:
        data, padding = parts.groups()
        needed = -len(data) % 4
        if needed < 3 and len(padding) in (0, needed):
            return base64.b64decode(data + "=" * needed)
    raise InvalidArgument("Unable to base64 decode")


def dense(value: Any, data_type: int) -> Dense:
    """The leaves of a value, in the type of an input.

    Args:
        value: a scalar or nested lists.
        data_type: the input's DataType.

    Raises:
        InvalidArgument: lists of different sizes, or a leaf of another type.
        Unimplemented: a type that JSON cannot hold.
    """
    shape = []
    first = value
    while isinstance(first, list):
        shape.append(len(first))
        first = first[0] if first else None
    leaves = [value]
    for size in shape:
        if any(type(v) is not list or len(v) != size for v in leaves):
            _blame(value, shape, data_type)
        leaves = list(itertools.chain.from_iterable(leaves))
    if any(type(v) is list for v in leaves):
        _blame(value, shape, data_type)
    return Dense(tuple(shape), _convert(leaves, data_type))


def _blame(value: Any, shape: list[int], data_type: int) -> None:
    """Raises for the first element that does not fit the shape or the type."""
    rank = len(shape)
    lists = [iter([value])]  # those that the present element is in, outermost first
    while lists:
        level = len(lists) - 1
        item = next(lists[-1], lists)
        if item is lists:
            lists.pop()
        elif isinstance(item, list):
            _check_list(item, level, shape)
            lists.append(iter(item))
        elif level != rank:
            raise InvalidArgument(
                f"JSON Value: {echo(item)} found at incorrect level: {level + 1} "
                f"in the JSON DOM. Expected at level: {rank}"
            )
        else:
            _convert([item], data_type)


def _check_list(items: list[Any], level: int, shape: list[int]) -> None:
    if level >= len(shape):
        raise InvalidArgument(
            f"Encountered list at unexpected level: {level} expected < {len(shape)}"
        )
    if len(items) != shape[level]:
        raise InvalidArgument(
            f"Encountered list at unexpected size: {len(items)} at level: {level} "
            f"expected size: {shape[level]}"
        )


def _within(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value < high


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


_INT32 = (_within(-(2**31), 2**31), np.int64)
# By type: which JSON values fit, and what they are first read as. Small integers wrap,
# as they do in TensorFlow Serving.
CONVERSIONS: dict[int, tuple[Callable[[Any], bool], Any]] = {
    types_pb2.DT_FLOAT: (_is_number, np.float64),
    types_pb2.DT_DOUBLE: (_is_number, np.float64),
    types_pb2.DT_INT32: _INT32,
    types_pb2.DT_INT16: _INT32,
    types_pb2.DT_INT8: _INT32,
    types_pb2.DT_UINT8: _INT32,
    types_pb2.DT_INT64: (_within(-(2**63), 2**63), np.int64),
    types_pb2.DT_UINT32: (_within(0, 2**32), np.uint64),
    types_pb2.DT_UINT64: (_within(0, 2**64), np.uint64),
    types_pb2.DT_BOOL: (lambda value: type(value) is bool, np.bool_),
}


def _convert(leaves: list[Any], data_type: int) -> np.ndarray:
    if data_type == types_pb2.DT_STRING:
        values = np.empty(len(leaves), object)
        values[:] = [_bytes(leaf) for leaf in leaves]
        return values
    wanted = numpy_type(data_type)
    if not leaves:
        return np.empty(0, wanted)
    if isinstance(leaves[0], dict):
        raise _type_error(leaves[0], data_type)
    if data_type not in CONVERSIONS:
        raise Unimplemented(
            f"Conversion of JSON Value: {echo(leaves[0])} "
            f"to type: {type_name(data_type)}"
        )
    fits, read_as = CONVERSIONS[data_type]
    for leaf in itertools.filterfalse(fits, leaves):
        raise _type_error(leaf, data_type)
    with np.errstate(over="ignore"):
        return np.array(leaves, read_as).astype(wanted)


def _bytes(leaf: Any) -> bytes:
    if isinstance(leaf, str):
        return leaf.encode("utf-8", "surrogateescape")
    if is_base64(leaf):
        return decode_base64(leaf)
    if isinstance(leaf, dict):
        raise format_error(leaf, "not formatted correctly for base64 data")
    raise _type_error(leaf, types_pb2.DT_STRING)


def _type_error(leaf: Any, data_type: int) -> InvalidArgument:
    return InvalidArgument(
        f"JSON Value: {echo(leaf)} Type: {type_of(leaf)} "
        f"is not of expected type: {type_name(data_type)}"
    )
