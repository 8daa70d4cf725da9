"""The grid of a checkpoint's positions: stated, or one that fits their number."""

import math
import re

from keras_vit.specs import image_size_pair
from keras_vit.weights.checkpoint import Checkpoint

# Key under which `save_checkpoint` writes the grid: in the metadata of .safetensors, in
# the comment of a ZIP archive.
GRID_METADATA = "keras_vit.grid"


def config_image_size(checkpoint: Checkpoint) -> tuple[int, int] | None:
    """(H, W), if a config gives it."""
    size = checkpoint.described.image_size(checkpoint.file)
    if not size:
        return None
    try:
        return image_size_pair(size if isinstance(size, int) else (size[0], size[1]))
    except ValueError as error:
        raise TypeError(error) from error


def grid_fits(
    checkpoint: Checkpoint, tokens: int, prefix: int, grid: tuple[int, int]
) -> bool:
    """Whether a grid leaves the family's number of positions for prefix tokens."""
    return tokens - grid[0] * grid[1] in _covered(checkpoint, prefix)


def stated_grid(
    checkpoint: Checkpoint, tokens: int, prefix: int, side: int
) -> tuple[int, int] | None:
    """Grid from the file's metadata or the config beside it, if it fits.

    Args:
        checkpoint: An open checkpoint.
        tokens: Number of its positions.
        prefix: Number of its class and register tokens.
        side: Side of a patch in pixels.
    """
    grids = [_from_metadata(checkpoint.file.metadata.get(GRID_METADATA))]
    if size := config_image_size(checkpoint):
        grids.append((size[0] // side, size[1] // side))
    for grid in grids:
        if grid is not None and grid_fits(checkpoint, tokens, prefix, grid):
            return grid
    return None


def square_grids(
    checkpoint: Checkpoint, tokens: int, prefix: int
) -> list[tuple[int, int]]:
    """Square grids that fit, the family's usual one first."""
    squares = []
    for covered in _covered(checkpoint, prefix):
        side = math.isqrt(max(tokens - covered, 0))
        if side and side * side == tokens - covered:
            squares.append((side, side))
    return squares


def grid_metadata(grid: tuple[int, int]) -> dict[str, str]:
    """Metadata of a file that give its grid."""
    return {GRID_METADATA: f"{grid[0]}x{grid[1]}"}


def _from_metadata(text: str | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", str(text), re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def _covered(checkpoint: Checkpoint, prefix: int) -> tuple[int, ...]:
    """Possible numbers of prefix tokens with positions, the usual one first."""
    return checkpoint.described.prefix_positions(prefix) if prefix else (0,)
