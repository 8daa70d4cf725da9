"""Warm-up: run a version's recorded requests before it becomes available."""

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    predict_pb2,
    prediction_log_pb2,
    regression_pb2,
)

from keras_vit.common.file_names import WARMUP_REQUESTS
from keras_vit.common.tensorflow_messages import reason_of

from .classify_regress import CLASSIFY, REGRESS, infer, multi_infer
from .predict_request import predict
from .session import LoadedModel
from .status_errors import StatusError
from .tensor_proto import arrays_from_protos

MAX_RECORDS = 1000
_TIMEOUT = 600.0


def warm_up(folder: str, run: Callable[[Any], Any], iterations: int) -> int:
    """Run every warm-up request of a version.

    Args:
        iterations: how often each request is run; less than 1 counts as 1.

    Returns:
        The number of requests.

    Raises:
        StatusError: the file is wrong, or a request failed: the load fails with it.
    """
    requests = warmup_requests(folder)
    for request in requests:
        for _ in range(max(1, iterations)):
            run(request)
    return len(requests)


def warmup_requests(folder: str) -> list[Any]:
    """Read the PredictRequests, ... of a version's warm-up file, if there is one.

    Raises:
        StatusError: not a TFRecord file, too many records, or an invalid record.
    """
    path = os.path.join(folder, WARMUP_REQUESTS)
    if not os.path.exists(path):
        return []
    try:
        records = [
            record.numpy()
            for record in tf.data.TFRecordDataset(path).take(MAX_RECORDS + 1)
        ]
    except tf.errors.OpError as error:
        raise StatusError(
            f"{reason_of(error)}. "
            "Please verify your warmup data is in TFRecord format.",
            "DATA_LOSS",
        ) from error
    if len(records) > MAX_RECORDS:
        raise StatusError(
            f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {path}",
            "INVALID_ARGUMENT",
        )
    return [request for record in records for request in _requests(record, path)]


def _requests(record: bytes, path: str) -> list[Any]:
    """The requests of a record: one, or none if it is empty."""
    log = prediction_log_pb2.PredictionLog()
    try:
        log.ParseFromString(record)
    except DecodeError as error:
        raise StatusError(
            f"Failed to parse warmup record: {record[:100]!r} from {path}",
            "INVALID_ARGUMENT",
        ) from error
    match log.WhichOneof("log_type"):
        case None:
            return []
        case "session_run_log" as kind:
            raise StatusError(
                f"Unsupported log_type for warmup: {kind}", "UNIMPLEMENTED"
            )
        case "predict_streamed_log":
            return list(log.predict_streamed_log.request)
        case kind:
            return [getattr(log, kind).request]


def run_request(model: LoadedModel, request: Any) -> None:
    """Run a PredictRequest, ClassificationRequest, ... on a loaded version."""
    if isinstance(request, inference_pb2.MultiInferenceRequest):
        multi_infer(model, request.tasks, request.input, _TIMEOUT)
        return
    key = request.model_spec.signature_name
    match request:
        case predict_pb2.PredictRequest():
            inputs, wanted = arrays_from_protos(request.inputs), request.output_filter
            predict(model, key, inputs, _TIMEOUT, wanted)
        case classification_pb2.ClassificationRequest():
            infer(model, key, CLASSIFY, request.input, _TIMEOUT)
        case regression_pb2.RegressionRequest():
            infer(model, key, REGRESS, request.input, _TIMEOUT)
