"""What makes a network that is only called faster on CPU: fused layers and constants.

Measured by `python -m benchmarks.precision`. One product for queries, keys and values
is not here: it took 2 % longer. Biases alone as constants took 8 % longer.
"""

from typing import Any

import keras
import tensorflow as tf

from keras_vit.residual import StdConv2D

# Constants are kept in a form that oneDNN multiplies faster. But a session keeps many
# copies of them for each signature: 0.9 GB for weights of 23 MB, 11 GB for 350 MB.
CONSTANT_BYTES = 2**25


def fused(model: Any) -> Any:
    """Changes the layers of a model that will not be trained nor saved by Keras.

    Args:
        model: A Keras model.

    Returns:
        The model, whose LayerNorms take one kernel where their scales are constants,
        and whose standardised convolutions hold what they were standardised to.
    """
    for layer in model._flatten_layers():
        if _is_token_norm(layer):
            layer.call = _fused_norm(layer)
        elif isinstance(layer, StdConv2D):
            _standardize(layer)
    return model


def constant_weights(model: Any) -> list[keras.Variable]:
    """The weights that are better constants: all of a small model, or its norms' own.

    Args:
        model: A Keras model.

    Returns:
        Some of its weights.
    """
    if sum(weight.value.numpy().nbytes for weight in model.weights) <= CONSTANT_BYTES:
        return model.weights
    norms = filter(_is_token_norm, model._flatten_layers())
    return [weight for layer in norms for weight in layer.weights]


def _is_token_norm(layer):
    """Whether it normalises the last axis, with a scale and an offset."""
    return (
        isinstance(layer, keras.layers.LayerNormalization)
        and len(layer.weights) == 2
        and layer.axis == [-1]
    )


def _fused_norm(layer):
    """LayerNorm as a batch normalisation of rows, which TensorFlow has a kernel for."""

    def call(inputs):
        shape = tf.shape(inputs)
        rows = tf.reduce_prod(shape[:-1])
        normed = tf.raw_ops.FusedBatchNormV3(
            x=tf.reshape(inputs, [1, rows, inputs.shape[-1], 1]),
            scale=tf.fill([rows], 1.0),
            offset=tf.fill([rows], 0.0),
            mean=tf.zeros([0]),
            variance=tf.zeros([0]),
            epsilon=layer.epsilon,
            data_format="NCHW",
        ).y
        scale, offset = (tf.cast(w, inputs.dtype) for w in (layer.gamma, layer.beta))
        outputs = tf.reshape(normed, shape) * scale + offset
        return tf.cast(outputs, layer.compute_dtype)

    return call


def _standardize(layer):
    """Has a convolution hold its standardised kernel instead of making it each time."""
    kernel = layer.kernel
    kernel.assign(keras.ops.cast(layer.standardized_kernel(), kernel.dtype))
    layer.standardized_kernel = lambda: kernel
