"""One loaded version of a model: its SignatureDefs, and a session that runs them.

A version has a `tf.compat.v1.Session` of its own, as in TensorFlow Serving: a run has a
real deadline, kernel errors keep their text, and closing the session frees it.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow.python.client import pywrap_tf_session

from ..batching_parameters import Queue
from .batching_checks import check_inputs, check_outputs
from .completeness import check_signatures
from .flags import ServerOptions
from .pace import Pace, is_steady
from .status_errors import (
    CODES,
    FailedPrecondition,
    InvalidArgument,
    ServingError,
    StartError,
)
from .tensor_proto import type_of

DEFAULT_SIGNATURE = "serving_default"
# RunOptions of a short run: in the thread that asks for it, for which no other one has
# to wake up (30 microseconds); a deadline would not be noticed there.
_SHORT = config_pb2.RunOptions(inter_op_thread_pool=-1).SerializeToString()


def type_name(data_type: int) -> str:
    """The name of a DataType in error texts: `float` for DT_FLOAT."""
    return types_pb2.DataType.Name(data_type).removeprefix("DT_").lower()


def from_tensorflow(error: tf.errors.OpError) -> ServingError:
    """The error with TensorFlow's code and the kernel's own text.

    Session.run raises a second error whose text tells about Python code; the first
    one, still its context, holds what TensorFlow Serving would answer.
    """
    first = error.__context__
    told = first if isinstance(first, tf.errors.OpError) else error
    return ServingError(told.message, CODES[error.error_code])


def session_config(options: ServerOptions) -> config_pb2.ConfigProto:
    """The ConfigProto that the flags ask for.

    TensorFlow's threads do not spin while they wait, unless `experimental` in the file
    says so: spinning takes the processor from the threads that read and write requests,
    and on two cores a fifth of it from the model.

    Raises:
        StartError: `tensorflow_session_config_file` is missing or is none.
    """
    config = config_pb2.ConfigProto()
    config.experimental.disable_thread_spinning = True
    if path := options.tensorflow_session_config_file:
        try:
            with open(path, encoding="utf-8") as file:
                read = text_format.Parse(file.read(), config_pb2.ConfigProto())
        except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
            text = " ".join(str(error).split())
            raise StartError(
                f"--tensorflow_session_config_file {path} is no ConfigProto: {text}"
            ) from error
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
        folder: the version's folder, which holds saved_model.pb.
        tags: which graph of the SavedModel.
        config: settings of the session.
        on_run: is told how many microseconds each run took.
        without_deadline: how many runs of all models may go on without one.
        queue: what TensorFlow Serving would batch requests in, if it would.

    Attributes:
        signatures: the SignatureDefs by key, as saved_model.pb has them.

    Raises:
        ServingError: the folder holds no SavedModel that TensorFlow Serving would run.
    """

    def __init__(
        self,
        folder: str,
        tags: Sequence[str],
        config: config_pb2.ConfigProto,
        on_run: Callable[[int], None],
        without_deadline: threading.Semaphore,
        queue: Queue | None = None,
    ):
        if not os.path.exists(os.path.join(folder, "saved_model.pb")):
            raise ServingError(
                "Could not find SavedModel .pb or .pbtxt at supplied export "
                f"directory path: {folder}",
                "NOT_FOUND",
            )
        self._graph = tf.Graph()
        self._session = tf.compat.v1.Session(graph=self._graph, config=config)
        try:
            with self._graph.as_default(), _quiet():
                meta_graph = tf.compat.v1.saved_model.load(
                    self._session, list(tags), folder
                )
            _refuse_xla(meta_graph.graph_def)
            check_signatures(self._graph, meta_graph)
        except tf.errors.OpError as error:
            self.close()
            raise from_tensorflow(error) from error
        # RuntimeError: no graph with these tags; ValueError: a graph of unknown
        # operations; the others: files that are none.
        except (RuntimeError, OSError, ValueError, KeyError, TypeError) as error:
            self.close()
            text = f"cannot load {folder}: {' '.join(str(error).split())}"
            raise ServingError(text) from error
        except ServingError:
            self.close()
            raise
        self.signatures: Mapping[str, SignatureDef] = dict(meta_graph.signature_def)
        self._tensors: dict[str, Any] = {}
        self._on_run = on_run
        self._expected = {key: _expected(s) for key, s in self.signatures.items()}
        functions = {f.signature.name: f for f in meta_graph.graph_def.library.function}
        self._paces = {
            key: Pace(self._is_steady(signature, functions))
            for key, signature in self.signatures.items()
        }
        self._without_deadline = without_deadline
        self._queue = queue

    def _is_steady(self, signature: SignatureDef, functions: Mapping[str, Any]) -> bool:
        """Whether equal sizes take equal times; of strings the sizes tell nothing."""
        infos = [*signature.inputs.values(), *signature.outputs.values()]
        if any(info.dtype == types_pb2.DT_STRING for info in infos):
            return False
        names = [info.name for info in signature.outputs.values()]
        try:
            return is_steady(self._graph, functions, names)
        except (KeyError, ValueError):  # a signature that no request can run
            return False

    def run(
        self,
        key: str,
        feeds: Mapping[str, np.ndarray],
        fetches: Sequence[str],
        timeout: float,
    ) -> dict[str, np.ndarray]:
        """Runs outputs of a signature.

        Args:
            key: one of `signatures`.
            feeds: arrays by the alias of the input.
            fetches: aliases of outputs.
            timeout: seconds.

        Returns:
            Arrays by alias; strings as arrays of bytes.

        Raises:
            ServingError: a type that contradicts the signature, sizes that do not fit
                into a batch, an error of a kernel, or the deadline. What shapes fit is
                up to the graph.
            MayTakeLong: not in the thread of an event loop; see `Pace`.
        """
        expected, outputs = self._expected[key], self.signatures[key].outputs
        rows = check_inputs(self._queue, feeds.values()) if self._queue else 0
        fed = {}
        for position, (alias, array) in enumerate(sorted(feeds.items())):
            name, data_type = expected[alias]
            _check_type(position, data_type, array)
            fed[self._tensor(name)] = array
        wanted = [self._tensor(outputs[alias].name) for alias in fetches]
        pace = self._paces[key]
        shapes = [array.shape for array in fed.values()]
        here, ends = pace.runs_here(shapes), pace.ends_before(timeout)
        begin = pace.begin()
        try:
            if here:
                values = self._run(fed, wanted, _SHORT)
            elif ends and self._without_deadline.acquire(blocking=False):
                try:
                    values = self._run(fed, wanted, b"")
                finally:
                    self._without_deadline.release()
            else:
                values = self._run(fed, wanted, _deadline(timeout))
        finally:
            microseconds = pace.end(begin)
            self._on_run(microseconds)
        found = {
            alias: np.asarray(value, object if isinstance(value, bytes) else None)
            for alias, value in zip(fetches, values, strict=True)
        }
        if self._queue:
            check_outputs(rows, found.values())
        count = sum(array.size for array in found.values())
        pace.note(shapes, count, microseconds)
        return found

    def _tensor(self, name: str) -> Any:
        """What TensorFlow's C interface calls the tensor of a SignatureDef."""
        if name not in self._tensors:
            full_name = name if ":" in name else f"{name}:0"
            try:
                tensor = self._graph.get_tensor_by_name(full_name)
            except KeyError as error:  # an operation, such as an initialiser
                raise InvalidArgument(
                    f"Tried to fetch data for '{name}', which produces no output.  To "
                    f"run to a node but not fetch any data, pass '{name}' as an "
                    "argument to the 'target_node_names' argument of the Session::Run "
                    "API."
                ) from error
            except ValueError as error:
                raise InvalidArgument(str(error)) from error
            self._tensors[name] = tensor._as_tf_output()
        return self._tensors[name]

    def _run(
        self,
        feeds: dict[Any, np.ndarray],
        fetches: list[Any],
        options: bytes,
    ) -> list[Any]:
        """Session.run without its checks and conversions, 80 microseconds a run."""
        buffer = pywrap_tf_session.TF_NewBufferFromString(options)
        try:
            return self._session._call_tf_sessionrun(buffer, feeds, fetches, [], None)
        except tf.errors.CancelledError as error:  # the session is closed
            raise ServingError(error.message, "UNAVAILABLE") from error
        except tf.errors.OpError as error:
            raise from_tensorflow(error) from error
        except (ValueError, TypeError) as error:  # an array that is no tensor
            raise InvalidArgument(str(error)) from error
        finally:
            pywrap_tf_session.TF_DeleteBuffer(buffer)

    def close(self) -> None:
        """Frees the variables; runs that are under way fail."""
        self._session.close()


def _expected(signature: SignatureDef) -> dict[str, tuple[str, int]]:
    """The name and DataType of each input, read from the message once."""
    return {alias: (info.name, info.dtype) for alias, info in signature.inputs.items()}


def _deadline(timeout: float) -> bytes:
    """RunOptions with a deadline after so many seconds."""
    milliseconds = max(1, int(timeout * 1000))
    return config_pb2.RunOptions(timeout_in_ms=milliseconds).SerializeToString()


def _check_type(position: int, data_type: int, array: np.ndarray) -> None:
    received = type_of(array)
    if received != data_type:
        raise InvalidArgument(
            f"Expects arg[{position}] to be {type_name(data_type)} "
            f"but {type_name(received)} is provided"
        )


def _refuse_xla(graph: graph_pb2.GraphDef) -> None:
    """TensorFlow Serving has XLA off; what must be compiled fails there."""
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    attributes = [f.attr for f in graph.library.function] + [n.attr for n in nodes]
    if any("_XlaMustCompile" in a and a["_XlaMustCompile"].b for a in attributes):
        raise FailedPrecondition(
            "the model must be compiled by XLA (jit_compile=True), which TensorFlow "
            "Serving has off; export it with jit_compile=False"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the loader from telling that it is deprecated."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
