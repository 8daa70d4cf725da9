"""Warm-up: runs a version's recorded requests before it is available."""

import os
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import prediction_log_pb2

from .status_errors import ServingError

FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
MAX_RECORDS = 1000
_OF_THE_DATA_SET = re.compile(r"^\{\{.*?\}\} | \[Op:.*$", re.DOTALL)


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
            f"{_OF_THE_DATA_SET.sub('', error.message)}. "
            "Please verify your warmup data is in TFRecord format.",
            "DATA_LOSS",
        ) from error
    if len(records) > MAX_RECORDS:
        raise ServingError(
            f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {path}",
            "INVALID_ARGUMENT",
        )
    return [request for record in records for request in _requests(record, path)]


def _requests(record: bytes, path: str) -> list[Any]:
    """The requests of a record: one, or none if it logs nothing."""
    log = prediction_log_pb2.PredictionLog()
    try:
        log.ParseFromString(record)
    except DecodeError as error:
        raise ServingError(
            f"Failed to parse warmup record: {record[:100]!r} from {path}",
            "INVALID_ARGUMENT",
        ) from error
    match log.WhichOneof("log_type"):
        case None:
            return []
        case "session_run_log" as kind:
            raise ServingError(
                f"Unsupported log_type for warmup: {kind}", "UNIMPLEMENTED"
            )
        case "predict_streamed_log":
            return list(log.predict_streamed_log.request)
        case kind:
            return [getattr(log, kind).request]


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
