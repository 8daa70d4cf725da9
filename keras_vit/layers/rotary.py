"""Rotary position embeddings: queries and keys rotated by angles of their places.

A score depends on the difference of two places alone (arXiv:2104.09864); in images an
angle is of the row or of the column, or of both (arXiv:2403.13298).
"""

import math
from types import ModuleType
from typing import Literal

import keras
import numpy as np
from keras import ops

from keras_vit import options
from keras_vit.layers.options_layer import OptionsLayer
from keras_vit.typing import Array, Heads, Shape, Tensor, Tokens, TokensShape


def patch_coordinates(
    grid: tuple[int, int],
    centered: bool,
    offset: float = 0.0,
    reference_grid: tuple[int, int] | None = None,
) -> Array:
    """Row and column of each patch, row by row: float64 [h * w, 2].

    Args:
        grid: (h, w), rows and columns of patches.
        centered: Whether patches' centers from -1 to 1 across the image, as in DINOv3
            (arXiv:2508.10104), instead of their numbers.
        offset: Added to the numbers.
        reference_grid: Grid to which the numbers are scaled, as in EVA-02
            (arXiv:2303.11331); `None` for no scaling.
    """
    axes: list[Array] = []
    for length, reference in zip(grid, reference_grid or grid, strict=True):
        numbers = np.arange(length)
        if centered:
            axes.append((2 * numbers + 1) / length - 1)
        else:
            axes.append((numbers + offset) * (reference / length))
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def magnitudes(head_width: int, temperature: float) -> Array:
    """Frequencies that fall from 1 towards 1 / temperature: float64 [K / 4]."""
    waves = head_width // 4
    return temperature ** -(np.arange(waves) / waves)


@keras.saving.register_keras_serializable(package="keras_vit")
class RotaryPositions(OptionsLayer):
    """Cosines and sines of the angles by which blocks rotate queries and keys.

    The angles of `"mixed"` have learned frequencies for each block and head, which
    begin with perpendicular directions turned by a random angle (arXiv:2403.13298,
    section 3.2). The others are constants, the same for all blocks and heads, but in
    training with shifted or scaled coordinates: one draw for all images of a batch.

    Args:
        grid: (h, w), rows and columns of patches.
        heads: Number of attention heads A.
        depth: Number of blocks.
        **kwargs: Those of `keras_vit.options.RotaryOptions`, and of every layer.

    Call arguments:
        tokens: Tensor [B, N, D], the last h * w of them patches, row by row; only its
            shape is used. Those before are not rotated.
        training: Whether coordinates are shifted and scaled.

    Returns:
        Tensor [depth, 2, N, A, K] for `rotate`; [1, 2, N, 1, K] where all blocks and
        heads have the same.
    """

    options_class = options.RotaryOptions

    def __init__(
        self, grid: tuple[int, int], heads: int, depth: int, **kwargs: object
    ) -> None:
        super().__init__(**kwargs)
        rows, columns = grid
        self.grid = rows, columns
        self.heads = heads
        self.depth = depth
        changes = (self.rotary_shift, self.rotary_jitter, self.rotary_rescale)
        self._augments = any(change is not None for change in changes)
        if self._augments:
            self.seed_generator = keras.random.SeedGenerator()

    def build(self, input_shape: TokensShape) -> None:
        *_, width = input_shape
        head_width = width // self.heads
        if head_width % 4:
            raise ValueError(
                "Rotary positions need heads of a width that is a multiple of 4. "
                f"Received: width={width}, heads={self.heads}"
            )
        self._magnitudes = magnitudes(head_width, self.rotary_temperature)
        coordinates = patch_coordinates(
            self.grid,
            self.rotary == "centered",
            self.rotary_offset,
            self.rotary_reference_grid,
        )
        # The first column is that of the first half of the frequencies.
        self._coordinates = coordinates[:, :: -1 if self.rotary_axes == "xy" else 1]
        if self.rotary == "mixed":
            self.frequencies = self.add_weight(
                name="frequencies",
                shape=(2, self.depth, self.heads, head_width // 2),
                initializer=self._initial_frequencies,
                autocast=False,
            )
            return
        period = 2 * math.pi if self.rotary == "centered" else 1.0
        waves, zeros = period * self._magnitudes, np.zeros(head_width // 4)
        frequencies = [np.append(waves, zeros), np.append(zeros, waves)]
        self._fixed = np.stack(frequencies)[:, None, None]  # [2, 1, 1, K / 2]

    def _initial_frequencies(
        self, shape: tuple[int, ...], dtype: str | None = None
    ) -> Tensor:
        """Two perpendicular directions for each head of each block: [2, ..., K / 2]."""
        turns = keras.initializers.RandomUniform(0.0, 2 * math.pi)
        turn = turns((*shape[1:3], 1), dtype)
        directions = ops.concatenate([turn, turn + math.pi / 2], axis=-1)
        directions = ops.repeat(directions, shape[-1] // 2, axis=-1)
        lengths = ops.convert_to_tensor(np.tile(self._magnitudes, 2), dtype)
        return lengths * ops.stack([ops.cos(directions), ops.sin(directions)])

    def call(self, tokens: Tokens, training: bool = False) -> Tensor:
        prefix = tokens.shape[1] - len(self._coordinates)
        if self.rotary != "mixed" and not (training and self._augments):
            coordinates = np.pad(self._coordinates, ((prefix, 0), (0, 0)))
            table = _table(coordinates, self._fixed, np)
            return ops.convert_to_tensor(table, self.compute_dtype)
        dtype = keras.backend.result_type(self.compute_dtype, "float32")
        coordinates = ops.convert_to_tensor(self._coordinates, dtype)
        if training and self._augments:
            coordinates = self._augmented(coordinates)
        coordinates = ops.pad(coordinates, ((prefix, 0), (0, 0)))
        learned = self.rotary == "mixed"
        frequencies = self.frequencies if learned else self._fixed
        frequencies = ops.convert_to_tensor(frequencies, dtype)
        return ops.cast(_table(coordinates, frequencies, ops), self.compute_dtype)

    def _augmented(self, coordinates: Tensor) -> Tensor:
        """DINOv3's shift and scales of the axes, and its common scale."""
        if self.rotary_shift is not None:
            coordinates = coordinates + self._uniform(2, self.rotary_shift)
        if self.rotary_jitter is not None:
            scales = self._uniform(2, math.log(self.rotary_jitter))
            coordinates = coordinates * ops.exp(scales)
        if self.rotary_rescale is not None:
            scale = self._uniform(1, math.log(self.rotary_rescale))
            coordinates = coordinates * ops.exp(scale)
        return coordinates

    def _uniform(self, count: int, limit: float) -> Tensor:
        return keras.random.uniform(
            (count,), -limit, limit, dtype="float32", seed=self.seed_generator
        )

    def compute_output_shape(self, input_shape: TokensShape) -> Shape:
        _, tokens, width = input_shape
        own = (self.depth, self.heads) if self.rotary == "mixed" else (1, 1)
        return (own[0], 2, tokens, own[1], width // self.heads)


def _table(coordinates: Tensor, frequencies: Tensor, module: ModuleType) -> Tensor:
    """Coordinates [N, 2] and frequencies [2, L, A, K / 2] -> table [L, 2, N, A, K].

    Args:
        module: `numpy` for arrays, `keras.ops` for tensors.
    """
    # Not by a matrix product, which accelerators round more coarsely.
    first, second = (
        coordinates[:, axis, None, None] * frequencies[axis, :, None] for axis in (0, 1)
    )
    angles = first + second  # [L, N, A, K / 2]
    cos, sin = module.cos(angles), module.sin(angles)
    cos = module.concatenate([cos, cos], axis=-1)
    sin = module.concatenate([-sin, sin], axis=-1)
    return module.stack([cos, sin], axis=1)


def rotate(
    heads: Heads, table: Tensor, pairing: Literal["halves", "neighbors"]
) -> Heads:
    """Rotate pairs of elements of queries or keys by the angles of their tokens.

    Args:
        heads: Tensor [B, Q, A, K].
        table: Tensor [2, N, A, K], or one head for all, of `RotaryPositions`; the
            queries are the first Q of the N tokens.
        pairing: Which elements are a pair: j and j + K / 2, or 2 j and 2 j + 1.

    Returns:
        Tensor [B, Q, A, K]. Neighbors come out as halves, in the order of which the
        scores take no notice. It is computed in the dtype of the table at least.
    """
    half = heads.shape[-1] // 2
    if pairing == "neighbors":
        pairs = ops.reshape(heads, (-1, *heads.shape[1:3], half, 2))
        heads = ops.concatenate(ops.unstack(pairs, axis=-1), axis=-1)
    x = ops.cast(heads, keras.backend.result_type(heads.dtype, table.dtype))
    table = table[:, : heads.shape[1]]
    # Reversed: slices and a concatenation take 1.5 times as long, their gradient four
    # times; rolling takes 1.2 times, and LiteRT has no such operation.
    halves = ops.reshape(x, (-1, *x.shape[1:3], 2, half))
    exchanged = ops.reshape(ops.flip(halves, axis=-2), (-1, *x.shape[1:]))
    x = x * table[0] + exchanged * table[1]
    return ops.cast(x, heads.dtype)
