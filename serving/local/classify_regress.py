"""Classify, Regress and MultiInference: run signatures that read tf.train.Examples."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    input_pb2,
    regression_pb2,
)

from .session import DEFAULT_SIGNATURE, LoadedModel, shape_text
from .status_errors import InvalidArgument, Unimplemented
from .tensor_proto import ANNOUNCED_LIMIT, Arrays, type_of

CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"

# The outputs to fetch, and what turns them and the number of examples into a result.
_Checked = tuple[list[str], Callable[[Arrays, int], Any]]


def infer(
    model: LoadedModel,
    signature_name: str,
    method: str,
    examples: input_pb2.Input,
    timeout: float,
) -> Any:
    """Run a classification or a regression.

    Args:
        method: `CLASSIFY`, for a ClassificationResult, or `REGRESS`.

    Raises:
        InvalidArgument: no such signature, one of another kind, or no examples.
    """
    key = signature_name or DEFAULT_SIGNATURE
    if key not in model.signatures:
        raise InvalidArgument(f"No signature was found with the name: {key}")
    fetches, to_result = _check(model.signatures[key], method)
    serialized = _serialized(examples)
    outputs = model.run(key, {"inputs": serialized}, fetches, timeout)
    return to_result(outputs, len(serialized))


def multi_infer(
    model: LoadedModel,
    tasks: Sequence[inference_pb2.InferenceTask],
    examples: input_pb2.Input,
    timeout: float,
) -> list[Any]:
    """Run several classifications and regressions on the same examples.

    Each signature gets all examples, whether or not the signatures share an input
    tensor (those that TensorFlow 2 exports do not). There is one result per task.

    Raises:
        InvalidArgument: several models, a signature twice, unknown or of another kind,
            or no examples.
        Unimplemented: a method that is neither `CLASSIFY` nor `REGRESS`.
    """
    _check_tasks(model, tasks)
    return [
        infer(
            model, task.model_spec.signature_name, task.method_name, examples, timeout
        )
        for task in tasks
    ]


def _check_tasks(
    model: LoadedModel, tasks: Sequence[inference_pb2.InferenceTask]
) -> None:
    seen = set()
    for task in tasks:
        if not task.model_spec.name:
            raise InvalidArgument("Found ModelSpec with an empty model name.")
        if task.model_spec.name != tasks[0].model_spec.name:
            raise InvalidArgument(
                "All ModelSpecs in a MultiInferenceRequest must access the same "
                "model name."
            )
        key = task.model_spec.signature_name or DEFAULT_SIGNATURE
        if key in seen:
            raise InvalidArgument(f"Duplicate evaluation of signature: {key}")
        seen.add(key)
        if key not in model.signatures:
            raise InvalidArgument(
                f"Requested signature not found in model graph: {key}"
            )
        _check(model.signatures[key], task.method_name)


def _serialized(examples: input_pb2.Input) -> np.ndarray:
    """Serialized tf.train.Examples [N]; a context comes first in each of them."""
    kind = examples.WhichOneof("kind")
    context = b""
    listed: Any = examples.example_list
    if kind == "example_list_with_context":
        listed = examples.example_list_with_context
        context = listed.context.SerializeToString()
    if not listed.examples:
        raise InvalidArgument("Input is empty.")
    repeated = len(context) * len(listed.examples)
    if repeated > ANNOUNCED_LIMIT:
        raise InvalidArgument(
            f"The context must have at most {ANNOUNCED_LIMIT} bytes in all examples "
            f"together. Received: {repeated}"
        )
    return np.array(
        [context + example.SerializeToString() for example in listed.examples], object
    )


def _check(signature: SignatureDef, method: str) -> _Checked:
    if method not in (CLASSIFY, REGRESS):
        raise Unimplemented(f"Unsupported signature method_name: {method}")
    if len(signature.inputs) != 1:
        raise InvalidArgument("Expected one input Tensor.")
    count = len(signature.outputs)
    if method == CLASSIFY and count not in (1, 2):
        raise InvalidArgument(f"Expected one or two output Tensors, found {count}")
    if method == REGRESS and count != 1:
        raise InvalidArgument("Expected one output Tensor.")
    kind = "classification" if method == CLASSIFY else "regression"
    if "inputs" not in signature.inputs:
        raise InvalidArgument(f"No {kind} inputs found in SignatureDef: {signature}")
    if method == REGRESS:
        if "outputs" not in signature.outputs:
            raise InvalidArgument(
                f"No regression outputs found in SignatureDef: {signature}"
            )
        return ["outputs"], _regression
    wanted = [name for name in ("classes", "scores") if name in signature.outputs]
    if not wanted:
        raise InvalidArgument(
            "Expected classification signature outputs to contain at least one of "
            f'"classes" or "scores". Signature was: {signature}'
        )
    return wanted, _classification


def _classification(outputs: Arrays, count: int) -> Any:
    for name, array in outputs.items():
        if array.ndim != 2:
            raise InvalidArgument(
                "Expected Tensor shape: [batch_size num_classes] but got "
                f"{shape_text(array.shape)}"
            )
        _check_output(
            name, array, "DT_STRING" if name == "classes" else "DT_FLOAT", count
        )
    widths = [array.shape[1] for array in outputs.values()]
    if len(set(widths)) > 1:
        raise InvalidArgument(
            "Tensors class and score should match in dim_size(1). "
            f"Got {outputs['classes'].shape[1]} vs. {outputs['scores'].shape[1]}"
        )
    shape = (count, widths[0])
    labels = outputs.get("classes", np.full(shape, b"", object))
    scores = outputs.get("scores", np.zeros(shape, np.float32))
    result = classification_pb2.ClassificationResult()
    for row_labels, row_scores in zip(labels, scores, strict=True):
        classes = result.classifications.add().classes
        for label, score in zip(row_labels, row_scores.tolist(), strict=True):
            classes.add(label=_text(label), score=score)
    return result


def _text(label: bytes) -> str:
    try:
        return label.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"class label is not UTF-8: {label!r}") from error


def _regression(outputs: Arrays, count: int) -> Any:
    array = outputs["outputs"]
    if not (array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)):
        raise InvalidArgument(
            "Expected output Tensor shape to be either [batch_size] or "
            f"[batch_size, 1] but got {shape_text(array.shape)}"
        )
    _check_output("output", array, "DT_FLOAT", count)
    result = regression_pb2.RegressionResult()
    for value in array.reshape(-1).tolist():
        result.regressions.add(value=value)
    return result


def _check_output(name: str, array: np.ndarray, wanted: str, count: int) -> None:
    received = types_pb2.DataType.Name(type_of(array))
    if received != wanted:
        raise InvalidArgument(f"Expected {name} Tensor of {wanted}. Got: {received}")
    if len(array) != count:
        raise InvalidArgument(
            f"Expected {name} output batch size of {count}. Got: {len(array)}"
        )
