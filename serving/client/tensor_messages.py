"""Conversion between TensorProto messages and values: lists, and NumPy arrays.

NumPy is imported by the functions that convert arrays.
"""

import array
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .errors import ServingError
from .messages import TensorProto
from .responses import dtype_name

if TYPE_CHECKING:
    import numpy as np

# Each type's name, and the field of its values where they are not in `tensor_content`.
_FIELDS = {
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16"), "int_val"),
    **dict.fromkeys(("float16", "bfloat16"), "half_val"),
    "float32": "float_val",
    "float64": "double_val",
    "int64": "int64_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "bool": "bool_val",
    "complex64": "scomplex_val",
    "complex128": "dcomplex_val",
    "string": "string_val",
}
# The types of their numbers: halves are bits, complex ones pairs.
_STORED_AS = {"float16": "uint16", "bfloat16": "uint16"}
_STORED_AS |= {"complex64": "float32", "complex128": "float64"}
_DTYPES = TensorProto.DESCRIPTOR.fields_by_name["dtype"].enum_type.values
_NAMES = {value.number: dtype_name(value.name) for value in _DTYPES}
_NUMBERS = {name: number for number, name in _NAMES.items()}
# The types of classification, as `array.array` has them.
_TYPECODES = {"float32": "f", "int64": "q"}


def from_values(values: "list[bytes] | np.ndarray") -> Any:
    """The TensorProto of a list of bytes, or of an array; arrays of objects hold bytes.

    Raises:
        TypeError: TensorFlow has no such type.
    """
    if isinstance(values, list):
        return _message("string", [len(values)], string_val=values)
    if values.dtype.kind in "OSU":
        from .tensors import as_bytes

        return _message("string", values.shape, string_val=as_bytes(values))
    name = values.dtype.name
    if name not in _FIELDS:
        raise TypeError(f"{name} is not a type of TensorFlow")
    content = values.astype(values.dtype.newbyteorder("<")).tobytes()
    return _message(name, values.shape, tensor_content=content)


def to_array(tensor: Any) -> "np.ndarray":
    """The array in a TensorProto; strings are bytes in an array of objects.

    Raises:
        ServingError: It has a type that NumPy has not.
        ModuleNotFoundError: bfloat16, but no ml_dtypes.
    """
    from .tensors import bytes_array, np

    name, sizes = _type(tensor), _sizes(tensor)
    if name == "string":
        return bytes_array(_strings(tensor, math.prod(sizes)), sizes)
    if name == "bfloat16":
        import ml_dtypes  # noqa: F401  NumPy knows the name then
    dtype = np.dtype(name)
    if tensor.tensor_content:
        stored = np.frombuffer(tensor.tensor_content, dtype.newbyteorder("<"))
        return stored.astype(dtype).reshape(sizes)
    values = np.array(getattr(tensor, _FIELDS[name]), _STORED_AS.get(name, dtype))
    values = values.view(dtype)
    if missing := math.prod(sizes) - len(values):
        values = np.pad(values, (0, missing), mode="edge")
    return values.reshape(sizes)


def to_lists(tensor: Any) -> Any:
    """Nested lists of a TensorProto of strings, float32 or int64."""
    name, sizes = _type(tensor), _sizes(tensor)
    size = math.prod(sizes)
    if name == "string":
        return _nested(_strings(tensor, size), sizes)
    values = array.array(_TYPECODES[name], tensor.tensor_content)
    values.extend(getattr(tensor, _FIELDS[name]))
    return _nested(_repeated(values.tolist(), size), sizes)


def _nested(values: list[Any], sizes: Sequence[int]) -> Any:
    """Arrange values in lists of these sizes, the last dimension innermost."""
    if len(values) != math.prod(sizes):
        raise ValueError(f"{len(values)} values for the shape {list(sizes)}")
    if len(sizes) < 2:
        return values if sizes else values[0]
    step = math.prod(sizes[1:])
    rows = [values[step * row : step * (row + 1)] for row in range(sizes[0])]
    return [_nested(row, sizes[1:]) for row in rows]


def _strings(tensor: Any, size: int) -> list[bytes]:
    """`string_val`, or the lengths and the bytes in `tensor_content`.

    The latter is of a server with --enable_serialization_as_tensor_content.
    """
    content = tensor.tensor_content
    if not content:
        return _repeated(list(tensor.string_val), size)
    lengths, position = [], 0
    for _ in range(size):
        length, position = _varint(content, position)
        lengths.append(length)
    ends = list(itertools.accumulate(lengths, initial=position))
    return [content[start:end] for start, end in itertools.pairwise(ends)]


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """A number of protobuf's encoding, and the position after it."""
    value = shift = 0
    while content[position] >= 0x80:
        value |= (content[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return value | content[position] << shift, position + 1


def _repeated(values: list[Any], size: int) -> list[Any]:
    """Fill up with the last value, as TensorFlow shortens constant tensors."""
    return values + values[-1:] * (size - len(values))


def _message(name: str, sizes: Sequence[int], **values: Any) -> Any:
    shape = {"dim": [{"size": size} for size in sizes]}
    return TensorProto(dtype=_NUMBERS[name], tensor_shape=shape, **values)


def _type(tensor: Any) -> str:
    name = _NAMES.get(tensor.dtype, str(tensor.dtype))
    if name not in _FIELDS:
        raise ServingError(f"the answer has a tensor of an unsupported type: {name}")
    return name


def _sizes(tensor: Any) -> list[int]:
    return [dim.size for dim in tensor.tensor_shape.dim]
