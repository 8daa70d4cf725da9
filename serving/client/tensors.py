"""Arrays: callers' values in the signature's types, and REST answers in theirs.

Both clients send and return the same arrays, so that the same call gives the same
result over REST and gRPC. Strings are bytes in arrays of objects, as in TensorFlow.
"""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import InvalidArgument, ServingError
from .responses import TensorInfo


def input_array(name: str, value: Any, info: TensorInfo | None) -> np.ndarray:
    """A caller's value as the array that the signature asks for.

    Args:
        name: of the input, for messages.
        value: nested lists, numbers, text, bytes, or an array.
        info: what the signature says; None where it does not know the input (the
            server will say so).

    Raises:
        InvalidArgument: the value cannot have the type without losing its meaning.
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
    """The arrays in the `outputs` of a REST answer.

    Args:
        values: nested lists by name; no name where the model has a single output.
        outputs: what the signature says of them.

    Raises:
        ServingError: the values do not fit the signature.
    """
    if not isinstance(values, dict) or set(values) == {"b64"}:
        values = dict.fromkeys(list(outputs)[:1], values)
    if not set(outputs) <= set(values):
        raise ServingError(
            f"the answer does not fit the signature. Wanted: {', '.join(outputs)}. "
            f"Received: {', '.join(values)}"
        )
    return {name: _output_array(values[name], outputs[name]) for name in outputs}


def empty_arrays(outputs: Mapping[str, TensorInfo]) -> dict[str, np.ndarray]:
    """What a signature with outputs of a known rank answers to nothing."""
    return {
        name: np.empty([0] * len(info.shape or ()), _numpy_dtype(info))
        for name, info in outputs.items()
    }


def _output_array(value: Any, info: TensorInfo) -> np.ndarray:
    if info.dtype == "string":
        value = _bytes(value)
    with np.errstate(over="ignore"):  # beyond float32 is infinite, as in TensorFlow
        return np.asarray(value, dtype=_numpy_dtype(info))


def _numpy_dtype(info: TensorInfo) -> np.dtype | None:
    try:
        return np.dtype(object if info.dtype == "string" else info.dtype)
    except TypeError:  # bfloat16, quantised types: only TensorFlow knows them
        return None


def _cast(array: np.ndarray, dtype: np.dtype | None) -> np.ndarray:
    """As NumPy's "same_kind", but integers that do not fit are refused, not wrapped."""
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
