"""JSON of predict requests and answers, by row (`instances`) and column (`inputs`)."""

import base64
import contextlib
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf.meta_graph_pb2 import TensorInfo

from .json_document import format_error, printed_floats, quote, type_name
from .session import data_type_name
from .status_errors import InvalidArgument, StatusError, Unimplemented
from .tensor_proto import Arrays, numpy_type, parsing_error, type_of

TensorInfos = Mapping[str, TensorInfo]

_BASE64 = re.compile(r"([A-Za-z0-9+/]*)([=.]*)")
_WHITESPACE = dict.fromkeys(map(ord, " \t\n\v\f\r"))


def inputs_from_json(
    document: Mapping[str, Any], signature_name: str, infos: TensorInfos
) -> tuple[bool, Arrays]:
    """Read the inputs of a predict request.

    Returns:
        Whether the request has the row format, and the inputs by alias.

    Raises:
        InvalidArgument: values that do not match the signature.
        Unimplemented: an input type that JSON cannot represent.
    """
    if not infos:
        raise InvalidArgument(
            f"Failed to get input map for signature: {signature_name or 'DEFAULT'}"
        )
    if "instances" in document and "inputs" in document:
        raise format_error(
            document,
            "Not formatted correctly expecting only one of 'inputs' or 'instances' "
            "keys to exist ",
        )
    if "instances" in document:
        instances = document["instances"]
        if not isinstance(instances, list):
            raise format_error(document, "Expecting 'instances' to be an list/array")
        if not instances:
            raise format_error(document, "No values in 'instances' array")
        return True, _from_rows(instances, infos)
    if "inputs" in document:
        return False, _from_columns(document["inputs"], infos)
    raise InvalidArgument("Missing 'inputs' or 'instances' key")


def _from_columns(value: Any, infos: TensorInfos) -> Arrays:
    if not _is_named(value):
        if len(infos) > 1:
            raise InvalidArgument(
                "inputs is a plain value/list, but expecting an object as multiple "
                "input tensors required as per tensorinfo_map"
            )
        value = dict.fromkeys(infos, value)
    for alias in sorted(infos):
        if alias not in value:
            raise InvalidArgument(f"Missing named input: {alias} in 'inputs' object.")
    return {alias: _tensor(alias, value[alias], infos) for alias in infos}


def _from_rows(instances: list[Any], infos: TensorInfos) -> Arrays:
    named = _is_named(instances[0])
    if not named and len(infos) > 1:
        raise InvalidArgument(
            "instances is a plain list, but expecting list of objects as multiple "
            "input tensors required as per tensorinfo_map"
        )
    if not named:
        (alias,) = infos
        # All rows at once; row by row only for an error message that names the row.
        with contextlib.suppress(StatusError):
            return {alias: _tensor(alias, instances, infos)}
    rows: dict[str, list[np.ndarray]] = {alias: [] for alias in infos}
    for index, row in enumerate(instances):
        if _is_named(row) != named:
            kinds = "object but got list" if named else "value/list but got object"
            raise InvalidArgument(f"Expecting {kinds} at item {index} of input list")
        for alias, value in row.items() if named else [(min(infos), row)]:
            try:
                if alias not in infos:
                    text = f"JSON object: does not have named input: {alias}"
                    raise InvalidArgument(text)
                tensor = _tensor(alias, value, infos)
                rows[alias].append(_like_first(tensor, rows[alias]))
            except StatusError as error:
                key = f" key: {alias}" if named else ""
                raise InvalidArgument(
                    f"Failed to process element: {index}{key} of 'instances' list. "
                    f"Error: {error.with_code()}"
                ) from error
        if named and row.keys() != infos.keys():
            raise InvalidArgument(
                f"Failed to process element: {index} of 'instances' list. JSON object: "
                f"{quote(row)} keys must be equal to: {','.join(sorted(infos))}"
            )
    return {alias: _stack(alias, rows[alias]) for alias in sorted(infos)}


def _like_first(row: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    if rows and row.size != rows[0].size:
        raise InvalidArgument(
            f"Expecting tensor size: {rows[0].size} but got: {row.size}"
        )
    if rows and row.shape != rows[0].shape:
        wanted, received = (str(list(r.shape)).replace(" ", "") for r in (rows[0], row))
        raise InvalidArgument(f"Expecting shape {wanted} but got: {received}")
    return row


def _stack(alias: str, rows: list[np.ndarray]) -> np.ndarray:
    try:
        return np.stack(rows)
    except (ValueError, IndexError) as error:  # more dimensions than NumPy has
        raise parsing_error(alias) from error


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and not is_base64(value)


def is_base64(value: Any) -> bool:
    """Whether a JSON value stands for bytes: `{"b64": "..."}`."""
    return (
        isinstance(value, dict)
        and value.keys() == {"b64"}
        and isinstance(value["b64"], str)
    )


def decode_base64(value: Mapping[str, str]) -> bytes:
    """The bytes of `{"b64": "..."}`, in the dialect of TensorFlow Serving's decoder.

    Whitespace is ignored, padding may be missing or dots, and the web-safe alphabet is
    refused.
    """
    parts = _BASE64.fullmatch(value["b64"].translate(_WHITESPACE))
    if parts:
        data, padding = parts.groups()
        needed = -len(data) % 4
        if needed < 3 and len(padding) in (0, needed):
            return base64.b64decode(data + "=" * needed)
    raise InvalidArgument("Unable to base64 decode")


def _tensor(alias: str, value: Any, infos: TensorInfos) -> np.ndarray:
    """A scalar or nested lists as an array of the input's type."""
    data_type = infos[alias].dtype
    shape = []
    first = value
    while isinstance(first, list):
        shape.append(len(first))
        first = first[0] if first else None
    leaves = [value]
    for size in shape:
        if any(type(v) is not list or len(v) != size for v in leaves):
            _raise_for_first_misfit(value, shape, data_type)
        leaves = list(itertools.chain.from_iterable(leaves))
    if any(type(v) is list for v in leaves):
        _raise_for_first_misfit(value, shape, data_type)
    flat = _convert(leaves, data_type)
    try:
        return flat.reshape(shape)
    except ValueError as error:  # more dimensions than NumPy has
        raise parsing_error(alias) from error


def _raise_for_first_misfit(
    item: Any, shape: list[int], data_type: int, level: int = 0
) -> None:
    """Raise for the first element that does not match the shape or the type."""
    if not isinstance(item, list):
        if level != len(shape):
            raise InvalidArgument(
                f"JSON Value: {quote(item)} found at incorrect level: {level + 1} "
                f"in the JSON DOM. Expected at level: {len(shape)}"
            )
        _convert([item], data_type)
        return
    if level >= len(shape):
        raise InvalidArgument(
            f"Encountered list at unexpected level: {level} expected < {len(shape)}"
        )
    if len(item) != shape[level]:
        raise InvalidArgument(
            f"Encountered list at unexpected size: {len(item)} at level: {level} "
            f"expected size: {shape[level]}"
        )
    for inner in item:
        _raise_for_first_misfit(inner, shape, data_type, level + 1)


def _within(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value < high


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


_INT32 = (_within(-(2**31), 2**31), np.int64)
# By type: which JSON values it takes, and the type they are first converted to. Small
# integers wrap, as they do in TensorFlow Serving.
_CONVERSIONS: dict[int, tuple[Callable[[Any], bool], Any]] = {
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
    if data_type not in _CONVERSIONS:
        raise Unimplemented(
            f"Conversion of JSON Value: {quote(leaves[0])} "
            f"to type: {data_type_name(data_type)}"
        )
    matches, read_as = _CONVERSIONS[data_type]
    for leaf in itertools.filterfalse(matches, leaves):
        raise _type_error(leaf, data_type)
    try:
        with np.errstate(over="ignore"):
            return np.array(leaves, read_as).astype(wanted)
    except OverflowError as error:  # an integer beyond float64
        raise _type_error(max(leaves, key=abs), data_type) from error


def _bytes(leaf: Any) -> bytes:
    if isinstance(leaf, str):
        return leaf.encode()
    if is_base64(leaf):
        return decode_base64(leaf)
    if isinstance(leaf, dict):
        raise format_error(leaf, "not formatted correctly for base64 data")
    raise _type_error(leaf, types_pb2.DT_STRING)


def _type_error(leaf: Any, data_type: int) -> InvalidArgument:
    return InvalidArgument(
        f"JSON Value: {quote(leaf)} Type: {type_name(leaf)} "
        f"is not of expected type: {data_type_name(data_type)}"
    )


def outputs_to_json(outputs: Mapping[str, np.ndarray], row: bool) -> dict[str, Any]:
    """The answer to a predict request; the alias of a single output is left out.

    Raises:
        InvalidArgument: no outputs, a type that JSON cannot represent, or outputs
            without a common first dimension in the row format.
    """
    if not outputs:
        raise InvalidArgument("Cannot convert empty tensor map to JSON")
    if row:
        _check_batch(outputs)
    columns: Any = {alias: _plain(alias, array) for alias, array in outputs.items()}
    if len(columns) == 1:
        (columns,) = columns.values()
    elif row:
        rows = zip(*columns.values(), strict=True)
        columns = [dict(zip(outputs, values, strict=True)) for values in rows]
    return {"predictions" if row else "outputs": columns}


def _check_batch(outputs: Mapping[str, np.ndarray]) -> None:
    size = None
    for alias, array in outputs.items():
        if array.ndim == 0:
            raise InvalidArgument(f"Tensor name: {alias} has no shape information ")
        size = len(array) if size is None else size
        if len(array) != size:
            raise InvalidArgument(
                f"Tensor name: {alias} has inconsistent batch size: {len(array)} "
                f"expecting: {size}"
            )


def _plain(alias: str, array: np.ndarray) -> Any:
    """Nested lists of JSON values; an output named `*_bytes` is written in base64."""
    data_type = type_of(array)
    if data_type == types_pb2.DT_STRING:
        write = _base64_object if alias.endswith("_bytes") else _text
        return np.vectorize(write, otypes=[object])(array).tolist()
    if array.size and data_type not in _CONVERSIONS:
        raise InvalidArgument(
            f"Failed to write JSON value for tensor type: {data_type_name(data_type)}"
        )
    if data_type == types_pb2.DT_FLOAT:
        array = printed_floats(array)
    return array.tolist()


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _base64_object(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode("ascii")}
