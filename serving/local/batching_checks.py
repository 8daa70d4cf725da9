"""What TensorFlow Serving's batching refuses; the local server itself runs no batches.

With --enable_batching it reads the same files, and refuses what TensorFlow Serving
would: files at the start or when a version is loaded, requests that cannot share a
batch.
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..batching_parameters import FILE, Queue, check_threads, queue_of, read
from .flags import ServerOptions
from .status_errors import FailedPrecondition, InvalidArgument, StartError

logger = logging.getLogger(__name__)


class Batching:
    """The queues that TensorFlow Serving would put before the sessions.

    Args:
        options: the flags.

    Raises:
        StartError: TensorFlow Serving could serve nothing with the parameters file.
    """

    def __init__(self, options: ServerOptions):
        self._enabled = options.enable_batching
        self._per_model = options.enable_per_model_batching_parameters
        self._common = Queue()
        if self._enabled:
            logger.info(
                "--enable_batching: what TensorFlow Serving would refuse is refused, "
                "but each request runs alone here"
            )
        if path := options.batching_parameters_file:
            try:
                parameters = read(Path(path))
                check_threads(parameters)
                if not self._per_model:
                    self._common = queue_of(parameters)
            except OSError as error:
                raise StartError(f"cannot read {path}: {error.strerror}") from error
            except ValueError as error:
                raise StartError(f"--batching_parameters_file={path}: {error}") from (
                    error
                )

    def queue(self, folder: str) -> Queue | None:
        """The queue of a version, or None if its requests are not batched.

        Args:
            folder: the version's folder.

        Raises:
            InvalidArgument: TensorFlow Serving would not load the version.
        """
        if not self._enabled:
            return None
        if not self._per_model:
            return self._common
        path = Path(folder, FILE)
        if not os.path.exists(path):
            return None
        try:
            return queue_of(read(path))
        except (OSError, ValueError) as error:
            raise InvalidArgument(str(error)) from error


def check_inputs(queue: Queue, arrays: Iterable[np.ndarray]) -> int:
    """Checks the inputs of a run.

    Returns:
        How many rows they have.

    Raises:
        InvalidArgument: they could not be part of a batch.
    """
    shapes = [array.shape for array in arrays]
    if not all(shapes):
        raise InvalidArgument(
            "Batching Run() input tensors must have at least one dimension"
        )
    rows = {shape[0] for shape in shapes}
    if len(rows) != 1:
        raise InvalidArgument(
            "Batching Run() input tensors must have equal 0th-dimension size"
        )
    (count,) = rows
    if count > queue.max_batch_size:
        raise InvalidArgument(
            f"Task size {count} is larger than maximum input batch size "
            f"{queue.max_batch_size}"
        )
    if count == 0:
        raise InvalidArgument(
            "With --enable_batching, TensorFlow Serving never answers an empty batch"
        )
    return count


def check_outputs(rows: int, arrays: Iterable[np.ndarray]) -> None:
    """Checks that the outputs of a run can be handed back row by row.

    Raises:
        FailedPrecondition: they have other sizes than the inputs.
    """
    for array in arrays:
        if array.ndim == 0:
            raise FailedPrecondition("Batched output tensor has 0 dimensions")
        if len(array) != rows:
            raise FailedPrecondition(
                "Batched output tensor's 0th dimension does not equal the sum of the "
                "0th dimension sizes of the input tensors"
            )
