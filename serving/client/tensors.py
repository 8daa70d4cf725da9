"""Conversion of inputs and REST outputs to arrays of the signature's types.

The same call returns the same arrays over REST and gRPC. Strings are bytes in object
arrays, as in TensorFlow.
"""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import InvalidArgument, ServingError
from .responses import TensorInfo


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
            return _encoded(np.asarray(value, dtype=object))
        return _cast(np.asarray(value), _numpy_dtype(info))
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(
            f"`inputs[{name!r}]` must be {info.dtype}. Received: {error}"
        ) from error


def output_arrays(
    values: Any, outputs: Mapping[str, TensorInfo]
) -> dict[str, np.ndarray]:
    """Convert the `outputs` of a REST answer to arrays.

    Args:
        values: Nested lists by name; without a name for a single output.
        outputs: Types of the outputs.

    Raises:
        ServingError: The values do not match the signature.
    """
    if not isinstance(values, dict) or set(values) == {"b64"}:
        values = dict.fromkeys(list(outputs)[:1], values)
    if not set(outputs) <= set(values):
        raise ServingError(
            f"the answer does not match the signature. Expected: {', '.join(outputs)}. "
            f"Received: {', '.join(values)}"
        )
    return {name: _output_array(values[name], outputs[name]) for name in outputs}


def empty_arrays(outputs: Mapping[str, TensorInfo]) -> dict[str, np.ndarray]:
    """Create empty outputs, the result for no images."""
    return {
        name: np.empty([0] * len(info.shape or ()), _numpy_dtype(info))
        for name, info in outputs.items()
    }


def _output_array(value: Any, info: TensorInfo) -> np.ndarray:
    if info.dtype == "string":
        value = _bytes(value)
    with np.errstate(over="ignore"):  # overflow is infinite, as in TensorFlow
        return np.asarray(value, dtype=_numpy_dtype(info))


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


def _encoded(array: np.ndarray) -> np.ndarray:
    flat = [item if isinstance(item, bytes) else item.encode() for item in array.flat]
    encoded = np.empty(array.size, dtype=object)
    encoded[:] = flat
    return encoded.reshape(array.shape)


def _bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_bytes(item) for item in value]
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    return value.encode("utf-8", "surrogateescape")
