"""Attention pooling."""

from typing import Any

import keras
from keras import ops

from keras_vit.configured_layer import ConfiguredLayer
from keras_vit.layers.encoder_blocks import BlockContext
from keras_vit.layers.mlp import MLP
from keras_vit.layers.normalization import LayerNorm
from keras_vit.layers.self_attention import MultiHeadSelfAttention
from keras_vit.options import LAYER_NORM_EPSILON, Activation
from keras_vit.typing import Shape, Tokens, TokensShape, Vectors, Weights


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(ConfiguredLayer):
    """Attention pooling by a learned query, the MAP head (arXiv:2106.04560, 3.3).

    Args:
        mlp_dim: Width M of the MLP that follows the attention.
        heads: Number of attention heads A.
        gelu: Activation of the MLP; see `keras_vit.options.MLPOptions`.
        norm_epsilon: Epsilon of the LayerNorm.

    Call arguments:
        tokens: Tensor [B, N, D].

    Returns:
        Tensor [B, D].
    """

    def __init__(
        self,
        mlp_dim: int,
        heads: int,
        gelu: Activation = "tanh",
        norm_epsilon: float = LAYER_NORM_EPSILON,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mlp_dim = mlp_dim
        self.heads = heads
        self.gelu = gelu
        self.norm_epsilon = norm_epsilon
        dtype = self.dtype_policy
        self.attention = MultiHeadSelfAttention(heads, name="attention", dtype=dtype)
        self.norm = LayerNorm(norm_epsilon, name="norm", dtype=dtype)
        self.mlp = MLP(mlp_dim, gelu=gelu, name="mlp", dtype=dtype)

    def build(self, input_shape: TokensShape) -> None:
        width = input_shape[-1]
        self.probe = self.add_weight(
            name="probe", shape=(1, 1, width), initializer="glorot_uniform"
        )
        self.attention.build(input_shape)
        for layer in (self.norm, self.mlp):
            layer.build((None, 1, width))

    def call(self, tokens: Tokens) -> Vectors:
        pooled = self.attention(tokens, queries=self._probes(tokens))  # [B, 1, D]
        pooled = pooled + self.mlp(pooled, project=self.norm.dense)
        return pooled[:, 0]

    def attention_weights(
        self, tokens: Tokens, context: BlockContext | None = None
    ) -> Weights:
        """Attention weights [B, A, 1, N] in float32, a softmax over the last axis."""
        return self.attention.attention_weights(tokens, queries=self._probes(tokens))

    def _probes(self, tokens: Tokens) -> Tokens:
        shape = (ops.shape(tokens)[0], 1, tokens.shape[-1])
        return ops.broadcast_to(ops.cast(self.probe, tokens.dtype), shape)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], input_shape[-1])
