"""Pictures of a run: curves, confusion matrix, example and misclassified images."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from etils import epath

from keras_vit import ImagePreprocessing

from .. import storage
from ..data.augment import fit_to_model
from ..data.labeled_images import Split
from ..errors import TrainingError
from ..evaluate import Evaluation

MOST_IMAGES = 24  # in misclassified.png and examples.png
MOST_NUMBERS = 30  # classes up to which the confusion matrix has its numbers printed
MOST_NAMES = 150  # classes up to which it has their names
DPI = 120


def pyplot():
    """Import matplotlib.pyplot for drawing into files.

    Raises:
        TrainingError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise TrainingError(
            'the pictures need matplotlib: pip install -c constraints.txt -e ".[viz]"'
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


PANELS = {
    "loss": "Loss",
    "accuracy": "Accuracy",
    "learning_rate": "Learning rate",
    "gradient_norm": "Gradient norm of the last step",
}


def draw_curves(history: list[dict[str, float]], path: epath.PathLike) -> None:
    """Draw loss, accuracy, learning rate and gradient norm over the epochs."""
    figure, axes = pyplot().subplots(2, 2, figsize=(10, 7), layout="constrained")
    for axis, (key, title) in zip(axes.flat, PANELS.items(), strict=True):
        if not any(key in row for row in history):
            axis.axis("off")
            continue
        _draw_curve(axis, history, key, "training")
        if any(f"val_{key}" in row for row in history):
            _draw_curve(axis, history, f"val_{key}", "validation")
        axis.set(title=title, xlabel="epoch")
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axis.grid(alpha=0.3)
        if key in ("loss", "accuracy"):
            axis.legend()
        else:
            axis.axhline(0, color="none")  # the axis begins there
    _save(figure, path)


def _draw_curve(axis, history, key, label):
    # A single epoch, or one between two without a value, is a point and not a line.
    marker = "." if len(history) <= 50 else ""
    epochs = [row["epoch"] for row in history]
    values = [_number(row.get(key)) for row in history]
    axis.plot(epochs, values, marker=marker, label=label)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def draw_confusion_matrix(evaluation: Evaluation, path: epath.PathLike) -> None:
    """Draw the confusion matrix: counts by true class (row) and predicted class."""
    _save(_confusion_figure(evaluation), path)


def confusion_matrix_image(evaluation: Evaluation) -> np.ndarray[Any, Any]:
    """The confusion matrix as an image, uint8 [H, W, 3]."""
    return _pixels(_confusion_figure(evaluation))


def _confusion_figure(evaluation: Evaluation):
    plt = pyplot()
    counts = evaluation.confusion()
    classes = len(counts)
    side = min(max(5.0, 0.55 * classes + 2), 20.0)
    figure, axis = plt.subplots(figsize=(side + 1, side), layout="constrained")
    # The diagonal would hide a single error: colors follow the square root.
    image = axis.imshow(counts, cmap="Blues", norm=_root())
    figure.colorbar(image, ax=axis, label="images", shrink=0.8)
    if classes <= MOST_NAMES:
        _write_names(axis, [_shorten(name) for name in evaluation.class_names])
    axis.set(
        xlabel="predicted",
        ylabel="true",
        title=f"Accuracy {evaluation.accuracy:.4f} on {len(evaluation.labels)} images",
    )
    if classes <= MOST_NUMBERS:
        _write_counts(axis, counts)
    return figure


def _write_names(axis, names: list[str]) -> None:
    size = 10 if len(names) <= 60 else 6
    axis.set_xticks(
        range(len(names)), names, rotation=90 if _long(names) else 0, fontsize=size
    )
    axis.set_yticks(range(len(names)), names, fontsize=size)


def _write_counts(axis, counts: np.ndarray[Any, Any]) -> None:
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if count > counts.max() / 3 else "black"
            axis.text(column, row, count, ha="center", va="center", color=color)


def draw_examples(images: np.ndarray[Any, Any], path: epath.PathLike) -> None:
    """Draw a grid of augmented training images, uint8 [n, H, W, C]."""
    _save(_example_figure(images), path)


def example_grid(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The grid of `draw_examples` as an image, uint8 [H, W, 3]."""
    return _pixels(_example_figure(images))


def _example_figure(images: np.ndarray[Any, Any]):
    figure = _mosaic(list(images[:MOST_IMAGES]))
    figure.suptitle("Images as the model sees them in training")
    return figure


def draw_misclassified(
    evaluation: Evaluation,
    split: Split,
    preprocessing: ImagePreprocessing,
    path: epath.PathLike,
) -> None:
    """Draw misclassified images, those of the highest confidence first."""
    wrong = np.flatnonzero(evaluation.predictions != evaluation.labels)
    order = np.argsort(-evaluation.probabilities[wrong].max(axis=1), kind="stable")
    shown = wrong[order][:MOST_IMAGES]
    images = [
        np.asarray(fit_to_model(split.read(tf.constant(i, tf.int64)), preprocessing))
        for i in shown
    ]
    figure = _mosaic(images, [_caption(evaluation, index) for index in shown])
    count = f"the most confident {len(shown)} of " if len(shown) < len(wrong) else ""
    figure.suptitle(
        f"Misclassified: {count}{len(wrong)} of {len(evaluation.labels)} images"
    )
    _save(figure, path)


def _mosaic(images: list[np.ndarray[Any, Any]], captions: Sequence[str] = ()):
    """A figure of images [H, W, C] of one size, each below its caption if it has one.

    They share one axes, with the width of an image as the unit: an axes for each takes
    ten times as long to draw.
    """
    columns = min(6, max(3, len(images)))
    rows = max(1, math.ceil(len(images) / columns))
    side = images[0].shape[0] / images[0].shape[1] if images else 1.0
    across, down = 1.1, side + (0.4 if captions else 0.1)
    figure, axis = pyplot().subplots(
        figsize=(1.9 * columns, 1.9 * rows * down / across + 0.5), layout="constrained"
    )
    for index, pixels in enumerate(images):
        left, bottom = index % columns * across, index // columns * down + down
        box = (left, left + 1, bottom, bottom - side)
        axis.imshow(pixels, cmap="gray", vmin=0, vmax=255, extent=box)
        if captions:
            middle, top = left + 0.5, bottom - side - 0.02
            axis.text(middle, top, captions[index], fontsize=8, ha="center")
    axis.set(xlim=(0, columns * across), ylim=(rows * down, 0))
    axis.axis("off")
    return figure


def _caption(evaluation: Evaluation, index: int) -> str:
    predicted = evaluation.predictions[index]
    return (
        f"true: {_shorten(evaluation.class_names[evaluation.labels[index]])}\n"
        f"predicted: {_shorten(evaluation.class_names[predicted])}\n"
        f"confidence {evaluation.probabilities[index, predicted]:.0%}"
    )


def _root():
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, vmin=0)


def _shorten(name: str, most: int = 18) -> str:
    """Shorten a name in its middle, as names differ at both ends."""
    half = most // 2
    return name if len(name) <= most else f"{name[: half - 1]}…{name[-half:]}"


def _long(names: list[str]) -> bool:
    return max(map(len, names)) > 4 or len(names) > 15


def _save(figure, path: epath.PathLike) -> None:
    with storage.atomic_write(path) as local:
        figure.savefig(local, dpi=DPI)
    pyplot().close(figure)


def _pixels(figure) -> np.ndarray[Any, Any]:
    figure.canvas.draw()
    pixels = np.array(figure.canvas.buffer_rgba())[..., :3]
    pyplot().close(figure)
    return pixels
