"""Gives the memory of unloaded versions back to the system."""

import contextlib
import ctypes
import gc


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
