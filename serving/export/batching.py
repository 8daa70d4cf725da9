"""Batching of concurrent requests: inside the graph, or by the server."""

import pathlib
import uuid
from collections.abc import Callable

import tensorflow as tf
from google.protobuf import text_format

from keras_vit.common.file_names import BATCHING_PARAMETERS

from .. import batching_parameters
from .host import on_host
from .options import ExportOptions

Function = Callable[[tf.Tensor], dict[str, tf.Tensor]]


def batched(
    function: Function, rows: tf.TensorSpec, options: ExportOptions
) -> Function:
    """Batch the rows of concurrent calls of a function.

    A batch waits `batch_timeout_micros` to fill up, and a call of more than
    `max_batch_size` rows runs in parts. All callers of the result share a queue; if it
    is full, the call fails with UNAVAILABLE.

    Args:
        function: From rows to named outputs of as many rows.
    """
    computation = tf.function(
        function, input_signature=[rows], autograph=False
    ).get_concrete_function()
    outputs = computation.structured_outputs
    # Queues are shared by name within a process: a fixed name would mix the rows of
    # different models.
    queue = uuid.uuid4().hex

    def run(batch: tf.Tensor) -> dict[str, tf.Tensor]:
        values = tf.raw_ops.BatchFunction(
            in_tensors=[batch],
            captured_tensors=computation.captured_inputs,
            f=computation,
            num_batch_threads=options.num_batch_threads,
            # With splitting this limits a call's rows; the last allowed size limits a
            # batch's.
            max_batch_size=max(options.max_images, options.max_batch_size),
            allowed_batch_sizes=options.allowed_batch_sizes,
            enable_large_batch_splitting=True,
            batch_timeout_micros=options.batch_timeout_micros,
            max_enqueued_batches=options.max_enqueued_batches,
            shared_name=queue,
            Tout=[tensor.dtype for tensor in computation.outputs],
        )
        named = tf.nest.pack_sequence_as(outputs, values)
        ensure_shape = on_host(tf.ensure_shape)  # the batching operation's are there
        return {
            name: ensure_shape(value, outputs[name].shape)
            for name, value in named.items()
        }

    return run


def write_parameters(folder: pathlib.Path, options: ExportOptions) -> None:
    """Write the file that makes TensorFlow Serving batch requests of this version.

    Raises:
        ValueError: TensorFlow Serving would refuse it.
    """
    largest = max(options.max_images, options.max_batch_size)
    parameters = batching_parameters.new_message()
    parameters.max_batch_size.value = largest
    parameters.enable_large_batch_splitting.value = True
    parameters.max_execution_batch_size.value = options.max_batch_size
    parameters.batch_timeout_micros.value = options.batch_timeout_micros
    parameters.max_enqueued_batches.value = options.max_enqueued_batches
    parameters.num_batch_threads.value = options.num_batch_threads
    # No batch has the largest size, but the last one must be max_batch_size.
    sizes = sorted({*options.allowed_batch_sizes, largest})
    parameters.allowed_batch_sizes.extend(sizes)
    batching_parameters.check_threads(parameters)
    batching_parameters.queue_of(parameters)
    text = text_format.MessageToString(parameters)
    (folder / BATCHING_PARAMETERS).write_text(text, "utf-8")
