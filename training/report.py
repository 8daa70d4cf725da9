"""The pictures of a run: curves, confusion matrix, misclassified images."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import ImagePreprocessing

from .augment import fit_to_model
from .errors import TrainingError
from .evaluate import Evaluation
from .splits import Split

MOST_IMAGES = 24  # in misclassified.png
MOST_NUMBERS = 30  # classes up to which the confusion matrix has its numbers printed
DPI = 120


def pyplot():
    """matplotlib.pyplot, drawing into files only.

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


def draw_curves(history: list[dict[str, float]], path: Path) -> None:
    """Loss and accuracy of training and validation over the epochs."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    epochs = [row["epoch"] for row in history]
    for axis, key in zip(axes, ("loss", "accuracy"), strict=True):
        axis.plot(epochs, [row[key] for row in history], label="training")
        if f"val_{key}" in history[0]:
            axis.plot(
                epochs, [row[f"val_{key}"] for row in history], label="validation"
            )
        axis.set(title=key.capitalize(), xlabel="epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
        axis.legend()
    _save(figure, path)


def draw_confusion_matrix(evaluation: Evaluation, path: Path) -> None:
    """Counts of true class (row) against predicted class (column)."""
    plt = pyplot()
    counts = evaluation.confusion()
    classes = len(counts)
    side = min(max(5.0, 0.55 * classes + 2), 20.0)
    figure, axis = plt.subplots(figsize=(side + 1, side), layout="constrained")
    # The diagonal would hide a single error: colours follow the square root.
    image = axis.imshow(counts, cmap="Blues", norm=_root())
    figure.colorbar(image, ax=axis, label="images", shrink=0.8)
    names = [_shorten(name) for name in evaluation.class_names]
    axis.set_xticks(range(classes), names, rotation=90 if _long(names) else 0)
    axis.set_yticks(range(classes), names)
    axis.set(
        xlabel="predicted",
        ylabel="true",
        title=f"Accuracy {evaluation.accuracy:.4f} on {len(evaluation.labels)} images",
    )
    if classes <= MOST_NUMBERS:
        _write_counts(axis, counts)
    _save(figure, path)


def _write_counts(axis, counts: np.ndarray[Any, Any]) -> None:
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if count > counts.max() / 3 else "black"
            axis.text(column, row, count, ha="center", va="center", color=color)


def draw_misclassified(
    evaluation: Evaluation, split: Split, preprocessing: ImagePreprocessing, path: Path
) -> None:
    """The wrongly classified images, those first where the model was surest."""
    plt = pyplot()
    wrong = np.flatnonzero(evaluation.predictions != evaluation.labels)
    surest = np.argsort(-evaluation.probabilities[wrong].max(axis=1), kind="stable")
    shown = wrong[surest][:MOST_IMAGES]
    columns = min(6, max(3, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(1.9 * columns, 2.4 * rows + 0.5),
        layout="constrained",
        squeeze=False,
    )
    for axis in axes.flat:
        axis.axis("off")
    for axis, index in zip(axes.flat, shown, strict=False):
        pixels = fit_to_model(split.read(tf.constant(index, tf.int64)), preprocessing)
        axis.imshow(pixels, cmap="gray", vmin=0, vmax=255)
        axis.set_title(_caption(evaluation, index), fontsize=8)
    count = f"the {len(shown)} surest of " if len(shown) < len(wrong) else ""
    figure.suptitle(
        f"Misclassified: {count}{len(wrong)} of {len(evaluation.labels)} images"
    )
    _save(figure, path)


def _caption(evaluation: Evaluation, index: int) -> str:
    predicted = evaluation.predictions[index]
    return (
        f"true: {_shorten(evaluation.class_names[evaluation.labels[index]])}\n"
        f"predicted: {_shorten(evaluation.class_names[predicted])} "
        f"({evaluation.probabilities[index, predicted]:.0%})"
    )


def _root():
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5)


def _shorten(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _long(names: list[str]) -> bool:
    return max(map(len, names)) > 4 or len(names) > 15


def _save(figure, path: Path) -> None:
    figure.savefig(path, dpi=DPI)
    pyplot().close(figure)
