"""Outputs as nested lists: `classify` works without NumPy.

Strings are bytes, and numbers of float32 are rounded to it, as in arrays.
"""

import base64
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

# The numbers that `classify` returns, as `struct` has them.
_FORMATS = {"float32": "f", "int64": "q"}


def shape(value: Any) -> tuple[int, ...]:
    """The shape of nested lists, () of anything else.

    Raises:
        ValueError: They are ragged.
    """
    if not isinstance(value, list):
        return ()
    inner = {shape(item) for item in value}
    if len(inner) > 1:
        raise ValueError(f"ragged lists: {sorted(inner)}")
    return (len(value), *(inner.pop() if inner else ()))


def nested(values: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Arrange values in lists of these sizes, the last dimension innermost."""
    if len(values) != math.prod(sizes):
        raise ValueError(f"{len(values)} values for the shape {list(sizes)}")
    return _arranged(iter(values), sizes)


def _arranged(values: Iterator[Any], sizes: Sequence[int]) -> Any:
    if not sizes:
        return next(values)
    return [_arranged(values, sizes[1:]) for _ in range(sizes[0])]


def from_json(value: Any, dtype: str) -> Any:
    """Convert nested lists of a JSON answer.

    Args:
        value: Numbers and strings; strings that are no UTF-8 are {"b64": ...}.
        dtype: "string", "float32" or "int64".

    Raises:
        ValueError: A number is not of this type.
    """
    if isinstance(value, list):
        return [from_json(item, dtype) for item in value]
    if dtype == "string":
        return bytes_from_json(value)
    return _number(value, _FORMATS[dtype])


def bytes_from_json(value: Any) -> bytes:
    """Convert one string of a JSON answer."""
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    return value.encode("utf-8", "surrogateescape")


def _number(value: Any, form: str) -> Any:
    try:
        return struct.unpack(form, struct.pack(form, value))[0]
    except OverflowError:  # of a float: infinite, as in TensorFlow
        return math.copysign(math.inf, value)
    except struct.error as error:
        raise ValueError(f"{error}: {value!r}") from error
