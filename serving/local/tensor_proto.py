"""Conversion between TensorProto and NumPy, as TensorFlow Serving reads and writes."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.tensor_pb2 import TensorProto

from .status_errors import InvalidArgument

Arrays: TypeAlias = dict[str, np.ndarray]  # by the alias of an input or output

# The field of a TensorProto that holds a type's values.
_FIELDS = {
    types_pb2.DT_FLOAT: "float_val",
    types_pb2.DT_DOUBLE: "double_val",
    types_pb2.DT_INT32: "int_val",
    types_pb2.DT_INT16: "int_val",
    types_pb2.DT_INT8: "int_val",
    types_pb2.DT_UINT8: "int_val",
    types_pb2.DT_UINT16: "int_val",
    types_pb2.DT_INT64: "int64_val",
    types_pb2.DT_UINT32: "uint32_val",
    types_pb2.DT_UINT64: "uint64_val",
    types_pb2.DT_BOOL: "bool_val",
    types_pb2.DT_STRING: "string_val",
    types_pb2.DT_HALF: "half_val",
    types_pb2.DT_BFLOAT16: "half_val",
    types_pb2.DT_COMPLEX64: "scomplex_val",
    types_pb2.DT_COMPLEX128: "dcomplex_val",
}

# Types whose values are written as those of another type.
_WRITTEN_AS = {
    types_pb2.DT_HALF: np.uint16,
    types_pb2.DT_BFLOAT16: np.uint16,
    types_pb2.DT_COMPLEX64: np.float32,
    types_pb2.DT_COMPLEX128: np.float64,
}

# Bytes that a request may take in memory beyond those that were sent: a message of 23
# bytes must not ask for gigabytes.
ANNOUNCED_LIMIT = 2**26
_MOST_DIMENSIONS = 64  # as NumPy has
# What a string takes besides its characters, in TensorFlow and in Python.
_STRING_BYTES = 64


def type_of(array: np.ndarray) -> int:
    """The DataType of an array."""
    return _type_of(array.dtype)


@functools.cache
def _type_of(numpy_type: np.dtype) -> int:
    return int(tf.as_dtype(numpy_type).as_datatype_enum)


@functools.cache
def numpy_type(data_type: int) -> np.dtype:
    """The NumPy type of a DataType."""
    known: np.dtype = np.dtype(tf.as_dtype(data_type).as_numpy_dtype)
    return known


def parsing_error(alias: str) -> InvalidArgument:
    """The error for a TensorProto that is not a valid tensor."""
    return InvalidArgument(f"tensor parsing error: {alias}")


def arrays_from_protos(inputs: Mapping[str, TensorProto]) -> Arrays:
    """The inputs of a PredictRequest by alias."""
    if len(inputs) > 1:
        announced = 0
        for alias, proto in inputs.items():
            announced += _announced_bytes(alias, proto)
            _check_announced(alias, announced)
    return {alias: array_from_proto(alias, proto) for alias, proto in inputs.items()}


def array_from_proto(alias: str, proto: TensorProto) -> np.ndarray:
    """Read a TensorProto with TensorFlow's own reader.

    Fewer values than the shape holds are accepted (the last one is repeated, none
    means zeros), and values beyond it are ignored.

    Raises:
        InvalidArgument: no type, a negative size, content of another length, more
            dimensions than NumPy has, more than 64 MiB of repeated values, or more
            than 2^20 strings.
    """
    _check_announced(alias, _announced_bytes(alias, proto))
    try:
        tensor = tf.io.parse_tensor(proto.SerializeToString(), proto.dtype)
        array = tensor.numpy()
    except (tf.errors.OpError, ValueError) as error:
        raise parsing_error(alias) from error
    return np.asarray(array, object if isinstance(array, bytes) else None)


def _check_announced(alias: str, announced: int) -> None:
    if announced > ANNOUNCED_LIMIT:
        raise parsing_error(alias)


def _announced_bytes(alias: str, proto: TensorProto) -> int:
    """The bytes that a tensor takes in memory beyond those that were sent."""
    # Thousands of sizes take minutes to multiply.
    if proto.dtype not in _FIELDS or len(proto.tensor_shape.dim) > _MOST_DIMENSIONS:
        raise parsing_error(alias)
    size: int = math.prod(dim.size for dim in proto.tensor_shape.dim)
    sent: Sequence[Any] = getattr(proto, _FIELDS[proto.dtype])
    missing = max(0, size - len(sent))
    if proto.dtype == types_pb2.DT_STRING:
        last = len(sent[-1]) if sent else 0
        return max(size, len(sent)) * _STRING_BYTES + missing * last
    # TensorFlow compares the length of the content itself before it makes the tensor.
    complete = proto.tensor_content or not missing
    return 0 if complete else size * numpy_type(proto.dtype).itemsize


def array_to_proto(array: np.ndarray, as_content: bool = False) -> TensorProto:
    """A TensorProto with its values in the typed field, as in TensorFlow Serving.

    Args:
        array: an output; strings are bytes.
        as_content: numbers in `tensor_content` instead.
    """
    data_type = type_of(array)
    proto = TensorProto(dtype=data_type)
    proto.tensor_shape.SetInParent()
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if as_content and data_type != types_pb2.DT_STRING:
        proto.tensor_content = np.ascontiguousarray(array).tobytes()
        return proto
    flat = np.ascontiguousarray(array).reshape(-1)
    if written_as := _WRITTEN_AS.get(data_type):
        flat = flat.view(written_as)
    getattr(proto, _FIELDS[data_type]).extend(flat.tolist())
    return proto
