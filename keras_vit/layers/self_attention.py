"""Multi-head self-attention."""

from typing import Any, TypedDict

import keras
from keras import ops

from keras_vit import options
from keras_vit.layers.dot_product_attention import (
    apply_weights,
    attention_weights,
    dot_product_attention,
)
from keras_vit.layers.normalization import NORMS, DenseLayers, dense
from keras_vit.layers.options_layer import OptionsLayer
from keras_vit.layers.positions import (
    normal,
    relative_bias,
    relative_bias_count,
    relative_scores,
)
from keras_vit.layers.rotary import rotate
from keras_vit.typing import Heads, SequenceShape, Shape, Tensor, Tokens, Weights


class AttentionPositions(TypedDict, total=False):
    """Positions that all blocks share, tensors alone.

    Attributes:
        relative_embedding: Relative positions [2 N - 1, K]; see `relative_scores`.
        relative_bias: Added to the scores, [A, N, N]; the queries are the first Q of
            the N tokens.
        rotary: Table [2, N, A, K], or one head for all; see `rotate`.
    """

    relative_embedding: Tensor
    relative_bias: Tensor
    rotary: Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(OptionsLayer):
    """Multi-head scaled dot-product attention (appendix A, equations 5 to 8).

    Attention dropout needs all weights [B, A, N, N] in memory in training, as relative
    positions always do; see `keras_vit.layers.dot_product_attention`.

    Args:
        heads: Number of heads A; must divide the width D of the tokens.
        relative_stddev: Standard deviation of the initial relative embeddings
            [2 N - 1, K] of its own, or `None` for none; see `relative_scores`.
        relative_bias_grid: (h, w) of the patches behind a class token, for relative
            positions of its own as BEiT's; or `None`. See `relative_bias`.
        query_projection: Whether queries are projected.
        **kwargs: Those of `keras_vit.options.AttentionOptions`, and of every layer.

    Call arguments:
        tokens: Tensor [B, N, D], the keys and values; or [B, ..., N, D], where N
            tokens attend to each other.
        queries: Tensor [B, Q, D]; the tokens themselves when absent.
        positions: See `AttentionPositions`; they may be absent.
        project: Function that computes dense layers of tokens: `LayerNorm.dense` of
            those that it normalizes before.
        training: Whether dropout is active.

    Returns:
        Tensor of the queries' shape.
    """

    options_class = options.AttentionOptions

    def __init__(
        self,
        heads: int,
        relative_stddev: float | None = None,
        relative_bias_grid: tuple[int, int] | None = None,
        query_projection: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.heads = heads
        self.relative_stddev = relative_stddev
        self.relative_bias_grid = relative_bias_grid
        self.query_projection = query_projection
        self.autocast = False  # tables of rotary positions are not rounded
        self.dropout_layer = keras.layers.Dropout(
            self.attention_dropout, dtype=self.dtype_policy
        )

    def build(
        self,
        tokens_shape: SequenceShape,
        queries_shape: Shape | None = None,
    ) -> None:
        length, width = tokens_shape[-2:]
        if width % self.heads:
            raise ValueError(
                "`heads` must divide the width of the tokens. "
                f"Received: heads={self.heads}, width={width}"
            )
        for name, biased in (
            ("query", self.query_bias),
            ("key", self.key_bias),
            ("value", self.value_bias),
            ("out", self.output_bias),
        ):
            if name == "query" and not self.query_projection:
                continue
            layer = keras.layers.Dense(
                width,
                use_bias=biased,
                dtype=self.dtype_policy,
                name=name,
            )
            layer.build((None, width))
            setattr(self, name, layer)
        head_width = width // self.heads
        if self.qk_norm:
            self.query_norm = self._norm("query_norm", head_width)
            self.key_norm = self._norm("key_norm", head_width)
        if self.attention_norm:
            self.merged_norm = self._norm("norm", width)
        if self.relative_stddev is not None:
            self.relative_embedding = self.add_weight(
                name="relative_embedding",
                shape=(2 * length - 1, head_width),
                initializer=normal(self.relative_stddev),
            )
        if self.relative_bias_grid is not None:
            self.relative_bias = self.add_weight(
                name="relative_bias",
                shape=(relative_bias_count(self.relative_bias_grid), self.heads),
                initializer="zeros",
            )

    def _norm(self, name: str, width: int) -> keras.layers.Layer:
        norm = NORMS[self.norm](self.norm_epsilon, name=name, dtype=self.dtype_policy)
        norm.build((None, width))
        return norm

    def _projections(
        self,
        tokens: Tokens,
        queries: Tokens | None,
        positions: AttentionPositions,
        project: DenseLayers = dense,
        training: bool = False,
    ) -> tuple[Heads, Heads, Heads]:
        """Queries [B, Q, A, K], keys and values [B, N, A, K]."""
        if queries is None and self.query_projection:
            layers = [self.query, self.key, self.value]
            query, key, value = project(layers, tokens, training)
            queries = tokens
        else:
            query = queries = tokens if queries is None else queries
            if self.query_projection:
                [query] = project([self.query], queries, training)
            key, value = project([self.key, self.value], tokens, training)
        query = self._split_heads(query, queries)
        key, value = (self._split_heads(x, tokens) for x in (key, value))
        if self.qk_norm:
            query = self.query_norm(query, training=training)
            key = self.key_norm(key, training=training)
        if "rotary" in positions:
            query, key = (
                rotate(heads, positions["rotary"], self.rotary_pairing)
                for heads in (query, key)
            )
        return query, key, value

    def _split_heads(self, x: Tensor, tokens: Tokens) -> Heads:
        """[B * N, D] -> [B, N, A, K]."""
        length, width = ops.shape(tokens)[-2], tokens.shape[-1]
        return ops.reshape(x, (-1, length, self.heads, width // self.heads))

    def attention_weights(
        self,
        tokens: Tokens,
        queries: Tokens | None = None,
        positions: AttentionPositions | None = None,
    ) -> Weights:
        """Attention weights [B, A, Q, N] in float32, a softmax over the last axis.

        For the arguments see the class. There is no dropout.
        """
        positions = positions or {}
        query, key, _ = self._projections(tokens, queries, positions)
        return self._attention_weights(query, key, *self._relative(positions))

    @staticmethod
    def _attention_weights(
        query: Heads, key: Heads, embedding: Tensor | None, bias: Tensor | None
    ) -> Weights:

        def added(query: Tensor) -> Weights:
            scores: Weights = 0.0
            if embedding is not None:
                scores = relative_scores(query, ops.cast(embedding, query.dtype))
            if bias is not None:
                rows = bias[:, : query.shape[-2]]
                scores = scores + ops.cast(rows, query.dtype)
            return scores

        relative = embedding is not None or bias is not None
        return attention_weights(query, key, added if relative else None)

    def _relative(
        self, positions: AttentionPositions
    ) -> tuple[Tensor | None, Tensor | None]:
        """Relative embedding and relative bias, its own or the shared ones."""
        embedding = positions.get("relative_embedding")
        if self.relative_stddev is not None:
            embedding = self.relative_embedding
        bias = positions.get("relative_bias")
        if self.relative_bias_grid is not None:
            bias = relative_bias(self.relative_bias, self.relative_bias_grid)
        return embedding, bias

    def call(
        self,
        tokens: Tokens,
        queries: Tokens | None = None,
        positions: AttentionPositions | None = None,
        project: DenseLayers = dense,
        training: bool = False,
    ) -> Tokens:
        positions = positions or {}
        query, key, value = self._projections(
            tokens, queries, positions, project, training
        )
        queries = tokens if queries is None else queries
        embedding, bias = self._relative(positions)
        relative = embedding is not None or bias is not None
        if relative or (training and self.attention_dropout):
            weights = self._attention_weights(query, key, embedding, bias)
            weights = ops.cast(weights, value.dtype)
            weights = self.dropout_layer(weights, training=training)
            heads = apply_weights(weights, value)
        else:
            heads = dot_product_attention(query, key, value, training)
        merged = ops.reshape(heads, (-1, queries.shape[-1]))
        project = self.merged_norm.dense if self.attention_norm else dense
        [outputs] = project([self.out], merged, training)
        return ops.reshape(outputs, ops.shape(queries))

    def compute_output_shape(
        self, tokens_shape: Shape, queries_shape: Shape | None = None
    ) -> Shape:
        return queries_shape or tokens_shape
