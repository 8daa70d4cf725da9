"""The parts of a Vision Transformer, as Keras layers on any backend.

Letters in comments and docstrings:

    B       images in the batch
    H, W    height and width of an image, in pixels
    C       channels of an image
    P       side of a patch, in pixels
    h, w    rows and columns of patches
    N       tokens: patches, and before them class token and registers if there are any
    R       register tokens
    D       width of a token
    A, K    attention heads, and the width D / A of each
    M       width of the hidden layer of the MLP
"""

import keras
from keras import ops

from keras_vit.attention import MultiHeadSelfAttention
from keras_vit.branches import (
    LAYER_NORM_EPSILON,
    MLP,
    LayerNorm,
    LayerScale,
    StochasticDepth,
)
from keras_vit.positions import (
    PositionEmbedding,
    PositionEmbedding2D,
    RelativePosition,
    SinCosPositionEmbedding,
)
from keras_vit.tokens import ClassToken, PatchDropout, RegisterTokens

__all__ = [
    "MLP",
    "AttentionPooling",
    "AxialEncoderBlock",
    "ClassToken",
    "EncoderBlock",
    "LayerNorm",
    "LayerScale",
    "MultiHeadSelfAttention",
    "PatchDropout",
    "PositionEmbedding",
    "PositionEmbedding2D",
    "RegisterTokens",
    "RelativePosition",
    "SinCosPositionEmbedding",
    "StochasticDepth",
]


@keras.saving.register_keras_serializable(package="keras_vit")
class EncoderBlock(keras.layers.Layer):
    """One pre-norm encoder block (equations 2 and 3).

    Args:
        mlp_dim: Width M of the MLP's hidden layer.
        heads: Number of attention heads A.
        dropout: Dropout rate after every dense layer except the query, key and value
            projections (appendix B.1).
        attention_dropout: Dropout rate on the attention weights.
        stochastic_depth: Probability that an example skips a residual branch.
        gelu: `"tanh"` or `"exact"`.
        layer_scale: Initial value of a `LayerScale` on each branch; `None` for none.
        qk_norm: Whether queries and keys are normalised.
        norm_epsilon: Epsilon of every LayerNorm.
        relative_stddev: Standard deviation of the initial relative embeddings of its
            own, or `None` for none.

    Call arguments:
        tokens: Tensor [B, N, D]; or [B, ..., N, D], where N tokens attend to each
            other.
        relative_embedding: Tensor [2 N - 1, K] that is not its own.
        training: Whether dropout and stochastic depth are active.

    Returns:
        Tensor of the tokens' shape.
    """

    def __init__(
        self,
        mlp_dim,
        heads,
        dropout=0.0,
        attention_dropout=0.0,
        stochastic_depth=0.0,
        gelu="tanh",
        layer_scale=None,
        qk_norm=False,
        norm_epsilon=LAYER_NORM_EPSILON,
        relative_stddev=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.mlp_dim = mlp_dim
        self.heads = heads
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.stochastic_depth = stochastic_depth
        self.gelu = gelu
        self.layer_scale = layer_scale
        self.qk_norm = qk_norm
        self.norm_epsilon = norm_epsilon
        self.relative_stddev = relative_stddev
        dtype = self.dtype_policy
        self.norm1 = LayerNorm(norm_epsilon, name="norm1", dtype=dtype)
        self.attention = MultiHeadSelfAttention(
            heads,
            attention_dropout,
            qk_norm,
            norm_epsilon,
            relative_stddev,
            name="attention",
            dtype=dtype,
        )
        self.norm2 = LayerNorm(norm_epsilon, name="norm2", dtype=dtype)
        self.mlp = MLP(mlp_dim, dropout, gelu, name="mlp", dtype=dtype)
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=dtype)
        self.stochastic_depth_layer = StochasticDepth(stochastic_depth, dtype=dtype)
        self.layer_scale1 = self._layer_scale("layer_scale1")
        self.layer_scale2 = self._layer_scale("layer_scale2")

    def _layer_scale(self, name):
        if self.layer_scale is None:
            return None
        return LayerScale(self.layer_scale, dtype=self.dtype_policy, name=name)

    def build(self, input_shape):
        scales = (self.layer_scale1, self.layer_scale2)
        for layer in (self.norm1, self.attention, self.norm2, self.mlp, *scales):
            if layer is not None:
                layer.build(input_shape)

    def call(self, tokens, relative_embedding=None, training=False):
        branch = self.attention(
            self.norm1(tokens), relative_embedding=relative_embedding, training=training
        )
        branch = self.dropout_layer(branch, training=training)
        tokens = self._add(tokens, branch, self.layer_scale1, training)
        branch = self.mlp(self.norm2(tokens), training=training)
        return self._add(tokens, branch, self.layer_scale2, training)

    def attention_weights(self, tokens, relative_embedding=None):
        """What the heads' queries take of each token: [B, A, N, N] in float32."""
        return self.attention.attention_weights(
            self.norm1(tokens), relative_embedding=relative_embedding
        )

    def _add(self, tokens, branch, layer_scale, training):
        if layer_scale is not None:
            branch = layer_scale(branch)
        return tokens + self.stochastic_depth_layer(branch, training=training)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "mlp_dim": self.mlp_dim,
            "heads": self.heads,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "stochastic_depth": self.stochastic_depth,
            "gelu": self.gelu,
            "layer_scale": self.layer_scale,
            "qk_norm": self.qk_norm,
            "norm_epsilon": self.norm_epsilon,
            "relative_stddev": self.relative_stddev,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialEncoderBlock(keras.layers.Layer):
    """Attention within the rows, then within the columns (appendix D.6).

    Two `EncoderBlock`s with weights of their own, `rows` and `columns`: each patch
    attends to its row, passes an MLP, attends to its column, passes another.

    Args:
        grid: (h, w), rows and columns of patches.
        block: Arguments of both blocks.

    Call arguments:
        tokens: Tensor [B, h * w, D], row by row.
        training: Whether dropout and stochastic depth are active.

    Returns:
        Tensor [B, h * w, D].
    """

    def __init__(self, grid, block, **kwargs):
        super().__init__(**kwargs)
        self.grid = tuple(grid)
        self.block = block
        self.rows = EncoderBlock(**block, dtype=self.dtype_policy, name="rows")
        self.columns = EncoderBlock(**block, dtype=self.dtype_policy, name="columns")

    def build(self, input_shape):
        (rows, columns), (_, tokens, width) = self.grid, input_shape
        if tokens != rows * columns:
            raise ValueError(
                "Axial attention needs the patches of the whole `grid` and no other "
                f"token. Received: grid={self.grid}, {tokens} tokens"
            )
        self.rows.build((None, rows, columns, width))
        self.columns.build((None, columns, rows, width))

    def call(self, tokens, training=False):
        x = ops.reshape(tokens, (-1, *self.grid, tokens.shape[-1]))  # [B, h, w, D]
        x = self.rows(x, training=training)
        x = ops.transpose(x, (0, 2, 1, 3))  # [B, w, h, D]
        x = self.columns(x, training=training)
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), ops.shape(tokens))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "grid": self.grid, "block": self.block}


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(keras.layers.Layer):
    """A learned query attends to all tokens: the MAP head (arXiv:2106.04560, 3.3).

    Args:
        mlp_dim: Width M of the MLP that follows the attention.
        heads: Number of attention heads A.
        gelu: `"tanh"` or `"exact"`.
        norm_epsilon: Epsilon of the LayerNorm.

    Call arguments:
        tokens: Tensor [B, N, D].

    Returns:
        Tensor [B, D].
    """

    def __init__(
        self, mlp_dim, heads, gelu="tanh", norm_epsilon=LAYER_NORM_EPSILON, **kwargs
    ):
        super().__init__(**kwargs)
        self.mlp_dim = mlp_dim
        self.heads = heads
        self.gelu = gelu
        self.norm_epsilon = norm_epsilon
        dtype = self.dtype_policy
        self.attention = MultiHeadSelfAttention(heads, name="attention", dtype=dtype)
        self.norm = LayerNorm(norm_epsilon, name="norm", dtype=dtype)
        self.mlp = MLP(mlp_dim, gelu=gelu, name="mlp", dtype=dtype)

    def build(self, input_shape):
        width = input_shape[-1]
        self.probe = self.add_weight(
            name="probe", shape=(1, 1, width), initializer="glorot_uniform"
        )
        self.attention.build(input_shape)
        for layer in (self.norm, self.mlp):
            layer.build((None, 1, width))

    def call(self, tokens):
        pooled = self.attention(tokens, queries=self._probes(tokens))  # [B, 1, D]
        pooled = pooled + self.mlp(self.norm(pooled))
        return pooled[:, 0]

    def attention_weights(self, tokens):
        """What the heads' queries take of each token: [B, A, 1, N] in float32."""
        return self.attention.attention_weights(tokens, queries=self._probes(tokens))

    def _probes(self, tokens):
        shape = (ops.shape(tokens)[0], 1, tokens.shape[-1])
        return ops.broadcast_to(ops.cast(self.probe, tokens.dtype), shape)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "mlp_dim": self.mlp_dim,
            "heads": self.heads,
            "gelu": self.gelu,
            "norm_epsilon": self.norm_epsilon,
        }
