"""What makes a network that is only called faster: constants and fused layers."""

from typing import Any

import keras
import tensorflow as tf

from keras_vit.residual import StdConv2D

# Constants are kept in the form that oneDNN multiplies fastest. But a session holds
# many copies of them for each signature: 1 GB of weights of 23 MB, 11 GB of 350 MB.
CONSTANT_BYTES = 2**25


def optimized(model: Any) -> list[keras.Variable]:
    """Changes the layers of a model that will not be trained nor saved by Keras.

    Standardised convolutions hold the kernels that they made at each call. A model of
    32 MiB at most gets constants for weights, and its LayerNorms one kernel each: what
    TensorFlow has for a batch normalisation whose scales are constants.

    Args:
        model: A Keras model.

    Returns:
        Those of its weights that are to be constants: all or none.
    """
    small = sum(w.value.numpy().nbytes for w in model.weights) <= CONSTANT_BYTES
    for layer in model._flatten_layers():
        if isinstance(layer, StdConv2D):
            _standardize(layer)
        elif small and _is_token_norm(layer):
            layer.call = _fused_norm(layer)
    return model.weights if small else []


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
