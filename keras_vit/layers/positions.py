"""Position embeddings: added to tokens, or relative ones for attention scores.

The kinds are those of the paper's Table 8 (appendix D.4), and the fixed sines and
cosines of big_vision and MAE.
"""

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
        self, stddev: float = 0.02, skip_tokens: int = 0, **kwargs: object
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
        **kwargs: object,
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
        self, grid: tuple[int, int], last_frequency: bool = True, **kwargs: object
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

    def __init__(self, heads: int, stddev: float = 0.02, **kwargs: object) -> None:
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


def relative_bias_rows(grid: tuple[int, int]) -> Array:
    """Row of BEiT's table of relative positions for each pair of tokens.

    Args:
        grid: (h, w), rows and columns of patches.

    Returns:
        int32 array [N, N], queries first, N = 1 + h * w. A pair of patches has the row
        (2 w - 1) (h - 1 + y - y') + w - 1 + x - x', the query at (y, x); the three last
        ones are of the class token to a patch, a patch to it, and it to itself.
    """
    height, width = grid
    y, x = (axis.ravel() for axis in np.mgrid[:height, :width])
    down, right = (np.subtract.outer(axis, axis) for axis in (y, x))
    patches = (2 * width - 1) * (height - 1 + down) + width - 1 + right
    rows = np.pad(patches, ((1, 0), (1, 0)))
    count = relative_bias_count(grid)
    rows[0], rows[:, 0], rows[0, 0] = count - 3, count - 2, count - 1
    return rows.astype("int32")


def relative_bias_count(grid: tuple[int, int]) -> int:
    """Rows of that table, (2 h - 1) (2 w - 1) + 3."""
    height, width = grid
    return (2 * height - 1) * (2 * width - 1) + 3


def relative_bias(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """What is added to the scores, [A, N, N], from a table of shape [rows, A]."""
    # Along the second axis, as gradients of a lookup along the first are sparse.
    rows = ops.convert_to_tensor(relative_bias_rows(grid), "int32")
    return ops.take(ops.transpose(table), rows, axis=1)


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativeBias(ConfiguredLayer):
    """Relative positions of BEiT shared by the attention of all blocks.

    See arXiv:2106.08254, section 2.3; the numbers begin as zeros.

    Args:
        grid: (h, w), rows and columns of patches.
        heads: Number of attention heads A.

    Call arguments:
        tokens: Tensor [B, N, D] of a class token and h * w patches, which is not read.

    Returns:
        Tensor [A, N, N], added to the scores of queries (second axis) and keys.
    """

    def __init__(self, grid: tuple[int, int], heads: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        rows, columns = grid
        self.grid = rows, columns
        self.heads = heads

    def build(self, input_shape: TokensShape) -> None:
        shape = (relative_bias_count(self.grid), self.heads)
        self.table = self.add_weight(name="table", shape=shape, initializer="zeros")

    def call(self, tokens: Tokens) -> Tensor:
        return ops.cast(relative_bias(self.table, self.grid), self.compute_dtype)

    def compute_output_shape(self, input_shape: TokensShape) -> Shape:
        height, width = self.grid
        return (self.heads, 1 + height * width, 1 + height * width)


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
