"""Attention pooling."""

import keras
from keras import ops

from keras_vit.configured_layer import ConfiguredLayer
from keras_vit.layers.encoder_blocks import BlockContext
from keras_vit.layers.mlp import MLP
from keras_vit.layers.normalization import LayerNorm
from keras_vit.layers.self_attention import MultiHeadSelfAttention
from keras_vit.options import LAYER_NORM_EPSILON, Activation
from keras_vit.typing import Shape, Tokens, TokensShape, Vectors, Weights


class _ProbePooling(ConfiguredLayer):
    """Base of poolings by the attention of one learned query, the probe.

    Attributes:
        attention: Its attention.
    """

    attention: MultiHeadSelfAttention

    def build(self, input_shape: TokensShape) -> None:
        self.probe = self.add_weight(
            name="probe", shape=(1, 1, input_shape[-1]), initializer="glorot_uniform"
        )
        self.attention.build(input_shape)

    def attention_weights(
        self, tokens: Tokens, context: BlockContext | None = None
    ) -> Weights:
        """Attention weights [B, A, 1, N] in float32, a softmax over the last axis."""
        return self.attention.attention_weights(tokens, queries=self._probes(tokens))

    def _attend(self, tokens: Tokens) -> Tokens:
        """The attention's output for the probe, [B, 1, D]."""
        return self.attention(tokens, queries=self._probes(tokens))

    def _probes(self, tokens: Tokens) -> Tokens:
        shape = (ops.shape(tokens)[0], 1, tokens.shape[-1])
        return ops.broadcast_to(ops.cast(self.probe, tokens.dtype), shape)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], input_shape[-1])


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(_ProbePooling):
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
        **kwargs: object,
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
        super().build(input_shape)
        for layer in (self.norm, self.mlp):
            layer.build((None, 1, input_shape[-1]))

    def call(self, tokens: Tokens) -> Vectors:
        pooled = self._attend(tokens)
        pooled = pooled + self.mlp(pooled, project=self.norm.dense)
        return pooled[:, 0]


@keras.saving.register_keras_serializable(package="keras_vit")
class QueryPooling(_ProbePooling):
    """Attention pooling by a query that is learned as it is (arXiv:2411.14402).

    AIMv2's: keys, values and the output are projected, and nothing follows.

    Args:
        heads: Number of attention heads A.
        key_bias: Whether the key projection has a bias.
        value_bias: Whether the value projection has one.

    Call arguments:
        tokens: Tensor [B, N, D].

    Returns:
        Tensor [B, D].
    """

    def __init__(
        self,
        heads: int,
        key_bias: bool = True,
        value_bias: bool = True,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        self.heads = heads
        self.key_bias = key_bias
        self.value_bias = value_bias
        self.attention = MultiHeadSelfAttention(
            heads,
            query_projection=False,
            key_bias=key_bias,
            value_bias=value_bias,
            name="attention",
            dtype=self.dtype_policy,
        )

    def call(self, tokens: Tokens) -> Vectors:
        return self._attend(tokens)[:, 0]
