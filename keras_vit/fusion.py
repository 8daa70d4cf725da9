"""Chains of elementwise operations as one kernel, for training on CPUs.

TensorFlow runs a GELU and its gradient as 17 operations, each of which reads and writes
the whole tensor, and keeps most of the results for the gradient. Compiled by XLA they
are one loop each, and only the inputs are kept: a third of the time and of the memory
(`python -m benchmarks.train_step`). Matrix products stay with oneDNN, which is faster;
what they read is not kept either, as the loop of the gradient computes it again.

Inference keeps the plain operations: oneDNN computes a GELU inside of the matrix
product before it, and a server of an exported model may have no XLA.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
from keras import ops

from keras_vit.devices import on_tensorflow_cpu
from keras_vit.typing import Tensor

Function: TypeAlias = Callable[..., Tensor]  # of tensors
Options: TypeAlias = tuple[tuple[str, Any], ...]  # keyword arguments, hashable
Gradients: TypeAlias = Callable[..., tuple[Tensor, ...]]
# Of a function's inputs and its output's gradient: the output, the inputs' gradients.
OutputAndGradients: TypeAlias = Callable[
    [tuple[Tensor, ...], Tensor], tuple[Tensor, tuple[Tensor, ...]]
]


def fused(
    function: Function, *inputs: Tensor, training: bool, dtype: str, **options: Any
) -> Tensor:
    """Compute `function(*inputs, **options)`, as one kernel where that is faster.

    Args:
        function: A function of tensors at the top level of a module, which calls
            nothing but Keras's operations.
        inputs: Its tensors; the gradient reads them again.
        dtype: Dtype of the result. A kernel computes in float32 and rounds once.
        options: The function's other arguments, hashable.
    """
    if training and on_tensorflow_cpu():
        return _kernel(function, dtype, tuple(options.items()))(*inputs)
    return ops.cast(function(*inputs, **options), dtype)


def fused_dense(
    layers: Sequence[keras.layers.Dense],
    function: Function,
    *inputs: Tensor,
    training: bool,
    dtype: str,
    **options: Any,
) -> list[Tensor]:
    """Apply dense layers to `fused(function, *inputs, ...)`; for the others see there.

    Where that is one kernel, its result is not kept for the gradient.

    Args:
        layers: Built layers without activations.
        function: A function of rank-2 tensors; see `fused`.
    """
    quantized = any(layer.quantization_mode for layer in layers)
    if training and on_tensorflow_cpu() and not quantized:
        biased = tuple(layer.bias is not None for layer in layers)
        key = (function, dtype, tuple(options.items()), len(inputs), biased)
        kernel = _dense_kernel(*key)
        weights = [w for layer in layers for w in (layer.kernel, layer.bias)]
        weights = [weight for weight in weights if weight is not None]
        weights = [ops.cast(weight, dtype) for weight in weights]
        outputs: list[Tensor] = kernel(*inputs, *weights)
        return outputs
    x = fused(function, *inputs, training=training, dtype=dtype, **options)
    return [layer(x) for layer in layers]


@functools.cache
def _kernel(function: Function, dtype: str, options: Options) -> Function:
    """The function as a kernel of tensors or variables."""
    import tensorflow as tf

    forward, again = _compiled(function, dtype, options)
    # Without its outputs, which XLA would write.
    backward = tf.function(lambda *args: again(*args)[1], jit_compile=True)

    @tf.custom_gradient
    def kernel(*inputs: Tensor) -> tuple[Tensor, Gradients]:
        return forward(*inputs), lambda upstream: backward(inputs, upstream)

    # Variables are read here: `custom_gradient` takes those read within for captured.
    return lambda *inputs: kernel(*map(tf.convert_to_tensor, inputs))


@functools.cache
def _dense_kernel(
    function: Function,
    dtype: str,
    options: Options,
    count: int,
    biased: tuple[bool, ...],
) -> Callable[..., list[Tensor]]:
    """The same of `count` inputs, then each dense layer's kernel and bias if any."""
    import tensorflow as tf

    forward, backward = _compiled(function, dtype, options)

    @tf.custom_gradient
    def kernel(*tensors: Tensor) -> tuple[list[Tensor], Gradients]:
        inputs, weights = tensors[:count], iter(tensors[count:])
        kernels, outputs, x = [], [], forward(*inputs)
        for has_bias in biased:
            kernels.append(next(weights))
            product = tf.matmul(x, kernels[-1])
            outputs.append(
                tf.nn.bias_add(product, next(weights)) if has_bias else product
            )

        def differentiate(*upstreams: Tensor) -> tuple[Tensor, ...]:
            of_x = tf.add_n(
                [
                    tf.matmul(upstream, each, transpose_b=True)
                    for upstream, each in zip(upstreams, kernels, strict=True)
                ]
            )
            x, of_inputs = backward(inputs, of_x)
            of_weights = []
            for upstream, has_bias in zip(upstreams, biased, strict=True):
                of_weights.append(tf.matmul(x, upstream, transpose_a=True))
                if has_bias:
                    of_bias = tf.raw_ops.BiasAddGrad(out_backprop=upstream)
                    of_weights.append(of_bias)
            return (*of_inputs, *of_weights)

        return outputs, differentiate

    return lambda *tensors: kernel(*map(tf.convert_to_tensor, tensors))


def _compiled(
    function: Function, dtype: str, options: Options
) -> tuple[Function, OutputAndGradients]:
    """The function, and that of (inputs, upstream) to its outputs and gradients."""
    import tensorflow as tf

    def call(*inputs: Tensor) -> Tensor:
        wide = (
            ops.cast(x, keras.backend.result_type(x.dtype, "float32")) for x in inputs
        )
        return ops.cast(function(*wide, **dict(options)), dtype)

    def differentiate(
        inputs: tuple[Tensor, ...], upstream: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = call(*inputs)
        return outputs, tape.gradient(outputs, inputs, upstream)

    return (
        tf.function(call, jit_compile=True),
        tf.function(differentiate, jit_compile=True),
    )
