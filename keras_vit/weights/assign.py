"""Puts an array of a file into a weight, quickly and without spare copies."""

import mmap

import numpy as np

# Columns at once of a matrix that lies transposed: one line of the processor's cache.
COLUMNS = 16
# Bytes from which on a spare copy matters.
LARGE = 2**20


class _Fresh:
    """An array that nobody else holds or changes.

    TensorFlow copies every ndarray before it copies it into its own memory. What comes
    by `__array__` it copies into its own at once.
    """

    def __init__(self, array: np.ndarray):
        self.array = array

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self.array


def fresh_copy(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array in memory of its own and of this type, contiguous.

    A weight must not be assigned a view of a mapped file: JAX would keep it, and the
    weight would change with the file.
    """
    fresh = _empty(array.shape, np.dtype(dtype))
    if array.ndim == 2 and array.strides[0] < array.strides[1]:
        # NumPy copies row by row, which from a transposed matrix is five times as slow.
        for start in range(0, array.shape[1], COLUMNS):
            part = slice(start, start + COLUMNS)
            fresh[:, part] = array[:, part]
    else:
        fresh[...] = array
    return fresh


def assign(weight, fresh: np.ndarray) -> None:
    """`weight.assign(fresh)` without another copy beside the weight.

    Args:
        weight: A `keras.Variable`.
        fresh: Of its shape and type, from `fresh_copy`; belongs to the weight now.
    """
    if fresh.nbytes >= LARGE:
        # The weight lets go of its old values, into whose memory the new ones can go.
        weight.assign(_Fresh(_untouched(fresh.shape, fresh.dtype)))
    weight.assign(_Fresh(fresh))


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that does not begin at a multiple of 64 bytes.

    TensorFlow and JAX would keep one that does. The weight's former memory, which they
    do not give back to the system, would then lie idle.
    """
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + 64, "uint8")
    start = (16 - memory.ctypes.data) % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def _untouched(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that has no memory as long as nobody looks at its elements."""
    pages = mmap.mmap(-1, int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(pages, dtype).reshape(shape)
