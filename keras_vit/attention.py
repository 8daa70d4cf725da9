"""Self-attention of tokens [B, N, D]."""

import keras
from keras import ops

from keras_vit.branches import LAYER_NORM_EPSILON, LayerNorm, rank_2
from keras_vit.positions import normal, relative_scores


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(keras.layers.Layer):
    """Multi-head scaled dot-product attention (appendix A, equations 5 to 8).

    Args:
        heads: Number of heads A; must divide the width D of the tokens.
        attention_dropout: Dropout rate on the attention weights. The paper has none.
        qk_norm: Whether a LayerNorm over K follows the query and key projections
            (arXiv:2302.05442, section 2).
        norm_epsilon: Epsilon of these.
        relative_stddev: Standard deviation of the initial relative embeddings
            [2 N - 1, K] of its own, or `None` for none; see `relative_scores`.

    Call arguments:
        tokens: Tensor [B, N, D], the keys and values; or [B, ..., N, D], where N
            tokens attend to each other.
        queries: Tensor [B, Q, D]; the tokens themselves when absent.
        relative_embedding: Tensor [2 N - 1, K] that is not its own.
        training: Whether dropout is active.

    Returns:
        Tensor of the queries' shape.
    """

    def __init__(
        self,
        heads,
        attention_dropout=0.0,
        qk_norm=False,
        norm_epsilon=LAYER_NORM_EPSILON,
        relative_stddev=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.heads = heads
        self.attention_dropout = attention_dropout
        self.qk_norm = qk_norm
        self.norm_epsilon = norm_epsilon
        self.relative_stddev = relative_stddev
        self.dropout_layer = keras.layers.Dropout(
            attention_dropout, dtype=self.dtype_policy
        )

    def build(self, tokens_shape, queries_shape=None):
        length, width = tokens_shape[-2:]
        if width % self.heads:
            raise ValueError(
                "`heads` must divide the width of the tokens. "
                f"Received: heads={self.heads}, width={width}"
            )
        for name in ("query", "key", "value", "out"):
            dense = keras.layers.Dense(width, dtype=self.dtype_policy, name=name)
            dense.build((None, width))
            setattr(self, name, dense)
        head_width = width // self.heads
        if self.qk_norm:
            for name in ("query_norm", "key_norm"):
                norm = LayerNorm(self.norm_epsilon, name=name, dtype=self.dtype_policy)
                norm.build((None, None, None, head_width))
                setattr(self, name, norm)
        if self.relative_stddev is not None:
            self.relative_embedding = self.add_weight(
                name="relative_embedding",
                shape=(2 * length - 1, head_width),
                initializer=normal(self.relative_stddev),
            )

    def _split_heads(self, dense, tokens):
        """[B, N, D] -> [B, A, N, K]."""
        length, width = ops.shape(tokens)[-2], tokens.shape[-1]
        projected = ops.reshape(
            dense(rank_2(tokens)), (-1, length, self.heads, width // self.heads)
        )
        return ops.transpose(projected, (0, 2, 1, 3))

    def attention_weights(self, tokens, queries=None, relative_embedding=None):
        """What each query takes of each token: [B, A, Q, N] in float32, the sum is 1.

        For the arguments see the class. There is no dropout.
        """
        queries = tokens if queries is None else queries
        query = self._split_heads(self.query, queries)
        key = self._split_heads(self.key, tokens)
        if self.qk_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        # Scaled before the product: in half precision the product could overflow.
        query = query * (query.shape[-1] ** -0.5)
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2))  # [B, A, Q, N]
        if self.relative_stddev is not None:
            relative_embedding = ops.cast(self.relative_embedding, query.dtype)
        if relative_embedding is not None:
            scores = scores + relative_scores(query, relative_embedding)
        return ops.softmax(ops.cast(scores, "float32"), axis=-1)

    def call(self, tokens, queries=None, relative_embedding=None, training=False):
        queries = tokens if queries is None else queries
        weights = self.attention_weights(tokens, queries, relative_embedding)
        value = self._split_heads(self.value, tokens)
        weights = ops.cast(weights, value.dtype)
        weights = self.dropout_layer(weights, training=training)
        heads = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))  # [B, Q, A, K]
        merged = ops.reshape(heads, (-1, queries.shape[-1]))
        return ops.reshape(self.out(merged), ops.shape(queries))

    def compute_output_shape(self, tokens_shape, queries_shape=None):
        return queries_shape or tokens_shape

    def get_config(self):
        return {
            **super().get_config(),
            "heads": self.heads,
            "attention_dropout": self.attention_dropout,
            "qk_norm": self.qk_norm,
            "norm_epsilon": self.norm_epsilon,
            "relative_stddev": self.relative_stddev,
        }
