"""Position embeddings: added to tokens, or relative ones for attention scores.

The kinds are those of the paper's Table 8 (appendix D.4), and the fixed sines and
cosines of big_vision and MAE.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.configured_layer import ConfiguredLayer, SameShapeLayer
from keras_vit.typing import (
    Array,
    Heads,
    InputShape,
    Shape,
    Tensor,
    Tokens,
    TokensShape,
    Weights,
)

TEMPERATURE = 10_000.0


def normal(stddev: float) -> keras.initializers.Initializer:
    """Initializer of all learned positions."""
    return keras.initializers.RandomNormal(stddev=stddev)


def _add_to_last(tokens: Tokens, embedding: Tensor) -> Tokens:
    """Add [1, n, D] to the last n of the tokens."""
    embedding = ops.cast(embedding, tokens.dtype)
    skipped = tokens.shape[1] - embedding.shape[1]
    if skipped:
        embedding = ops.pad(embedding, ((0, 0), (skipped, 0), (0, 0)))
    return tokens + embedding


@keras.saving.register_keras_serializable(package="keras_vit")
class PositionEmbedding(SameShapeLayer):
    """Add a learned vector to each token (section 3.1; "1-D" in Table 8).

    It is one plain weight, not an Embedding layer: the sparse gradients of a lookup
    cannot be all-reduced efficiently.

    Args:
        stddev: Standard deviation of the initial values: 0.02 in the official code,
            D^-0.5 in big_vision. Tiny models that train briefly learn positions sooner
            from a larger one.
        skip_tokens: Leading tokens that get no position.

    Call arguments:
        tokens: Tensor [B, N, D], N static.

    Returns:
        Tensor [B, N, D].
    """

    def __init__(
        self, stddev: float = 0.02, skip_tokens: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.stddev = stddev
        self.skip_tokens = skip_tokens

    def build(self, input_shape: TokensShape) -> None:
        _, tokens, width = input_shape
        self.embedding = self.add_weight(
            name="embedding",
            shape=(1, tokens - self.skip_tokens, width),
            initializer=normal(self.stddev),
        )

    def call(self, tokens: Tokens) -> Tokens:
        return _add_to_last(tokens, self.embedding)


@keras.saving.register_keras_serializable(package="keras_vit")
class PositionEmbedding2D(SameShapeLayer):
    """Add a learned vector of the column and one of the row ("2-D" in Table 8).

    Each has D / 2 elements: a patch gets [its column's, its row's]. Tokens before the
    patches get vectors of their own, as wide as a token.

    Args:
        grid: (h, w), rows and columns of patches.
        stddev: Standard deviation of the initial values.
        skip_tokens: Leading tokens that get no position.

    Call arguments:
        tokens: Tensor [B, N, D], the last h * w of them patches, row by row.

    Returns:
        Tensor [B, N, D].
    """

    def __init__(
        self,
        grid: tuple[int, int],
        stddev: float = 0.02,
        skip_tokens: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        rows, columns = grid
        self.grid = rows, columns
        self.stddev = stddev
        self.skip_tokens = skip_tokens

    def build(self, input_shape: TokensShape) -> None:
        _, tokens, width = input_shape
        if width % 2:
            raise ValueError(
                "2-D positions need an even width of the tokens. "
                f"Received: width={width}"
            )
        rows, columns = self.grid
        prefix = tokens - self.skip_tokens - rows * columns
        self.rows = self._add("rows", (1, rows, 1, width // 2))
        self.columns = self._add("columns", (1, 1, columns, width // 2))
        self.prefix = self._add("prefix", (1, prefix, width)) if prefix else None

    def _add(self, name: str, shape: Shape) -> Tensor:
        return self.add_weight(name=name, shape=shape, initializer=normal(self.stddev))

    def call(self, tokens: Tokens) -> Tokens:
        shape = (1, *self.grid, self.rows.shape[-1])
        halves = [ops.broadcast_to(half, shape) for half in (self.columns, self.rows)]
        embedding = ops.concatenate(halves, axis=-1)
        embedding = ops.reshape(embedding, (1, -1, tokens.shape[-1]))  # [1, h * w, D]
        if self.prefix is not None:
            embedding = ops.concatenate([self.prefix, embedding], axis=1)
        return _add_to_last(tokens, embedding)


def sincos_2d(grid: tuple[int, int], width: int, last_frequency: bool = True) -> Array:
    """Fixed positions [h * w, D]: sin x, cos x, sin y, cos y, D / 4 frequencies each.

    Args:
        grid: (h, w), rows and columns of patches.
        width: Width D, a multiple of 4.
        last_frequency: Whether the frequencies fall from 1 to 1e-4 inclusively, as in
            big_vision (arXiv:2205.01580); without, they stop one step before, as in
            MAE (arXiv:2111.06377).
    """
    waves = width // 4
    steps = max(waves - 1, 1) if last_frequency else waves
    frequencies = TEMPERATURE ** -(np.arange(waves) / steps)
    y, x = np.mgrid[: grid[0], : grid[1]]
    angles = [np.outer(axis.ravel(), frequencies) for axis in (x, y)]
    return np.concatenate(
        [wave(angle) for angle in angles for wave in (np.sin, np.cos)], axis=1
    )


@keras.saving.register_keras_serializable(package="keras_vit")
class SinCosPositionEmbedding(SameShapeLayer):
    """Add fixed sines and cosines of the column and the row to each patch.

    Args:
        grid: (h, w), rows and columns of patches.
        last_frequency: See `sincos_2d`.

    Call arguments:
        tokens: Tensor [B, N, D], the last h * w of them patches, row by row. Those
            before get no position.

    Returns:
        Tensor [B, N, D].
    """

    def __init__(
        self, grid: tuple[int, int], last_frequency: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        rows, columns = grid
        self.grid = rows, columns
        self.last_frequency = last_frequency

    def build(self, input_shape: InputShape) -> None:
        width = input_shape[-1]
        if width % 4:
            raise ValueError(
                "Sine and cosine positions need a width of the tokens that is a "
                f"multiple of 4. Received: width={width}"
            )
        self.embedding = sincos_2d(self.grid, width, self.last_frequency)[None]

    def call(self, tokens: Tokens) -> Tokens:
        return _add_to_last(tokens, self.embedding)


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativePosition(ConfiguredLayer):
    """Relative position embeddings shared by the attention of all blocks.

    Args:
        heads: Number of attention heads A; the heads share the table.
        stddev: Standard deviation of the initial values.

    Call arguments:
        tokens: Tensor [B, N, D], N static; only its shape is used.

    Returns:
        Tensor [2 N - 1, K], for `relative_scores`.
    """

    def __init__(self, heads: int, stddev: float = 0.02, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.heads = heads
        self.stddev = stddev

    def build(self, input_shape: TokensShape) -> None:
        self.embedding = self.add_weight(
            name="embedding",
            shape=self.compute_output_shape(input_shape),
            initializer=normal(self.stddev),
        )

    def call(self, tokens: Tokens) -> Tensor:
        return ops.cast(self.embedding, self.compute_dtype)

    def compute_output_shape(self, input_shape: TokensShape) -> Shape:
        _, tokens, width = input_shape
        return (2 * tokens - 1, width // self.heads)


def relative_scores(query: Heads, embedding: Tensor) -> Weights:
    """Relative attention scores ("Rel." in Table 8, appendix D.4).

    Args:
        query: Tensor [B, A, N, K], scaled.
        embedding: Tensor [2 N - 1, K]; row N - 1 + k - q embeds the offset of key k
            from query q (arXiv:1803.02155, equation 4, without clipping).

    Returns:
        Tensor [B, A, N, N].
    """
    n = query.shape[-2]
    # One product with all offsets, then each row q moved N - 1 - q to the left: a
    # column more makes that a reshape. A lookup would have sparse gradients.
    embedding = ops.pad(embedding, ((0, 1), (0, 0)))
    scores = ops.matmul(query, ops.transpose(embedding))  # [B, A, N, 2 N]
    scores = ops.reshape(scores, (-1, query.shape[1], 2 * n * n))
    scores = scores[..., n - 1 : n - 1 + n * (2 * n - 1)]
    return ops.reshape(scores, (-1, query.shape[1], n, 2 * n - 1))[..., :n]
