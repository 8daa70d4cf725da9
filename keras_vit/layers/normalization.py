"""Layer normalization, and the dense layers that read normalized tokens."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

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


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(SameShapeLayer):
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

    def __init__(self, epsilon: float = LAYER_NORM_EPSILON, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.autocast = False  # as Keras's: float32 tokens and weights are not rounded

    def build(self, input_shape: InputShape) -> None:
        width = (input_shape[-1],)
        self.gamma = self.add_weight(
            name="gamma", shape=width, initializer="ones", autocast=False
        )
        self.beta = self.add_weight(
            name="beta", shape=width, initializer="zeros", autocast=False
        )

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        return fused(
            layer_norm,
            inputs,
            self.gamma,
            self.beta,
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
            layer_norm,
            rank_2(tokens),
            self.gamma,
            self.beta,
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
