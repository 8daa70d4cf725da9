"""Gives memory back to the system: large blocks at once, versions when unloaded."""

import contextlib
import ctypes
import gc
import os

# glibc's names, and what they are set to.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = 64 * 2**20
_LARGE = 8 * 2**20


def keep_large_apart() -> None:
    """Lets glibc give large blocks back as soon as they are freed.

    By itself it takes blocks of up to 32 MiB from its heaps once it has freed one of
    that size: after some images of many megabytes the heaps of all threads are full of
    holes. What it keeps at the ends of heaps, so that a run need not ask for it anew,
    remains what it would become by itself.

    To be called before threads are started; MALLOC_MMAP_THRESHOLD_, glibc's own
    setting, goes first.
    """
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        with contextlib.suppress(OSError, AttributeError, TypeError):
            glibc = ctypes.CDLL(None)
            glibc.mallopt(_MMAP_THRESHOLD, _LARGE)
            glibc.mallopt(_TRIM_THRESHOLD, _KEPT)


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
