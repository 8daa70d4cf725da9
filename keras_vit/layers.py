"""The parts of a Vision Transformer, as Keras layers on any backend.

Letters in comments and docstrings:

    B       images in the batch
    H, W    height and width of an image, in pixels
    C       channels of an image
    P       side of a patch, in pixels
    N       tokens: patches, and the class token where there is one
    D       width of a token
    A, K    attention heads, and the width D / A of each
    M       width of the hidden layer of the MLP
"""

import keras
from keras import ops

__all__ = [
    "MLP",
    "AttentionPooling",
    "ClassToken",
    "EncoderBlock",
    "MultiHeadSelfAttention",
    "PositionEmbedding",
    "StochasticDepth",
]

LAYER_NORM_EPSILON = 1e-6
GELUS = {"tanh": True, "exact": False}  # to keras.activations.gelu's `approximate`


def layer_norm(name: str, dtype=None) -> keras.layers.LayerNormalization:
    """LayerNormalization as every published ViT has it: epsilon 1e-6."""
    return keras.layers.LayerNormalization(
        epsilon=LAYER_NORM_EPSILON, name=name, dtype=dtype
    )


def _rank_2(tokens):
    """[..., D] -> [-1, D].

    On CPU only a rank-2 MatMul next to its BiasAdd (and GELU) is fused into one
    kernel; a Dense layer on rank 3 hides the pattern. It costs nothing elsewhere.
    """
    return ops.reshape(tokens, (-1, tokens.shape[-1]))


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(keras.layers.Layer):
    """Prepends one learned token, initialised to zero (section 3.1, equation 1).

    Call arguments:
        patches: Tensor [B, N, D].

    Returns:
        Tensor [B, N + 1, D], the class token first.
    """

    def build(self, input_shape):
        self.token = self.add_weight(
            name="token", shape=(1, 1, input_shape[-1]), initializer="zeros"
        )

    def call(self, patches):
        token = ops.cast(self.token, patches.dtype)
        shape = (ops.shape(patches)[0], 1, patches.shape[-1])
        return ops.concatenate([ops.broadcast_to(token, shape), patches], axis=1)

    def compute_output_shape(self, input_shape):
        batch, tokens, width = input_shape
        return (batch, None if tokens is None else tokens + 1, width)

    def get_config(self):
        # Keras makes a config by itself only where `dtype` was given as a string.
        return super().get_config()


@keras.saving.register_keras_serializable(package="keras_vit")
class PositionEmbedding(keras.layers.Layer):
    """Adds a learned vector to each token (section 3.1; "1-D" in Table 8).

    It is one plain weight, not an Embedding layer: the sparse gradients of a lookup
    cannot be all-reduced efficiently.

    Args:
        stddev: Standard deviation of the initial values: 0.02 in the official code,
            D^-0.5 in big_vision. Tiny models that train briefly learn positions sooner
            from a larger one.

    Call arguments:
        tokens: Tensor [B, N, D], N static.

    Returns:
        Tensor [B, N, D].
    """

    def __init__(self, stddev=0.02, **kwargs):
        super().__init__(**kwargs)
        self.stddev = stddev

    def build(self, input_shape):
        self.embedding = self.add_weight(
            name="embedding",
            shape=(1, *input_shape[1:]),
            initializer=keras.initializers.RandomNormal(stddev=self.stddev),
        )

    def call(self, tokens):
        return tokens + ops.cast(self.embedding, tokens.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "stddev": self.stddev}


@keras.saving.register_keras_serializable(package="keras_vit")
class StochasticDepth(keras.layers.Layer):
    """Drops a residual branch for whole examples while training (arXiv:1603.09382).

    Args:
        rate: Probability in [0, 1) that an example skips the branch. The branches
            that stay are scaled by 1 / (1 - rate).
        seed: Integer or `keras.random.SeedGenerator`.

    Call arguments:
        branch: Tensor [B, ...].
        training: Nothing is dropped unless true.

    Returns:
        Tensor of the same shape.
    """

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"`rate` must be in [0, 1). Received: rate={rate}")
        self.rate = rate
        self.seed = seed
        if rate > 0.0:
            self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, branch, training=False):
        if not training or self.rate == 0.0:
            return branch
        shape = (ops.shape(branch)[0],) + (1,) * (len(branch.shape) - 1)
        keep = 1.0 - self.rate
        uniform = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
        kept = ops.cast(uniform < keep, branch.dtype)
        return branch * kept / keep

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


@keras.saving.register_keras_serializable(package="keras_vit")
class MLP(keras.layers.Layer):
    """Two dense layers with a GELU between them (section 3.1).

    Args:
        hidden_dim: Width M of the hidden layer.
        dropout: Dropout rate after each of the two layers (appendix B.1).
        gelu: `"tanh"`, the approximation of the official code, or `"exact"`, what
            timm and Hugging Face compute.

    Call arguments:
        tokens: Tensor [B, N, D].
        training: Whether dropout is active.

    Returns:
        Tensor [B, N, D].
    """

    def __init__(self, hidden_dim, dropout=0.0, gelu="tanh", **kwargs):
        super().__init__(**kwargs)
        if gelu not in GELUS:
            raise ValueError(
                f"`gelu` must be one of {', '.join(map(repr, GELUS))}. "
                f"Received: gelu={gelu!r}"
            )
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        self.gelu = gelu
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        width = input_shape[-1]
        # The official code's names. TensorFlow sorts a graph's inputs by name before it
        # looks for MatMul + BiasAdd + GELU, and finds it only where the dense layer's
        # name comes before "Gelu": with "dense" the step is a third slower in bfloat16.
        self.dense1 = self._dense("Dense_0", self.hidden_dim)
        self.dense2 = self._dense("Dense_1", width)
        self.dense1.build((None, width))
        self.dense2.build((None, self.hidden_dim))

    def _dense(self, name, units):
        return keras.layers.Dense(
            units,
            kernel_initializer="glorot_uniform",
            bias_initializer=keras.initializers.RandomNormal(stddev=1e-6),
            dtype=self.dtype_policy,
            name=name,
        )

    def call(self, tokens, training=False):
        hidden = self.dense1(_rank_2(tokens))  # [B * N, M]
        hidden = keras.activations.gelu(hidden, approximate=GELUS[self.gelu])
        hidden = self.dropout_layer(hidden, training=training)
        outputs = self.dropout_layer(self.dense2(hidden), training=training)
        return ops.reshape(outputs, ops.shape(tokens))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "dropout": self.dropout,
            "gelu": self.gelu,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(keras.layers.Layer):
    """Multi-head scaled dot-product attention (appendix A, equations 5 to 8).

    Args:
        heads: Number of heads A; must divide the width D of the tokens.
        attention_dropout: Dropout rate on the attention weights. The paper has none.

    Call arguments:
        tokens: Tensor [B, N, D], the keys and values.
        queries: Tensor [B, Q, D]; the tokens themselves when absent.
        training: Whether dropout is active.

    Returns:
        Tensor of the queries' shape.
    """

    def __init__(self, heads, attention_dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.attention_dropout = attention_dropout
        self.dropout_layer = keras.layers.Dropout(
            attention_dropout, dtype=self.dtype_policy
        )

    def build(self, tokens_shape, queries_shape=None):
        width = tokens_shape[-1]
        if width % self.heads:
            raise ValueError(
                "`heads` must divide the width of the tokens. "
                f"Received: heads={self.heads}, width={width}"
            )
        for name in ("query", "key", "value", "out"):
            dense = keras.layers.Dense(width, dtype=self.dtype_policy, name=name)
            dense.build((None, width))
            setattr(self, name, dense)

    def _split_heads(self, dense, tokens):
        """[B, N, D] -> [B, A, N, K]."""
        width = tokens.shape[-1]
        length = ops.shape(tokens)[1]
        projected = ops.reshape(
            dense(_rank_2(tokens)), (-1, length, self.heads, width // self.heads)
        )
        return ops.transpose(projected, (0, 2, 1, 3))

    def call(self, tokens, queries=None, training=False):
        queries = tokens if queries is None else queries
        query = self._split_heads(self.query, queries)
        key = self._split_heads(self.key, tokens)
        value = self._split_heads(self.value, tokens)
        # Scaled before the product: in half precision the product could overflow.
        query = query * (query.shape[-1] ** -0.5)
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2))  # [B, A, Q, N]
        weights = ops.softmax(ops.cast(scores, "float32"), axis=-1)
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
        }


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

    Call arguments:
        tokens: Tensor [B, N, D].
        training: Whether dropout and stochastic depth are active.

    Returns:
        Tensor [B, N, D].
    """

    def __init__(
        self,
        mlp_dim,
        heads,
        dropout=0.0,
        attention_dropout=0.0,
        stochastic_depth=0.0,
        gelu="tanh",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.mlp_dim = mlp_dim
        self.heads = heads
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.stochastic_depth = stochastic_depth
        self.gelu = gelu
        dtype = self.dtype_policy
        self.norm1 = layer_norm("norm1", dtype)
        self.attention = MultiHeadSelfAttention(
            heads, attention_dropout, name="attention", dtype=dtype
        )
        self.norm2 = layer_norm("norm2", dtype)
        self.mlp = MLP(mlp_dim, dropout, gelu, name="mlp", dtype=dtype)
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=dtype)
        self.stochastic_depth_layer = StochasticDepth(stochastic_depth, dtype=dtype)

    def build(self, input_shape):
        for layer in (self.norm1, self.attention, self.norm2, self.mlp):
            layer.build(input_shape)

    def call(self, tokens, training=False):
        branch = self.attention(self.norm1(tokens), training=training)
        branch = self.dropout_layer(branch, training=training)
        tokens = tokens + self.stochastic_depth_layer(branch, training=training)
        branch = self.mlp(self.norm2(tokens), training=training)
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
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(keras.layers.Layer):
    """A learned query attends to all tokens: the MAP head (arXiv:2106.04560, 3.3).

    Args:
        mlp_dim: Width M of the MLP that follows the attention.
        heads: Number of attention heads A.
        gelu: `"tanh"` or `"exact"`.

    Call arguments:
        tokens: Tensor [B, N, D].

    Returns:
        Tensor [B, D].
    """

    def __init__(self, mlp_dim, heads, gelu="tanh", **kwargs):
        super().__init__(**kwargs)
        self.mlp_dim = mlp_dim
        self.heads = heads
        self.gelu = gelu
        dtype = self.dtype_policy
        self.attention = MultiHeadSelfAttention(heads, name="attention", dtype=dtype)
        self.norm = layer_norm("norm", dtype)
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
        shape = (ops.shape(tokens)[0], 1, tokens.shape[-1])
        probe = ops.broadcast_to(ops.cast(self.probe, tokens.dtype), shape)
        pooled = self.attention(tokens, queries=probe)  # [B, 1, D]
        pooled = pooled + self.mlp(self.norm(pooled))
        return pooled[:, 0]

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "mlp_dim": self.mlp_dim,
            "heads": self.heads,
            "gelu": self.gelu,
        }
