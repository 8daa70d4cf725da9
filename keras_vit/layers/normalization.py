"""Norms of tokens, and the dense layers that read normalized tokens."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import keras
from keras import ops

from keras_vit.configured_layer import SameShapeLayer
from keras_vit.fusion import fused, fused_dense
from keras_vit.options import LAYER_NORM_EPSILON
from keras_vit.typing import InputShape, Tensor, Tokens

# Computes dense layers of tokens [..., D]: a list of [-1, M]; the last argument is
# `training`.
DenseLayers: TypeAlias = Callable[
    [Sequence[keras.layers.Dense], Tokens, bool], list[Tensor]
]


class _Norm(SameShapeLayer):
    """Base of the norms.

    Attributes:
        function: Of the tokens and of the norm's weights.
    """

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, epsilon: float = LAYER_NORM_EPSILON, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.autocast = False  # as Keras's: float32 tokens and weights are not rounded

    def build(self, input_shape: InputShape) -> None:
        self.gamma = self.add_weight(
            name="gamma", shape=input_shape[-1:], initializer="ones", autocast=False
        )

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        return fused(
            type(self).function,
            inputs,
            *self.weights,
            training=training,
            dtype=self.compute_dtype,
            epsilon=self.epsilon,
        )

    def dense(
        self,
        layers: Sequence[keras.layers.Dense],
        tokens: Tokens,
        training: bool = False,
    ) -> list[Tensor]:
        """Dense layers of the normalized tokens [..., D]: a list of [-1, M].

        Training does not keep the normalized tokens.
        """
        return fused_dense(
            layers,
            type(self).function,
            rank_2(tokens),
            *self.weights,
            training=training,
            dtype=self.compute_dtype,
            epsilon=self.epsilon,
        )


def layer_norm(
    inputs: Tensor, gamma: Tensor, beta: Tensor, *, epsilon: float
) -> Tensor:
    """`LayerNorm` of [..., D] with its weights [D], in float32 at least."""
    internal = keras.backend.result_type(inputs.dtype, "float32")
    inputs = ops.cast(inputs, internal)
    centered = inputs - ops.mean(inputs, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
    normalized = centered * ops.rsqrt(variance + epsilon)
    # Not rsqrt * gamma first: TensorFlow's remapper.cc has a pattern of that order,
    # and the kernel that it puts there exists for CPUs alone.
    return normalized * ops.cast(gamma, internal) + ops.cast(beta, internal)


def rms_norm(inputs: Tensor, gamma: Tensor, *, epsilon: float) -> Tensor:
    """`RMSNorm` of [..., D] with its weight [D], in float32 at least."""
    internal = keras.backend.result_type(inputs.dtype, "float32")
    inputs = ops.cast(inputs, internal)
    mean_square = ops.mean(ops.square(inputs), axis=-1, keepdims=True)
    return inputs * ops.rsqrt(mean_square + epsilon) * ops.cast(gamma, internal)


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(_Norm):
    """Layer normalization over the last axis, computed in the formula's own order.

    Keras's LayerNormalization multiplies the formula out, x * s + (beta - mean * s)
    with s = gamma / stddev, which takes more passes over the tokens: 2 to 3 % of a
    B/16 forward pass on CPU.

    Args:
        epsilon: Added to the variance; the official code's and timm's by default.

    Call arguments:
        inputs: Tensor [..., D].
        training: Whether the model is being trained.

    Returns:
        Tensor of the same shape, computed in float32 at least.
    """

    function = staticmethod(layer_norm)

    def build(self, input_shape: InputShape) -> None:
        super().build(input_shape)
        self.beta = self.add_weight(
            name="beta", shape=input_shape[-1:], initializer="zeros", autocast=False
        )


@keras.saving.register_keras_serializable(package="keras_vit")
class RMSNorm(_Norm):
    """Root mean square normalization over the last axis (arXiv:1910.07467, equation 4).

    Args:
        epsilon: Added to the mean square.

    Call arguments:
        inputs: Tensor [..., D].
        training: Whether the model is being trained.

    Returns:
        Tensor of the same shape, computed in float32 at least.
    """

    function = staticmethod(rms_norm)


# By the option `norm`.
NORMS: dict[str, type[_Norm]] = {"layer": LayerNorm, "rms": RMSNorm}


def dense(
    layers: Sequence[keras.layers.Dense], tokens: Tokens, training: bool = False
) -> list[Tensor]:
    """Dense layers of the tokens [..., D]: a list of [-1, M]."""
    return [layer(rank_2(tokens)) for layer in layers]


def rank_2(tokens: Tokens) -> Tensor:
    """[..., D] -> [-1, D].

    On CPU only a rank-2 MatMul next to its BiasAdd (and GELU) is fused into one
    kernel; a Dense layer on rank 3 hides the pattern. It costs nothing elsewhere.
    """
    return ops.reshape(tokens, (-1, tokens.shape[-1]))
