"""The JSON of predict: the row format (`instances`), the column format (`inputs`)."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf.meta_graph_pb2 import TensorInfo

from .jsondense import CONVERSIONS, Dense, dense, is_base64
from .jsonreader import members
from .jsontext import echo, format_error, printed_floats
from .session import type_name
from .status_errors import InvalidArgument, ServingError
from .tensor_proto import type_of

TensorInfos = Mapping[str, TensorInfo]


def inputs_from_json(
    document: Mapping[str, Any], signature_name: str, infos: TensorInfos
) -> tuple[bool, dict[str, Dense]]:
    """Reads the inputs of a predict request.

    Args:
        document: the request.
        signature_name: as the request has it, for the error.
        infos: the signature's inputs by alias.

    Returns:
        Whether the request has the row format, and the inputs by alias.

    Raises:
        InvalidArgument: values that do not fit the signature.
        Unimplemented: an input type that JSON cannot hold.
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


def _from_columns(value: Any, infos: TensorInfos) -> dict[str, Dense]:
    if not _is_named(value):
        if len(infos) > 1:
            raise InvalidArgument(
                "inputs is a plain value/list, but expecting an object as multiple "
                "input tensors required as per tensorinfo_map"
            )
        ((alias, info),) = infos.items()
        return {alias: dense(value, info.dtype)}
    for alias in sorted(infos):
        if alias not in value:
            raise InvalidArgument(f"Missing named input: {alias} in 'inputs' object.")
    return {alias: dense(value[alias], info.dtype) for alias, info in infos.items()}


def _from_rows(instances: list[Any], infos: TensorInfos) -> dict[str, Dense]:
    if not isinstance(instances[0], dict) and len(infos) > 1:
        raise InvalidArgument(
            "instances is a plain list, but expecting list of objects as multiple "
            "input tensors required as per tensorinfo_map"
        )
    if _is_named(instances[0]):
        named = _named_rows(instances, infos)
        return {alias: _stack(named[alias], len(instances)) for alias in sorted(infos)}
    alias = min(infos)
    data_type = infos[alias].dtype
    try:
        return {alias: dense(instances, data_type)}
    except ServingError:
        # Once more, row by row, to tell which one is wrong.
        return {alias: _stack(_plain_rows(instances, data_type), len(instances))}


def _plain_rows(instances: list[Any], data_type: int) -> list[Dense]:
    rows: list[Dense] = []
    for index, row in enumerate(instances):
        if _is_named(row):
            raise InvalidArgument(
                f"Expecting value/list but got object at item {index} of input list"
            )
        try:
            rows.append(_like_first(dense(row, data_type), rows))
        except ServingError as error:
            raise _row_error(index, "", error) from error
    return rows


def _named_rows(instances: list[Any], infos: TensorInfos) -> dict[str, list[Dense]]:
    rows: dict[str, list[Dense]] = {alias: [] for alias in infos}
    for index, row in enumerate(instances):
        if not _is_named(row):
            raise InvalidArgument(
                f"Expecting object but got list at item {index} of input list"
            )
        for key, value in members(row):
            _add_named(index, key, value, infos, rows)
        if row.keys() != infos.keys():
            raise InvalidArgument(
                f"Failed to process element: {index} of 'instances' list. JSON object: "
                f"{echo(row)} keys must be equal to: {','.join(sorted(infos))}"
            )
    return rows


def _add_named(
    index: int, key: str, value: Any, infos: TensorInfos, rows: dict[str, list[Dense]]
) -> None:
    try:
        if key not in infos:
            raise InvalidArgument(f"JSON object: does not have named input: {key}")
        rows[key].append(_like_first(dense(value, infos[key].dtype), rows[key]))
    except ServingError as error:
        raise _row_error(index, f" key: {key}", error) from error


def _row_error(index: int, key: str, error: ServingError) -> InvalidArgument:
    return InvalidArgument(
        f"Failed to process element: {index}{key} of 'instances' list. "
        f"Error: {error.with_code()}"
    )


def _like_first(row: Dense, rows: list[Dense]) -> Dense:
    if rows and row.values.size != rows[0].values.size:
        raise InvalidArgument(
            f"Expecting tensor size: {rows[0].values.size} but got: {row.values.size}"
        )
    if rows and row.shape != rows[0].shape:
        wanted, received = (str(list(r.shape)).replace(" ", "") for r in (rows[0], row))
        raise InvalidArgument(f"Expecting shape {wanted} but got: {received}")
    return row


def _stack(rows: list[Dense], count: int) -> Dense:
    """One tensor; as in TensorFlow Serving, keys that come twice push others out."""
    values = np.concatenate([row.values for row in rows])
    return Dense((count, *rows[0].shape), values[: count * rows[0].values.size])


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and not is_base64(value)


def outputs_to_json(outputs: Mapping[str, np.ndarray], row: bool) -> dict[str, Any]:
    """The answer of a predict request; one output alone loses its name.

    Args:
        outputs: arrays by alias.
        row: whether the request had the row format.

    Raises:
        InvalidArgument: no outputs, a type that JSON does not get, or outputs without
            a common first dimension in the row format.
    """
    if not outputs:
        raise InvalidArgument("Cannot convert empty tensor map to JSON")
    if row:
        _check_batch(outputs)
    columns = {alias: _plain(alias, array) for alias, array in outputs.items()}
    if len(columns) == 1:
        return {"predictions" if row else "outputs": next(iter(columns.values()))}
    if not row:
        return {"outputs": columns}
    rows = [
        dict(zip(columns, values, strict=True))
        for values in zip(*columns.values(), strict=True)
    ]
    return {"predictions": rows}


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
    """Nested lists of what JSON knows; `*_bytes` is written in base 64."""
    data_type = type_of(array)
    if data_type == types_pb2.DT_STRING:
        as_bytes = alias.endswith("_bytes")
        write = _base64_object if as_bytes else _text
        return np.vectorize(write, otypes=[object])(array).tolist()
    if array.size and data_type not in CONVERSIONS:
        raise InvalidArgument(
            f"Failed to write JSON value for tensor type: {type_name(data_type)}"
        )
    if data_type == types_pb2.DT_FLOAT:
        array = printed_floats(array)
    return array.tolist()


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _base64_object(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode("ascii")}
