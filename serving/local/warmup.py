"""Warm-up: runs a version's recorded requests before it is available."""

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from .errors import ServingError

FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
MAX_RECORDS = 1000


def warmup_requests(folder: str) -> list[Any]:
    """The requests of a version's warm-up file; none without a file.

    Args:
        folder: the version's folder.

    Returns:
        PredictRequests, ClassificationRequests, ...

    Raises:
        ServingError: no TFRecord file, too many records, or a record that is none.
    """
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        return []
    try:
        records = [
            record.numpy()
            for record in tf.data.TFRecordDataset(path).take(MAX_RECORDS + 1)
        ]
    except tf.errors.OpError as error:
        raise ServingError(
            f"{error.message} Please verify your warmup data is in TFRecord format.",
            "DATA_LOSS",
        ) from error
    if len(records) > MAX_RECORDS:
        raise ServingError(
            f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {path}",
            "INVALID_ARGUMENT",
        )
    return [_request(record) for record in records]


def _request(record: bytes) -> Any:
    log = prediction_log_pb2.PredictionLog()
    try:
        log.ParseFromString(record)
    except ValueError as error:
        raise ServingError(
            "Failed to parse warmup record: not a PredictionLog", "INVALID_ARGUMENT"
        ) from error
    kind = log.WhichOneof("log_type")
    if kind is None or not hasattr(getattr(log, kind), "request"):
        raise ServingError(f"Unsupported log_type for warmup: {kind}", "UNIMPLEMENTED")
    return getattr(log, kind).request


def warm_up(folder: str, run: Callable[[Any], Any], iterations: int) -> int:
    """Runs every warm-up request.

    Args:
        folder: the version's folder.
        run: runs one request on that version.
        iterations: how often each is run; less than 1 counts as 1.

    Returns:
        How many records there were.

    Raises:
        ServingError: the file is wrong, or a request failed: the load fails with it.
    """
    requests = warmup_requests(folder)
    for request in requests:
        for _ in range(max(1, iterations)):
            run(request)
    return len(requests)
