"""Checks of TensorFlow Serving's batching, which the local server does not do itself.

With --enable_batching it refuses the parameters files and the requests that TensorFlow
Serving would refuse, and runs each request alone.
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from keras_vit.common.file_names import BATCHING_PARAMETERS

from ..batching_parameters import Queue, check_threads, queue_of, read
from .flags import ServerOptions
from .status_errors import FailedPrecondition, InvalidArgument, StartError

logger = logging.getLogger(__name__)


class Batching:
    """The batching parameters of a server.

    Raises:
        StartError: the parameters file is missing or refused.
    """

    def __init__(self, options: ServerOptions) -> None:
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
                text = f"--batching_parameters_file={path}: {error}"
                raise StartError(text) from error

    def queue(self, folder: str) -> Queue | None:
        """The parameters for a version's folder, or None if it is not batched."""
        if not self._enabled:
            return None
        if not self._per_model:
            return self._common
        path = Path(folder, BATCHING_PARAMETERS)
        if not os.path.exists(path):
            return None
        try:
            return queue_of(read(path))
        except (OSError, ValueError) as error:
            raise InvalidArgument(str(error)) from error


def check_inputs(queue: Queue, arrays: Iterable[np.ndarray]) -> int:
    """Check that inputs can be part of a batch; returns their number of rows."""
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
    count: int
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
    """Check that outputs have as many rows as the inputs."""
    for array in arrays:
        if array.ndim == 0:
            raise FailedPrecondition("Batched output tensor has 0 dimensions")
        if len(array) != rows:
            raise FailedPrecondition(
                "Batched output tensor's 0th dimension does not equal the sum of the "
                "0th dimension sizes of the input tensors"
            )
