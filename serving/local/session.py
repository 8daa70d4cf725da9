"""One loaded version of a model: its SignatureDefs, and a session that runs them.

Each version has its own `tf.compat.v1.Session`, as in TensorFlow Serving: runs have a
deadline, kernel errors keep their text, and closing the session frees the memory.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf.meta_graph_pb2 import (
    MetaGraphDef,
    SignatureDef,
    TensorInfo,
)

from keras_vit.common.file_names import SAVED_MODEL

from ..batching_parameters import Queue
from .batching_checks import check_inputs, check_outputs
from .config import read_text_proto
from .flags import ServerOptions
from .status_errors import (
    CODES,
    FailedPrecondition,
    InvalidArgument,
    StatusError,
)
from .tensor_proto import Arrays, type_of

DEFAULT_SIGNATURE = "serving_default"


def data_type_name(data_type: int) -> str:
    """The name of a DataType in error messages: `float` for DT_FLOAT."""
    name: str = types_pb2.DataType.Name(data_type)
    return name.removeprefix("DT_").lower()


def from_tensorflow(error: tf.errors.OpError) -> StatusError:
    """The error with TensorFlow's code and the kernel's own message.

    Session.run raises a second error that adds Python stack traces; the first one,
    still its context, has the message of TensorFlow Serving.
    """
    first = error.__context__
    original = first if isinstance(first, tf.errors.OpError) else error
    return StatusError(original.message, CODES[error.error_code])


def session_config(options: ServerOptions) -> config_pb2.ConfigProto:
    """The ConfigProto that the flags ask for.

    Threads do not spin while they wait, unless `experimental` in the file says so:
    spinning takes CPU time from the threads that read and write requests.

    Raises:
        StartError: `tensorflow_session_config_file` is missing or invalid.
    """
    config = config_pb2.ConfigProto()
    config.experimental.disable_thread_spinning = True
    if path := options.tensorflow_session_config_file:
        read = read_text_proto(path, config_pb2.ConfigProto())
        if read.HasField("experimental"):
            config.ClearField("experimental")
        config.MergeFrom(read)
    both = options.tensorflow_session_parallelism
    if intra := both or options.tensorflow_intra_op_parallelism:
        config.intra_op_parallelism_threads = intra
    if inter := both or options.tensorflow_inter_op_parallelism:
        config.inter_op_parallelism_threads = inter
    if fraction := options.per_process_gpu_memory_fraction:
        config.gpu_options.per_process_gpu_memory_fraction = fraction
    return config


class LoadedModel:
    """A version of a model that can run.

    Args:
        tags: which graph of the SavedModel.
        on_run: called with the microseconds that each run took.
        queue: the batching that TensorFlow Serving would do, if any.

    Attributes:
        signatures: the SignatureDefs by key.

    Raises:
        StatusError: the folder holds no SavedModel that TensorFlow Serving would run.
    """

    def __init__(
        self,
        folder: str,
        tags: Sequence[str],
        config: config_pb2.ConfigProto,
        on_run: Callable[[int], None],
        queue: Queue | None = None,
    ) -> None:
        if not os.path.exists(os.path.join(folder, SAVED_MODEL)):
            raise StatusError(
                "Could not find SavedModel .pb or .pbtxt at supplied export "
                f"directory path: {folder}",
                "NOT_FOUND",
            )
        self._graph = tf.Graph()
        self._session = tf.compat.v1.Session(graph=self._graph, config=config)
        try:
            meta_graph = self._load(folder, list(tags))
        except StatusError:
            self.close()
            raise
        self.signatures: Mapping[str, SignatureDef] = dict(meta_graph.signature_def)
        self._tensors: dict[str, tf.Tensor] = {}
        self._on_run = on_run
        self._queue = queue

    def _load(self, folder: str, tags: list[str]) -> MetaGraphDef:
        try:
            with self._graph.as_default(), _quiet():
                meta_graph = tf.compat.v1.saved_model.load(self._session, tags, folder)
        except tf.errors.OpError as error:
            raise from_tensorflow(error) from error
        # RuntimeError: no graph with these tags; ValueError: unknown operations; the
        # others: damaged files.
        except (RuntimeError, OSError, ValueError, KeyError, TypeError) as error:
            text = f"cannot load {folder}: {' '.join(str(error).split())}"
            raise StatusError(text) from error
        _refuse_xla(meta_graph.graph_def)
        return meta_graph

    def run(
        self,
        key: str,
        feeds: Mapping[str, np.ndarray],
        fetches: Sequence[str],
        timeout: float,
    ) -> Arrays:
        """Run a signature.

        Args:
            feeds: arrays by the alias of the input.
            fetches: aliases of the outputs to return, strings as arrays of bytes.

        Raises:
            StatusError: a type or shape that contradicts the signature, sizes that
                cannot be batched, an error of a kernel, or the deadline.
        """
        signature = self.signatures[key]
        rows = check_inputs(self._queue, feeds.values()) if self._queue else 0
        fed = {}
        for position, (alias, array) in enumerate(sorted(feeds.items())):
            info = signature.inputs[alias]
            _check_input(position, alias, info, array)
            fed[self._tensor(info.name)] = array
        wanted = [self._tensor(signature.outputs[alias].name) for alias in fetches]
        values = self._run(wanted, fed, timeout)
        found = {
            alias: np.asarray(value, object if isinstance(value, bytes) else None)
            for alias, value in zip(fetches, values, strict=True)
        }
        if self._queue:
            check_outputs(rows, found.values())
        return found

    def _run(
        self,
        wanted: list[tf.Tensor],
        fed: dict[tf.Tensor, np.ndarray],
        timeout: float,
    ) -> list[Any]:
        options = config_pb2.RunOptions(timeout_in_ms=max(1, int(timeout * 1000)))
        begin = time.perf_counter_ns()
        try:
            values: list[Any] = self._session.run(wanted, fed, options)
        # CancelledError, RuntimeError: the session is closed, now or already.
        except (tf.errors.CancelledError, RuntimeError) as error:
            raise StatusError("the version is unloaded", "UNAVAILABLE") from error
        except tf.errors.OpError as error:
            raise from_tensorflow(error) from error
        except (ValueError, TypeError) as error:  # an array that is not a tensor
            raise InvalidArgument(str(error)) from error
        finally:
            self._on_run((time.perf_counter_ns() - begin) // 1000)
        return values

    def _tensor(self, name: str) -> tf.Tensor:
        """The tensor of a SignatureDef's input or output."""
        if name not in self._tensors:
            full_name = name if ":" in name else f"{name}:0"
            try:
                self._tensors[name] = self._graph.get_tensor_by_name(full_name)
            except KeyError as error:  # an operation, such as an initializer
                raise InvalidArgument(
                    f"Tried to fetch data for '{name}', which produces no output.  To "
                    f"run to a node but not fetch any data, pass '{name}' as an "
                    "argument to the 'target_node_names' argument of the Session::Run "
                    "API."
                ) from error
            except ValueError as error:
                raise InvalidArgument(str(error)) from error
        return self._tensors[name]

    def close(self) -> None:
        """Free the variables; running requests fail."""
        self._session.close()


def _check_input(
    position: int, alias: str, info: TensorInfo, array: np.ndarray
) -> None:
    received = type_of(array)
    if received != info.dtype:
        raise InvalidArgument(
            f"Expects arg[{position}] to be {data_type_name(info.dtype)} "
            f"but {data_type_name(received)} is provided"
        )
    # TensorFlow Serving leaves shapes to the graph; `Session.run` does not.
    if not tf.TensorShape(info.tensor_shape).is_compatible_with(array.shape):
        wanted = [dim.size for dim in info.tensor_shape.dim]
        raise InvalidArgument(
            f"Shape of tensor {alias} {shape_text(array.shape)} is not compatible with "
            f"expected shape {shape_text(wanted)}."
        )


def shape_text(shape: Iterable[int]) -> str:
    """A shape in error messages: `[?,32,32,3]`."""
    return f"[{','.join('?' if size == -1 else str(size) for size in shape)}]"


def _refuse_xla(graph: graph_pb2.GraphDef) -> None:
    """XLA is off in TensorFlow Serving: a graph that must be compiled fails there."""
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    attributes = [f.attr for f in graph.library.function] + [n.attr for n in nodes]
    if any("_XlaMustCompile" in a and a["_XlaMustCompile"].b for a in attributes):
        raise FailedPrecondition(
            "the model must be compiled by XLA (jit_compile=True), which TensorFlow "
            "Serving has off; export it with jit_compile=False"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the loader's deprecation warning."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
