"""JSON of classify and regress requests and answers."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from tensorflow.core.example import example_pb2, feature_pb2
from tensorflow_serving.apis import input_pb2

from .json_document import format_error, printed_floats, type_name
from .json_tensors import decode_base64, is_base64
from .status_errors import InvalidArgument


def examples_from_json(document: Mapping[str, Any], listed: input_pb2.Input) -> None:
    """Read `examples` and, if there is one, their common `context`.

    Raises:
        InvalidArgument: no examples, or a feature that an Example cannot represent.
    """
    examples: Any = listed.example_list.examples
    if "context" in document:
        examples = listed.example_list_with_context.examples
        context = listed.example_list_with_context.context
        _read_example(document["context"], context)
    values = document.get("examples")
    if "examples" not in document:
        reason = "When method is classify, key 'examples' is expected and was not found"
        raise format_error(document, reason)
    if not isinstance(values, list):
        raise format_error(document, "Expecting 'examples' value to be an list/array")
    if not values:
        raise format_error(document, "'examples' value is an empty array")
    for value in values:
        _read_example(value, examples.add())


def _read_example(value: Any, example: example_pb2.Example) -> None:
    if not isinstance(value, dict):
        raise InvalidArgument(
            f"Example must be JSON object but got JSON {type_name(value)}"
        )
    for name, content in value.items():
        feature = example.features.feature[name]
        for item in content if isinstance(content, list) else [content]:
            _add(feature, name, item)


def _add(feature: feature_pb2.Feature, name: str, item: Any) -> None:
    """Append a value; all values of a feature have the same kind."""
    kind = _kind(name, item)
    present = feature.WhichOneof("kind")
    if present not in (None, kind):
        raise InvalidArgument(
            f"Unexpected element type in feature: {name} "
            f"expecting type: {present.removesuffix('_list')}"
        )
    getattr(feature, kind).value.append(_value(name, item))


def _kind(name: str, item: Any) -> str:
    if isinstance(item, str) or is_base64(item):
        return "bytes_list"
    if isinstance(item, int):
        return "int64_list"
    if isinstance(item, float):
        return "float_list"
    raise InvalidArgument(
        f"Feature: {name} has element with unexpected JSON type: {type_name(item)}"
    )


def _value(name: str, item: Any) -> Any:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, dict):
        return decode_base64(item)
    if isinstance(item, int) and not -(2**63) <= item < 2**63:
        raise InvalidArgument(
            f"Feature: {name} has uint64_t element. Only int64_t is supported."
        )
    return int(item) if isinstance(item, bool) else item


def result_to_json(result: Any) -> dict[str, Any]:
    """The JSON of a ClassificationResult or a RegressionResult."""
    if hasattr(result, "regressions"):
        return {"results": _printed(one.value for one in result.regressions)}
    return {
        "results": [
            [
                [one.label, score]
                for one, score in zip(
                    row.classes, _printed(one.score for one in row.classes), strict=True
                )
            ]
            for row in result.classifications
        ]
    }


def _printed(values: Iterable[float]) -> list[float]:
    printed: list[float] = printed_floats(np.fromiter(values, np.float32)).tolist()
    return printed
