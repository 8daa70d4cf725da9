"""Conversion of inputs and REST outputs to arrays of the signature's types.

The same call returns the same arrays over REST and gRPC. Strings are bytes in object
arrays, as in TensorFlow.
"""

from collections.abc import Sequence
from typing import Any

from .errors import InvalidArgument
from .responses import TensorInfo

try:
    import numpy as np
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "arrays need NumPy: pip install numpy", name=error.name
    ) from error


__all__ = ["as_bytes", "bytes_array", "input_array", "np", "output_array"]


def input_array(name: str, value: Any, info: TensorInfo | None) -> np.ndarray:
    """Convert an input to an array of the signature's type.

    Args:
        name: Of the input, for messages.
        value: Nested lists, numbers, text, bytes, or an array.
        info: The type; None for an unknown input, which the server will refuse.

    Raises:
        InvalidArgument: The value cannot be converted without loss.
    """
    if info is None:
        return np.asarray(value)
    try:
        if info.dtype == "string":
            # Not through np.bytes_, which strips zero bytes at the end.
            array = np.asarray(value, dtype=object)
            return bytes_array(as_bytes(array), array.shape)
        return _cast(np.asarray(value), _numpy_dtype(info))
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(
            f"`inputs[{name!r}]` must be {info.dtype}. Received: {error}"
        ) from error


def output_array(value: Any, info: TensorInfo) -> np.ndarray:
    """Convert nested lists of a REST answer, whose strings are bytes."""
    with np.errstate(over="ignore"):  # overflow is infinite, as in TensorFlow
        return np.asarray(value, dtype=_numpy_dtype(info))


def as_bytes(array: np.ndarray) -> list[bytes]:
    """The strings of an array, text as UTF-8."""
    return [item if isinstance(item, bytes) else item.encode() for item in array.flat]


def bytes_array(values: Sequence[bytes], shape: Sequence[int]) -> np.ndarray:
    """An array of objects."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)


def _numpy_dtype(info: TensorInfo) -> np.dtype | None:
    try:
        return np.dtype(object if info.dtype == "string" else info.dtype)
    except TypeError:  # bfloat16 and quantized types are TensorFlow's own
        return None


def _cast(array: np.ndarray, dtype: np.dtype | None) -> np.ndarray:
    """Cast as NumPy's "same_kind", but refuse integers that would wrap around."""
    if dtype is None:
        return array
    integers = array.dtype.kind in "iu" and dtype.kind in "iu"
    # An empty list is an array of floats for NumPy.
    unsafe = integers or array.size == 0
    cast = array.astype(dtype, casting="unsafe" if unsafe else "same_kind")
    if integers and not np.array_equal(cast, array):
        raise ValueError(f"values from {array.min()} to {array.max()}")
    return cast
