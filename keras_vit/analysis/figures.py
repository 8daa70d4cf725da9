"""Figures of the analyses, as in the paper; matplotlib and Pillow are the extra [viz].

They are drawn without pyplot, so that a notebook's or a server's own figures and its
choice of a backend stay as they are.
"""

import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.errors import NotApplicableError
from keras_vit.typing import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

DPI = 120
COLUMNS = 7  # of filters, as in the paper
BLOCKS = 4  # with positions of their own, in a row
GAP = 1  # between the maps of a mosaic, in their pixels
MOST_ROWS = 8  # images whose attention is drawn by head
MOST_PAIRS = 12  # images whose rollout is drawn
PAIRS = 3  # of these in a row
SIDE = 224  # pixels; smaller images are enlarged to it
MOST_TICKS = 16
MOST_HEADS = 16  # in a legend


def figure(width: float, height: float) -> "Figure":
    """An empty matplotlib figure; width and height in inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            'pictures need matplotlib: pip install "keras-vit-serving[viz]"'
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def save(drawn: "Figure", path: pathlib.Path) -> None:
    """Write a figure as PNG."""
    drawn.savefig(path, dpi=DPI, format="png")


def pixels(drawn: "Figure") -> Array:
    """A figure as an image, uint8 [H, W, 3]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(drawn)  # matplotlib's backends have no types
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def draw_filters(filters: Array) -> "Figure":
    """Draw principal components as RGB pictures (Figure 7 left).

    Args:
        filters: [n, P, P, C] of `embedding_filters`. Zero is drawn gray, and the
            largest absolute value of each as black or white.

    Raises:
        NotApplicableError: C is neither 1 nor 3.
    """
    count, height, width, channels = filters.shape
    if channels not in (1, 3):
        raise NotApplicableError(
            "`filters` must have 1 or 3 channels to be drawn. "
            f"Received: {channels} channels"
        )
    largest = np.abs(filters).max(axis=(1, 2, 3), keepdims=True)
    tiles = np.broadcast_to(
        0.5 + 0.5 * filters / np.maximum(largest, np.finfo("float64").tiny),
        (count, height, width, 3),
    )
    across = min(COLUMNS, count)
    rows = -(-count // across)
    drawn = figure(0.9 * across + 1, 0.9 * rows + 0.6)
    axis = drawn.add_subplot()
    for index, tile in enumerate(tiles):
        _show(axis, tile, index % across * 1.1, index // across * 1.1)
    axis.set(xlim=(0, 1.1 * across - 0.1), ylim=(1.1 * rows - 0.1, 0))
    axis.set_title(f"First {count} principal components", fontsize=10)
    axis.axis("off")
    return drawn


def draw_positions(similarity: Array) -> "Figure":
    """Draw the similarity of each position with all others (Figures 7 center, 10).

    Args:
        similarity: [h, w, h, w] of `position_similarity`, or one for each block:
            [depth, h, w, h, w].
    """
    rows, columns = similarity.shape[-4:-2]
    blocks = similarity.reshape(-1, *similarity.shape[-4:])
    across = min(len(blocks), BLOCKS)
    down = -(-len(blocks) // across)
    one = len(blocks) == 1
    side = 5.5 if one else 3.5
    drawn = figure(side * across + 1, (side * rows**2 / columns**2 + 0.6) * down)
    axes = list(drawn.subplots(down, across, squeeze=False).flat)
    for axis in axes:
        axis.axis("off")
    for block, (axis, maps) in enumerate(zip(axes, blocks, strict=False), 1):
        image = _draw_mosaic(axis, maps, MOST_TICKS if one else MOST_TICKS // 2)
        axis.set_title(_POSITIONS if one else f"block {block}")
    drawn.colorbar(image, ax=axes, label="cosine similarity", shrink=0.9)
    return drawn


_POSITIONS = "Position embedding similarity"


def _draw_mosaic(axis: "Axes", maps: Array, most: int) -> "AxesImage":
    """Draw [h, w, h, w] as h x w maps, each at its patch's place; `most`: ticks."""
    rows, columns = maps.shape[:2]
    padded = np.pad(maps, ((0, 0), (0, 0), (0, GAP), (0, GAP)), constant_values=np.nan)
    mosaic = padded.transpose(0, 2, 1, 3).reshape(rows * (rows + GAP), -1)
    axis.axis("on")
    # Not the nearest cell: of narrow gaps that would draw some and leave out others.
    image = axis.imshow(mosaic[:-GAP, :-GAP], vmin=-1, vmax=1)
    _number(axis.set_xticks, columns, most)
    _number(axis.set_yticks, rows, most)
    axis.set(xlabel="input patch column", ylabel="input patch row")
    return image


def _number(set_ticks: Callable[[Array, Array], object], count: int, most: int) -> None:
    """Number the rows or columns of a mosaic from 1, in the middle of each."""
    shown = np.arange(0, count, -(-count // most))
    set_ticks(shown * (count + GAP) + (count - 1) / 2, shown + 1)


def draw_distances(distances: Array, uniform: float | None = None) -> "Figure":
    """Draw mean attention distance over depth, a point for each head (Figure 11).

    Args:
        distances: [depth, A] of `attention_distance`, in pixels.
        uniform: Distance of uniform attention, drawn as a line for comparison.
    """
    depth, heads = distances.shape
    blocks = np.arange(1, depth + 1)
    drawn = figure(6.5, 4.5)
    from matplotlib import colormaps
    from matplotlib.ticker import AutoLocator

    axis = drawn.add_subplot()
    colors = colormaps["viridis"](np.linspace(0, 0.95, heads))
    for head, color in enumerate(colors):
        label = f"head {head + 1}" if head < MOST_HEADS else None
        axis.plot(
            blocks, distances[:, head], "o", markersize=5, color=color, label=label
        )
    if uniform is not None:
        axis.axhline(uniform, color="gray", linestyle=":", label="uniform attention")
    axis.set(xlabel="network depth (block)", ylabel="mean attention distance (pixels)")
    top = max(distances.max(), uniform or 0)
    axis.set(xlim=(0.5, depth + 0.5), ylim=(0, 1.05 * top or 1))
    locator = AutoLocator()
    locator.set_params(integer=True, min_n_ticks=1)
    axis.xaxis.set_major_locator(locator)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    return drawn


def draw_class_attention(images: Array, attention: Array) -> "Figure":
    """Draw each image, and beside it the attention of the output by head.

    Each map is drawn from its smallest value (dark) to its largest (bright).

    Args:
        images: uint8 [n, H, W, C], C 1 or 3; the first few are drawn.
        attention: [n, A, h, w] of `class_attention`.
    """
    images, attention = images[:MOST_ROWS], attention[:MOST_ROWS]
    heads = attention.shape[1]
    side = images.shape[1] / images.shape[2]
    drawn = figure(0.8 * 1.1 * (heads + 1), 0.8 * 1.1 * side * len(images) + 0.5)
    axis = drawn.add_subplot()
    for row, (image, maps) in enumerate(zip(images, attention, strict=True)):
        top = row * (side + 0.1)
        _show(axis, _rgb(image), 0, top, side)
        for head, weights in enumerate(maps, 1):
            _show(axis, weights, 1.1 * head, top, side, cmap="inferno")
    for column, title in enumerate(["input", *range(1, heads + 1)]):
        axis.text(1.1 * column + 0.5, -0.05, title, ha="center", fontsize=8)
    bottom = len(images) * (side + 0.1) - 0.1
    axis.set(xlim=(0, 1.1 * (heads + 1) - 0.1), ylim=(bottom, -0.25))
    axis.set_title("Attention of the output by head", fontsize=10)
    axis.axis("off")
    return drawn


def draw_rollout(images: Array, rollout: Array) -> "Figure":
    """Draw each image beside itself times its attention (Figures 6 and 14).

    Args:
        images: uint8 [n, H, W, C], C 1 or 3; the first few are drawn.
        rollout: [n, h, w] of `attention_rollout`; the largest value of each map leaves
            the image as it is, and 0 makes it black.
    """
    images, rollout = images[:MOST_PAIRS], rollout[:MOST_PAIRS]
    side = images.shape[1] / images.shape[2]
    across = min(PAIRS, len(images))
    rows = -(-len(images) // across)
    drawn = figure(2 * 1.1 * 1.3 * across, 1.3 * (side + 0.1) * rows + 0.5)
    axis = drawn.add_subplot()
    for index, (image, weights) in enumerate(zip(images, rollout, strict=True)):
        left, top = index % across * 2.2, index // across * (side + 0.1)
        large = _enlarged(_rgb(image))
        _show(axis, large, left, top, side)
        _show(axis, large * _mask(weights, large.shape[:2]), left + 1.02, top, side)
    for column in range(across):
        for shift, title in ((0.5, "input"), (1.52, "attention")):
            axis.text(2.2 * column + shift, -0.05, title, ha="center", fontsize=8)
    bottom = rows * (side + 0.1) - 0.1
    axis.set(xlim=(0, 2.2 * across - 0.18), ylim=(bottom, -0.2))
    axis.axis("off")
    return drawn


def _mask(weights: Array, size: tuple[int, int]) -> Array:
    """A map resized to (H, W) and divided by its largest value: [H, W, 1]."""
    from PIL import Image

    smooth = Image.fromarray((weights / weights.max()).astype("float32")).resize(
        size[::-1], Image.Resampling.BILINEAR
    )
    return np.asarray(smooth)[..., None]


def _rgb(image: Array) -> Array:
    """uint8 [H, W, 1 or 3] as float [H, W, 3] in [0, 1]."""
    return np.broadcast_to(image / 255, (*image.shape[:2], 3))


def _enlarged(image: Array) -> Array:
    """A small image by a whole factor: the pixels that the model got stay visible."""
    factor = max(1, SIDE // max(image.shape[:2]))
    return image.repeat(factor, 0).repeat(factor, 1)


def _show(
    axis: "Axes",
    image: Array,
    left: float,
    top: float,
    side: float = 1.0,
    **kwargs: Any,
) -> None:
    """Draw a framed image of width 1. One axes for all takes a tenth of the time."""
    from matplotlib.patches import Rectangle

    box = (left, left + 1, top + side, top)
    axis.imshow(image, extent=box, interpolation="nearest", **kwargs)
    frame = Rectangle((left, top), 1, side, fill=False, edgecolor="gray", linewidth=0.5)
    frame.set_clip_on(False)
    axis.add_patch(frame)
