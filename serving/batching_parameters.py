"""TensorFlow Serving's batching parameters: the message and its validation.

Used by export for what it writes and by the local server for what it reads. Rules and
messages are those of TensorFlow Serving 2.20, in its order: `WrapSessionForBatching`
and `GetQueueOptions` of bundle_factory_util, then `AddQueue` of TensorFlow's
shared_batch_scheduler.h. Does not import TensorFlow.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)

# Missing from tensorflow-serving-api.
_FILE_DESCRIPTOR = """
name: "batching_parameters.proto" package: "tensorflow.serving" syntax: "proto3"
dependency: "google/protobuf/wrappers.proto"
message_type {
  name: "BatchingParameters"
  field { name: "max_batch_size" number: 1 %(int64)s }
  field { name: "batch_timeout_micros" number: 2 %(int64)s }
  field { name: "max_enqueued_batches" number: 3 %(int64)s }
  field { name: "num_batch_threads" number: 4 %(int64)s }
  field { name: "thread_pool_name" number: 5 %(string)s }
  field { name: "allowed_batch_sizes" number: 6 type: TYPE_INT64 label: LABEL_REPEATED }
  field { name: "pad_variable_length_inputs" number: 7 type: TYPE_BOOL
          label: LABEL_OPTIONAL }
  field { name: "enable_large_batch_splitting" number: 8 %(bool)s }
  field { name: "max_execution_batch_size" number: 9 %(int64)s }
}
"""
_WRAPPER = 'type: TYPE_MESSAGE label: LABEL_OPTIONAL type_name: ".google.protobuf.%s"'
_WRAPPERS = {
    "int64": _WRAPPER % "Int64Value",
    "string": _WRAPPER % "StringValue",
    "bool": _WRAPPER % "BoolValue",
}


@dataclasses.dataclass(frozen=True)
class Queue:
    """The parameters of a request queue, with the scheduler's defaults.

    Attributes:
        allowed_batch_sizes: sizes that batches are padded to; any size if empty.
        max_batch_size: rows of one request; without splitting, of a batch too.
        batch_timeout_micros: how long a batch waits to fill up.
        max_enqueued_batches: batches that wait before requests are rejected.
        enable_large_batch_splitting: whether a request may run in several batches.
        max_execution_batch_size: rows of one batch, if requests are split.
    """

    allowed_batch_sizes: tuple[int, ...] = ()
    max_batch_size: int = 1000
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 10
    enable_large_batch_splitting: bool = False
    max_execution_batch_size: int = 1000

    @property
    def last(self) -> int:
        """The largest size that batches are padded to."""
        return self.allowed_batch_sizes[-1] if self.allowed_batch_sizes else 0


# What must hold, and TensorFlow Serving's message where it does not.
RULES: tuple[tuple[Callable[[Queue], bool], str], ...] = (
    (
        # Even with splitting, where batches run in max_execution_batch_size.
        lambda q: not q.allowed_batch_sizes or q.last == q.max_batch_size,
        "Last entry in allowed_batch_sizes must match max_batch_size; last entry was "
        "{q.last}; expected {q.max_batch_size}",
    ),
    (
        lambda q: q.max_batch_size > 0,
        "input_batch_size_limit must be positive; was {q.max_batch_size}",
    ),
    (
        lambda q: q.batch_timeout_micros >= 0,
        "batch_timeout_micros must be non-negative; was {q.batch_timeout_micros}",
    ),
    (
        # Without splitting, 0 counts as 1.
        lambda q: q.max_enqueued_batches >= q.enable_large_batch_splitting,
        "max_enqueued_batches must be positive; was {q.max_enqueued_batches}",
    ),
    (
        lambda q: (
            not q.enable_large_batch_splitting
            or q.max_batch_size >= q.max_execution_batch_size
        ),
        "When enable_large_batch_splitting is true, input_batch_size_limit must be "
        "greater than or equal to max_execution_batch_size."
        "1{q.max_batch_size}{q.max_execution_batch_size}",
    ),
    (
        # Not a rule of TensorFlow Serving, which loads and then rejects all requests.
        lambda q: q.max_execution_batch_size > 0,
        "max_execution_batch_size must be positive; was {q.max_execution_batch_size}",
    ),
)


def read(path: pathlib.Path) -> Any:
    """Read a BatchingParameters message in text format.

    Raises:
        ValueError: the file is invalid.
        OSError: it cannot be read.
    """
    try:
        return text_format.Parse(path.read_text("utf-8"), new_message())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"Invalid protobuf file: '{path}': {reason}") from error


def check_threads(parameters: Any) -> None:
    """Check the number of threads, which all models of a server share."""
    threads = parameters.num_batch_threads.value
    if parameters.HasField("num_batch_threads") and threads < 1:
        raise ValueError(f"num_batch_threads must be positive; was {threads}")


def queue_of(parameters: Any) -> Queue:
    """The queue of each signature of a model.

    Raises:
        ValueError: TensorFlow Serving would not load the model.
    """
    given: dict[str, Any] = {
        field.name: getattr(parameters, field.name).value
        for field in dataclasses.fields(Queue)
        if field.name != "allowed_batch_sizes" and parameters.HasField(field.name)
    }
    if not given.get("enable_large_batch_splitting"):
        given.pop("max_execution_batch_size", None)
    elif "max_execution_batch_size" not in given:
        given["max_execution_batch_size"] = given.get("max_batch_size", 0)
    queue = Queue(tuple(parameters.allowed_batch_sizes), **given)
    for holds, text in RULES:
        if not holds(queue):
            raise ValueError(text.format(q=queue))
    return queue


def new_message() -> Any:
    """An empty BatchingParameters message."""
    return message_class(_FILE_DESCRIPTOR % _WRAPPERS, "BatchingParameters")()


@functools.cache
def message_class(file_descriptor: str, name: str) -> type[Any]:
    """A message of a file that tensorflow-serving-api lacks, in text format."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(text_format.Parse(file_descriptor, descriptor_pb2.FileDescriptorProto()))
    message: type[Any] = message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"tensorflow.serving.{name}")
    )
    return message
