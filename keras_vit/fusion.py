"""Chains of elementwise operations as one kernel, for training on CPUs.

TensorFlow runs a GELU and its gradient as 17 operations, each of which reads and writes
the whole tensor, and keeps most of the results for the gradient. Compiled by XLA they
are one loop each, and only the inputs are kept: a third of the time and of the memory
(`python -m benchmarks.train_step`). Matrix products stay with oneDNN, which is faster.

Inference keeps the plain operations: oneDNN computes a GELU inside of the matrix
product before it, and a server of an exported model may have no XLA.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.devices import on_tensorflow_cpu


def fused(
    function: Callable, *inputs: Any, training: bool, dtype: str, **options: Any
) -> Any:
    """Compute `function(*inputs, **options)`, as one kernel where that is faster.

    Args:
        function: A function of tensors at the top level of a module, which calls
            nothing but Keras's operations.
        inputs: Its tensors; the gradient reads them again.
        training: Whether the model is being trained.
        dtype: Dtype of the result. A kernel computes in float32 and rounds once.
        options: The function's other arguments, hashable.

    Returns:
        The function's tensor.
    """
    if training and on_tensorflow_cpu():
        return _kernel(function, dtype, tuple(options.items()))(*inputs)
    return ops.cast(function(*inputs, **options), dtype)


@functools.cache
def _kernel(function: Callable, dtype: str, options: tuple) -> Callable:
    """The function compiled by XLA, with a compiled gradient of its own."""
    import tensorflow as tf

    def call(*inputs):
        wide = (
            ops.cast(x, keras.backend.result_type(x.dtype, "float32")) for x in inputs
        )
        return ops.cast(function(*wide, **dict(options)), dtype)

    def differentiate(inputs, upstream):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = call(*inputs)
        return tape.gradient(outputs, inputs, upstream)

    forward = tf.function(call, jit_compile=True)
    backward = tf.function(differentiate, jit_compile=True)

    @tf.custom_gradient
    def kernel(*inputs):
        return forward(*inputs), lambda upstream: backward(inputs, upstream)

    # Variables are read here: `custom_gradient` takes those read within for captured.
    return lambda *inputs: kernel(*map(tf.convert_to_tensor, inputs))
