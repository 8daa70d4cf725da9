"""What a residual branch of an encoder block is made of, but for its attention."""

import keras
from keras import ops

from keras_vit.base import check_choice, check_rates

LAYER_NORM_EPSILON = 1e-6
GELUS = {"tanh": True, "exact": False}  # to keras.activations.gelu's `approximate`


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(keras.layers.Layer):
    """Layer normalisation over the last axis, computed in the formula's own order.

    Keras's LayerNormalization multiplies the formula out, x * s + (beta - mean * s)
    with s = gamma / stddev, which takes more passes over the tokens: 2 to 3 % of a
    B/16 forward pass on CPU.

    Args:
        epsilon: Added to the variance; the official code's and timm's by default.

    Call arguments:
        inputs: Tensor [..., D].

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

    def call(self, inputs):
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        inputs = ops.cast(inputs, dtype)
        centered = inputs - ops.mean(inputs, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
        normalized = centered * ops.rsqrt(variance + self.epsilon)
        # Not rsqrt * gamma first: TensorFlow's remapper.cc has a pattern of that order,
        # and the kernel that it puts there exists for CPUs alone.
        outputs = normalized * ops.cast(self.gamma, dtype) + ops.cast(self.beta, dtype)
        return ops.cast(outputs, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}


def rank_2(tokens):
    """[..., D] -> [-1, D].

    On CPU only a rank-2 MatMul next to its BiasAdd (and GELU) is fused into one
    kernel; a Dense layer on rank 3 hides the pattern. It costs nothing elsewhere.
    """
    return ops.reshape(tokens, (-1, tokens.shape[-1]))


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
        check_rates({"rate": rate}, ("rate",))
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
    """Multiplies a residual branch by a learned vector (arXiv:2103.17239, section 2).

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
        check_choice("gelu", gelu, tuple(GELUS))
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
        hidden = self.dense1(rank_2(tokens))  # [B * N, M]
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
