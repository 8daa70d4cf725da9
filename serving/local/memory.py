"""Gives memory back to the system: large blocks at once, versions when unloaded."""

import contextlib
import ctypes
import gc
import os

# glibc's M_MMAP_THRESHOLD, and what it is set to.
_MMAP_THRESHOLD = -3
_LARGE = 8 * 2**20


def keep_large_apart() -> None:
    """Lets glibc give large blocks back as soon as they are freed.

    By itself it takes blocks of up to 32 MiB from its heaps once it has freed one of
    that size: after some images of many megabytes the heaps of all threads are full of
    holes. To be called before threads are started; MALLOC_MMAP_THRESHOLD_, glibc's own
    setting, goes first.
    """
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        with contextlib.suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


def give_back() -> None:
    """Frees what a closed session leaves behind.

    TensorFlow's graphs are cycles of Python objects, which hold the graphs of C++; a
    server that is only asked questions seldom looks for cycles. And glibc keeps what
    its threads have freed, some megabytes for each version, until it is told; other C
    libraries have no such function.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
