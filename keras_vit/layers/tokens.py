"""Tokens beside the patches, and patches left out in training."""

import keras
from keras import ops

from keras_vit.checks import check_rate
from keras_vit.configured_layer import ConfiguredLayer
from keras_vit.typing import InputShape, Shape, Tokens


def _prepend(tokens: Tokens, patches: Tokens) -> Tokens:
    """Concatenate [1, R, D] and every image's [B, N, D]."""
    shape = (ops.shape(patches)[0], *tokens.shape[1:])
    tokens = ops.broadcast_to(ops.cast(tokens, patches.dtype), shape)
    return ops.concatenate([tokens, patches], axis=1)


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(ConfiguredLayer):
    """Prepend one learned token, initialized to zero (section 3.1, equation 1).

    Call arguments:
        patches: Tensor [B, N, D].

    Returns:
        Tensor [B, N + 1, D], the class token first.
    """

    def build(self, input_shape: InputShape) -> None:
        self.token = self.add_weight(
            name="token", shape=(1, 1, input_shape[-1]), initializer="zeros"
        )

    def call(self, patches: Tokens) -> Tokens:
        return _prepend(self.token, patches)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, tokens, width = input_shape
        return (batch, None if tokens is None else tokens + 1, width)


@keras.saving.register_keras_serializable(package="keras_vit")
class RegisterTokens(ConfiguredLayer):
    """Prepend learned tokens that no pooling reads (arXiv:2309.16588, section 2.2).

    Args:
        count: Number R of register tokens.

    Call arguments:
        patches: Tensor [B, N, D].

    Returns:
        Tensor [B, R + N, D], the registers first.
    """

    def __init__(self, count: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.count = count

    def build(self, input_shape: InputShape) -> None:
        self.tokens = self.add_weight(
            name="tokens",
            shape=(1, self.count, input_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=1e-6),
        )

    def call(self, patches: Tokens) -> Tokens:
        return _prepend(self.tokens, patches)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, tokens, width = input_shape
        return (batch, None if tokens is None else self.count + tokens, width)


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchDropout(ConfiguredLayer):
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

    def __init__(
        self,
        rate: float,
        prefix_tokens: int = 0,
        seed: int | keras.random.SeedGenerator | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        check_rate("rate", rate)
        self.rate = rate
        self.prefix_tokens = prefix_tokens
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, tokens: Tokens, training: bool = False) -> Tokens:
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

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape  # at inference
