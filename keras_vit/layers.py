"""Layers of a Vision Transformer, for any Keras backend, and the glossary of letters.

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
    M       width of the hidden layer of the MLP, in a SwiGLU after its gate
"""

import functools

import keras
from keras import ops

from keras_vit.attention import (
    apply_weights,
    attention_weights,
    dot_product_attention,
)
from keras_vit.checks import check_choice, check_rate
from keras_vit.fusion import fused, fused_dense
from keras_vit.positions import (
    PositionEmbedding,
    PositionEmbedding2D,
    RelativePosition,
    SinCosPositionEmbedding,
    normal,
    relative_scores,
)

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

LAYER_NORM_EPSILON = 1e-6
GELUS = {"tanh": True, "exact": False}  # to keras.activations.gelu's `approximate`


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(keras.layers.Layer):
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

    def __init__(self, epsilon=LAYER_NORM_EPSILON, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.autocast = False  # as Keras's: float32 tokens and weights are not rounded

    def build(self, input_shape):
        width = (input_shape[-1],)
        self.gamma = self.add_weight(
            name="gamma", shape=width, initializer="ones", autocast=False
        )
        self.beta = self.add_weight(
            name="beta", shape=width, initializer="zeros", autocast=False
        )

    def call(self, inputs, training=False):
        return fused(
            layer_norm,
            inputs,
            self.gamma,
            self.beta,
            training=training,
            dtype=self.compute_dtype,
            epsilon=self.epsilon,
        )

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}


def layer_norm(inputs, gamma, beta, *, epsilon):
    """`LayerNorm` of [..., D] with its weights [D], in float32 at least."""
    internal = keras.backend.result_type(inputs.dtype, "float32")
    inputs = ops.cast(inputs, internal)
    centered = inputs - ops.mean(inputs, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
    normalized = centered * ops.rsqrt(variance + epsilon)
    # Not rsqrt * gamma first: TensorFlow's remapper.cc has a pattern of that order,
    # and the kernel that it puts there exists for CPUs alone.
    return normalized * ops.cast(gamma, internal) + ops.cast(beta, internal)


def dense_of(layers, tokens, norm, training):
    """Dense layers of the tokens [..., D], normalized unless `norm` is None: [-1, M].

    Training does not keep what a `LayerNorm` returns here.
    """
    if norm is None:
        return [layer(rank_2(tokens)) for layer in layers]
    return fused_dense(
        layers,
        layer_norm,
        rank_2(tokens),
        norm.gamma,
        norm.beta,
        training=training,
        dtype=norm.compute_dtype,
        epsilon=norm.epsilon,
    )


def rank_2(tokens):
    """[..., D] -> [-1, D].

    On CPU only a rank-2 MatMul next to its BiasAdd (and GELU) is fused into one
    kernel; a Dense layer on rank 3 hides the pattern. It costs nothing elsewhere.
    """
    return ops.reshape(tokens, (-1, tokens.shape[-1]))


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(keras.layers.Layer):
    """Multi-head scaled dot-product attention (appendix A, equations 5 to 8).

    Args:
        heads: Number of heads A; must divide the width D of the tokens.
        attention_dropout: Dropout rate on the attention weights. The paper has none.
            In training it needs all weights [B, A, N, N] in memory, as relative
            positions always do; see `keras_vit.attention`.
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
        norm: `LayerNorm` of the tokens, and of the queries; none when absent.
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

    def _projections(self, tokens, queries, norm=None, training=False):
        """Queries [B, Q, A, K], keys and values [B, N, A, K]."""
        if queries is None:
            layers = (self.query, self.key, self.value)
            query, key, value = dense_of(layers, tokens, norm, training)
            queries = tokens
        else:
            [query] = dense_of([self.query], queries, norm, training)
            key, value = dense_of([self.key, self.value], tokens, norm, training)
        query = self._split_heads(query, queries)
        key, value = (self._split_heads(x, tokens) for x in (key, value))
        if self.qk_norm:
            query = self.query_norm(query, training=training)
            key = self.key_norm(key, training=training)
        return query, key, value

    def _split_heads(self, x, tokens):
        """[B * N, D] -> [B, N, A, K]."""
        length, width = ops.shape(tokens)[-2], tokens.shape[-1]
        return ops.reshape(x, (-1, length, self.heads, width // self.heads))

    def attention_weights(self, tokens, queries=None, relative_embedding=None):
        """Attention weights [B, A, Q, N] in float32, a softmax over the last axis.

        For the arguments see the class. There is no dropout.
        """
        query, key, _ = self._projections(tokens, queries)
        return self._attention_weights(query, key, relative_embedding)

    def _attention_weights(self, query, key, relative_embedding):
        if self.relative_stddev is not None:
            relative_embedding = ops.cast(self.relative_embedding, query.dtype)
        bias = None
        if relative_embedding is not None:
            bias = functools.partial(relative_scores, embedding=relative_embedding)
        return attention_weights(query, key, bias)

    def call(
        self,
        tokens,
        queries=None,
        relative_embedding=None,
        norm=None,
        training=False,
    ):
        query, key, value = self._projections(tokens, queries, norm, training)
        queries = tokens if queries is None else queries
        relative = not (self.relative_stddev is None and relative_embedding is None)
        if relative or (training and self.attention_dropout):
            weights = self._attention_weights(query, key, relative_embedding)
            weights = ops.cast(weights, value.dtype)
            weights = self.dropout_layer(weights, training=training)
            heads = apply_weights(weights, value)
        else:
            heads = dot_product_attention(query, key, value, training)
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


def silu_gate(hidden):
    """[..., 2 M], gate and values side by side -> silu(gate) * values [..., M]."""
    gate, values = ops.split(hidden, 2, axis=-1)
    return keras.activations.silu(gate) * values


@keras.saving.register_keras_serializable(package="keras_vit")
class MLP(keras.layers.Layer):
    """Two dense layers with a GELU between them (section 3.1), or a SwiGLU.

    The first layer of a SwiGLU (arXiv:2002.05202, equation 6) returns a gate [.., M]
    and values [.., M] side by side; the second reads silu(gate) * values.

    Args:
        hidden_dim: Width M of the hidden layer.
        dropout: Dropout rate after each of the two layers (appendix B.1).
        gelu: `"tanh"`, the approximation of the official code, or `"exact"`, what
            timm and Hugging Face compute.
        swiglu: Whether a SwiGLU takes the place of the GELU.

    Call arguments:
        tokens: Tensor [B, N, D].
        norm: `LayerNorm` of the tokens; none when absent.
        training: Whether dropout is active.

    Returns:
        Tensor [B, N, D].
    """

    def __init__(self, hidden_dim, dropout=0.0, gelu="tanh", swiglu=False, **kwargs):
        super().__init__(**kwargs)
        check_choice("gelu", gelu, tuple(GELUS))
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        self.gelu = gelu
        self.swiglu = swiglu
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        width = input_shape[-1]
        # The official code's names. TensorFlow sorts a graph's inputs by name before it
        # looks for MatMul + BiasAdd + GELU, and finds it only where the dense layer's
        # name comes before "Gelu": with "dense" the step is a third slower in bfloat16.
        self.dense1 = self._dense("Dense_0", self.hidden_dim * (1 + self.swiglu))
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

    def call(self, tokens, norm=None, training=False):
        [hidden] = dense_of([self.dense1], tokens, norm, training)  # [B * N, M]
        kernel = {"training": training, "dtype": self.compute_dtype}
        activation = silu_gate
        if not self.swiglu:
            activation = keras.activations.gelu
            kernel["approximate"] = GELUS[self.gelu]
        if training and self.dropout:
            hidden = fused(activation, hidden, **kernel)
            outputs = self.dense2(self.dropout_layer(hidden, training=training))
        else:
            [outputs] = fused_dense([self.dense2], activation, hidden, **kernel)
        outputs = self.dropout_layer(outputs, training=training)
        return ops.reshape(outputs, ops.shape(tokens))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "dropout": self.dropout,
            "gelu": self.gelu,
            "swiglu": self.swiglu,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class StochasticDepth(keras.layers.Layer):
    """Drop a residual branch for whole examples while training (arXiv:1603.09382).

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
        check_rate("rate", rate)
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
class LayerScale(keras.layers.Layer):
    """Multiply a residual branch by a learned vector (arXiv:2103.17239, section 2).

    Args:
        initial_value: Of each element: 0.1 up to 18 blocks, 1e-5 up to 24 and 1e-6
            beyond in the paper.

    Call arguments:
        branch: Tensor [B, ..., D].

    Returns:
        Tensor of the same shape.
    """

    def __init__(self, initial_value, **kwargs):
        super().__init__(**kwargs)
        self.initial_value = initial_value

    def build(self, input_shape):
        self.gamma = self.add_weight(
            name="gamma",
            shape=(input_shape[-1],),
            initializer=keras.initializers.Constant(self.initial_value),
        )

    def call(self, branch):
        return branch * ops.cast(self.gamma, branch.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "initial_value": self.initial_value}


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
        qk_norm: Whether queries and keys are normalized.
        norm_epsilon: Epsilon of every LayerNorm.
        relative_stddev: Standard deviation of the initial relative embeddings of its
            own, or `None` for none.
        swiglu: Whether the MLP is a SwiGLU.

    Call arguments:
        tokens: Tensor [B, N, D]; or [B, ..., N, D], where N tokens attend to each
            other.
        relative_embedding: Tensor [2 N - 1, K] that is not its own.
        first: How many tokens are asked for, from the first on; all when absent. Not
            with relative positions.
        training: Whether dropout and stochastic depth are active.

    Returns:
        Tensor of the tokens' shape, or [B, first, D].
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
        swiglu=False,
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
        self.swiglu = swiglu
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
        self.mlp = MLP(mlp_dim, dropout, gelu, swiglu, name="mlp", dtype=dtype)
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

    def call(self, tokens, relative_embedding=None, first=None, training=False):
        if first is None:
            branch = self.attention(
                tokens,
                relative_embedding=relative_embedding,
                norm=self.norm1,
                training=training,
            )
        elif self.relative_stddev is None and relative_embedding is None:
            normalized = self.norm1(tokens, training=training)
            tokens, queries = tokens[:, :first], normalized[:, :first]
            branch = self.attention(normalized, queries=queries, training=training)
        else:
            raise ValueError(
                "`first` must be absent with relative positions, which are between "
                f"all tokens. Received: first={first}"
            )
        branch = self.dropout_layer(branch, training=training)
        tokens = self._add(tokens, branch, self.layer_scale1, training)
        branch = self.mlp(tokens, norm=self.norm2, training=training)
        return self._add(tokens, branch, self.layer_scale2, training)

    def attention_weights(self, tokens, relative_embedding=None):
        """Attention weights [B, A, N, N] in float32, a softmax over the last axis."""
        return self.attention.attention_weights(
            self.norm1(tokens), relative_embedding=relative_embedding
        )

    def _add(self, tokens, branch, layer_scale, training):
        if layer_scale is not None:
            branch = layer_scale(branch)
        return tokens + self.stochastic_depth_layer(branch, training=training)

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(
        self, tokens, relative_embedding=None, first=None, training=False
    ):
        shape = list(tokens.shape)
        if first is not None:
            shape[1] = first
        return keras.KerasTensor(shape, self.compute_dtype)

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
            "swiglu": self.swiglu,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialEncoderBlock(keras.layers.Layer):
    """Axial attention: within the rows, then within the columns (appendix D.6).

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


def _prepend(tokens, patches):
    """Concatenate [1, R, D] and every image's [B, N, D]."""
    shape = (ops.shape(patches)[0], *tokens.shape[1:])
    tokens = ops.broadcast_to(ops.cast(tokens, patches.dtype), shape)
    return ops.concatenate([tokens, patches], axis=1)


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(keras.layers.Layer):
    """Prepend one learned token, initialized to zero (section 3.1, equation 1).

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
        return _prepend(self.token, patches)

    def compute_output_shape(self, input_shape):
        batch, tokens, width = input_shape
        return (batch, None if tokens is None else tokens + 1, width)

    def get_config(self):
        # Keras makes a config by itself only where `dtype` was given as a string.
        return super().get_config()


@keras.saving.register_keras_serializable(package="keras_vit")
class RegisterTokens(keras.layers.Layer):
    """Prepend learned tokens that no pooling reads (arXiv:2309.16588, section 2.2).

    Args:
        count: Number R of register tokens.

    Call arguments:
        patches: Tensor [B, N, D].

    Returns:
        Tensor [B, R + N, D], the registers first.
    """

    def __init__(self, count, **kwargs):
        super().__init__(**kwargs)
        self.count = count

    def build(self, input_shape):
        self.tokens = self.add_weight(
            name="tokens",
            shape=(1, self.count, input_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=1e-6),
        )

    def call(self, patches):
        return _prepend(self.tokens, patches)

    def compute_output_shape(self, input_shape):
        batch, tokens, width = input_shape
        return (batch, None if tokens is None else self.count + tokens, width)

    def get_config(self):
        return {**super().get_config(), "count": self.count}


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchDropout(keras.layers.Layer):
    """Drop random patches of each image in training (arXiv:2212.00794).

    The shorter sequence, in its order, trains faster.

    Args:
        rate: Fraction of the patches in [0, 1) to drop; at least one patch stays.
        prefix_tokens: Leading tokens that always stay.
        seed: Integer or `keras.random.SeedGenerator`.

    Call arguments:
        tokens: Tensor [B, prefix + N, D], the number of tokens static.
        training: Nothing is dropped unless true.

    Returns:
        Tensor [B, prefix + max(1, floor(N (1 - rate))), D] while training, the
        tokens themselves otherwise.
    """

    def __init__(self, rate, prefix_tokens=0, seed=None, **kwargs):
        super().__init__(**kwargs)
        check_rate("rate", rate)
        self.rate = rate
        self.prefix_tokens = prefix_tokens
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, tokens, training=False):
        patches = tokens.shape[1] - self.prefix_tokens
        kept = max(1, int(patches * (1.0 - self.rate)))
        if not training or kept == patches:
            return tokens
        shape = (ops.shape(tokens)[0], patches)
        random = keras.random.uniform(shape, dtype="float32", seed=self.seed_generator)
        chosen = ops.sort(ops.top_k(random, kept, sorted=False)[1], axis=1)
        chosen = ops.expand_dims(chosen + self.prefix_tokens, -1)  # [B, kept, 1]
        return ops.concatenate(
            [
                tokens[:, : self.prefix_tokens],
                ops.take_along_axis(tokens, chosen, axis=1),
            ],
            axis=1,
        )

    def compute_output_shape(self, input_shape):
        return input_shape  # at inference

    def get_config(self):
        return {
            **super().get_config(),
            "rate": self.rate,
            "prefix_tokens": self.prefix_tokens,
            "seed": self.seed,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(keras.layers.Layer):
    """Attention pooling by a learned query, the MAP head (arXiv:2106.04560, 3.3).

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
        pooled = pooled + self.mlp(pooled, norm=self.norm)
        return pooled[:, 0]

    def attention_weights(self, tokens):
        """Attention weights [B, A, 1, N] in float32, a softmax over the last axis."""
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
