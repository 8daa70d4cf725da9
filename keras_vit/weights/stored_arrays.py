"""Arrays inside a file, and how a file that is refused is reported."""

import contextlib
import dataclasses
import math
import mmap
import pathlib
from collections.abc import Callable, Iterator
from typing import NoReturn

import ml_dtypes
import numpy as np

from keras_vit.errors import WeightsFileError
from keras_vit.typing import Array

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# A compressed file may hold this many times its bytes; weights shrink by a tenth. A
# small one may hold `SMALL` bytes, as an array of zeros shrinks to nothing.
EXPANSION = 16
SMALL = 2**26
AXES = 32  # of an array, as in NumPy 1


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """One array of a file, read on demand.

    Args:
        shape: Its shape.
        dtype: Its NumPy type; bfloat16 is that of `ml_dtypes`.
        read: Gives the array. It may be a read-only, unaligned view of the file.
        verify: Raises `WeightsFileError` where the file's checksum says that the bytes
            are damaged. Of the formats .npz and PyTorch's have checksums.

    Raises:
        ValueError: No array can have this shape, or its values are not plain ones.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], Array]
    verify: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        # The type, because True is an integer to Python.
        counts = all(type(length) is int and length >= 0 for length in self.shape)
        if not counts or len(self.shape) > AXES:
            raise ValueError(f"no array has the shape {self.shape!r:.200}")
        if self.dtype.names or self.dtype.subdtype:
            raise ValueError(f"no weights are of the type {self.dtype}")

    @property
    def announced(self) -> int:
        """Bytes by shape and dtype, where an empty axis counts as one."""
        lengths = (max(length, 1) for length in self.shape)
        return math.prod(lengths) * max(self.dtype.itemsize, 1)


def refuse(
    path: pathlib.Path,
    problem: str,
    wanted: str = "an .npz, .safetensors, HDF5 or PyTorch file of weights",
) -> NoReturn:
    """Raise `WeightsFileError` for this path and problem."""
    raise WeightsFileError(
        f"`path` must be {wanted}. Received: {str(path)!r}, {problem}"
    )


@contextlib.contextmanager
def refusing(path: pathlib.Path) -> Iterator[None]:
    """Convert any parser's error into a `WeightsFileError`."""
    try:
        yield
    except (WeightsFileError, MemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if len(reason) > 800:  # a name, or a config before Keras's reason
            reason = f"{reason[:200]} ... {reason[-600:]}"
        raise WeightsFileError(
            "`path` must be a whole file of weights. "
            f"Received: {str(path)!r}, which is truncated or corrupt ({reason})"
        ) from error


def check_announced(path: pathlib.Path, held: int, announced: int) -> None:
    """Raise WeightsFileError where bytes announce more than a compression explains."""
    if announced > max(SMALL, EXPANSION * held):
        refuse(path, f"whose {held:,} bytes announce arrays of {announced:,}")


def map_file(path: pathlib.Path) -> mmap.mmap:
    """The bytes of a file, not closed explicitly: every view of them needs them."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
