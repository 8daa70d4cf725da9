"""The kind of device that a graph is made for: this process's, or one that is named.

A model's graph depends on it: attention and fused kernels. Whoever makes a graph for
another device, as an export and `tpu-check` do, names it with `making_graphs_for`.
"""

import contextlib
import contextvars
import functools
import pathlib
from collections.abc import Iterator
from typing import Literal, cast

import keras

Platform = Literal["cpu", "gpu", "tpu"]

_named: contextvars.ContextVar[Platform | None] = contextvars.ContextVar(
    "platform", default=None
)


@contextlib.contextmanager
def making_graphs_for(platform: Platform) -> Iterator[None]:
    """Context in which what is traced, lowered or exported will run elsewhere."""
    token = _named.set(platform)
    try:
        yield
    finally:
        _named.reset(token)


def platform() -> Platform:
    """What graphs are made for: the named platform, else that of Keras's devices."""
    return _named.get() or _own_platform()


def is_attached() -> bool:
    """Whether graphs are made for this process's own devices."""
    return _named.get() is None


def _own_platform() -> Platform:
    if keras.backend.backend() == "jax":
        import jax

        return cast(Platform, jax.default_backend())
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        kinds = {device.device_type for device in tf.config.list_logical_devices()}
        return "tpu" if "TPU" in kinds else "gpu" if "GPU" in kinds else "cpu"
    return "cpu"


def on_tensorflow_cpu() -> bool:
    """Whether graphs are TensorFlow's and made for a CPU."""
    return keras.backend.backend() == "tensorflow" and platform() == "cpu"


@functools.cache
def lacks_avx512() -> bool:
    """Whether this is an x86-64 processor without AVX-512, as Linux describes it."""
    try:
        words = pathlib.Path("/proc/cpuinfo").read_text("utf-8").split()
    except OSError:
        return False
    return "avx2" in words and "avx512f" not in words
