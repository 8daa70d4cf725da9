"""The activations of the MLP, and which implementation of the tanh GELU runs where.

| function | backend | device | pass | implementation |
|---|---|---|---|---|
| exact, quick, silu | any | any | any | of that name |
| tanh | TensorFlow | x86-64 without AVX-512 | inference, float32 | `tanh_as_sigmoid` |
| tanh | any | any | otherwise | `tanh` |

oneDNN computes a GELU inside of the matrix product before it. Without AVX-512 its tanh
is slow: a S/16 forward pass takes 0.92 of the time with the same function as a sigmoid
of its own. With AVX-512 that form takes 1.04 to 1.14 of the time, and as a kernel of
XLA, in training, 1.16 to 1.20 (docs/devices.md has the measurements).

A graph that is made for elsewhere, an export, has `tanh`, whichever processor exports.
"""

import math

import keras
from keras import ops

from keras_vit import devices, options
from keras_vit.typing import Activation, Tensor


def implementation(
    function: options.Activation, training: bool, dtype: str
) -> Activation:
    """The implementation of an activation of a dtype's tensors, by the table above."""
    if function != "tanh":
        return {"exact": exact, "quick": quick, "silu": silu}[function]
    plain = training or dtype != "float32" or not devices.is_attached()
    if plain or not devices.on_tensorflow_cpu() or not devices.lacks_avx512():
        return tanh
    return tanh_as_sigmoid


def exact(x: Tensor) -> Tensor:
    """x times the standard normal distribution's function at x (arXiv:1606.08415)."""
    return keras.activations.gelu(x, approximate=False)


def quick(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), a coarser approximation (arXiv:1606.08415, section 2)."""
    return x * ops.sigmoid(1.702 * x)


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x), the gate of a SwiGLU too."""
    return keras.activations.silu(x)


def tanh(x: Tensor) -> Tensor:
    """The paper's approximation, x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    return keras.activations.gelu(x, approximate=True)


def tanh_as_sigmoid(x: Tensor) -> Tensor:
    """The same function as `tanh`, as (1 + tanh(u)) / 2 = sigmoid(2 u)."""
    slope = 2 * math.sqrt(2 / math.pi)
    return x * ops.sigmoid(x * (slope + slope * 0.044715 * ops.square(x)))
