"""Pictures of a run: curves, confusions, reliability, example and wrong images."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from etils import epath

from keras_vit.analysis import figures
from keras_vit.typing import Array

from .. import storage
from ..engine.progress import Logs
from ..engine.recorder import best_epoch
from ..evaluation.evaluate import Evaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_IMAGES = 24  # in misclassified.png and examples.png
MOST_NUMBERS = 30  # classes up to which the confusion matrix has its numbers printed
MOST_NAMES = 60  # classes up to which it has their names
MOST_CONFUSED = 25  # classes that are shown with names where there are more

PANELS = {
    "loss": "Loss",
    "accuracy": "Accuracy",
    "images_per_second": "Images per second in training",
    "learning_rate": "Learning rate",
    "gradient_norm": "Gradient norm of the last step",
    "seconds": "Seconds, with validation",
}


def draw_curves(history: list[Logs], path: epath.PathLike) -> None:
    """Draw loss, accuracy, learning rate, gradient norm and speed over the epochs.

    The training curves are means over an epoch's augmented images while the weights
    change; the validation curves are of unchanged images at its end.
    """
    best = best_epoch(history)["epoch"] if "val_loss" in history[-1] else None
    # Of a run without labels, the accuracy is that of the masked patches' colors.
    history = [
        {key.replace("patch_accuracy", "accuracy"): value for key, value in row.items()}
        for row in history
    ]
    figure = figures.figure(14, 7)
    axes = figure.subplots(2, 3)
    for axis, (key, title) in zip(axes.flat, PANELS.items(), strict=True):
        if not any(key in row for row in history):
            axis.axis("off")
            continue
        _draw_curve(axis, history, key, "training, augmented images")
        if any(f"val_{key}" in row for row in history):
            _draw_curve(axis, history, f"val_{key}", "validation")
        axis.set(title=title, xlabel="epoch")
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axis.grid(alpha=0.3)
        if key in ("loss", "accuracy"):
            if best is not None:
                label = f"best epoch, {best:.0f}"
                axis.axvline(best, color="gray", linestyle=":", label=label)
            axis.legend()
        else:
            axis.axhline(0, color="none")  # the axis begins there
    save(figure, path)


def _draw_curve(axis: "Axes", history: Sequence[Logs], key: str, label: str) -> None:
    # A single epoch, or one between two without a value, is a point and not a line.
    marker = "." if len(history) <= 50 else ""
    epochs = [row["epoch"] for row in history]
    values = np.array([row.get(key) for row in history], "float64")  # NaN for None
    axis.plot(epochs, values, marker=marker, label=label)


def confusion_figure(evaluation: Evaluation) -> "Figure":
    """A figure of the confusion matrix: counts by true (row) and predicted class."""
    counts = evaluation.confusion()
    title = f"Accuracy {evaluation.accuracy:.4f} on {len(evaluation.labels)} images"
    if len(counts) <= MOST_NAMES:
        side = max(5.0, 0.4 * len(counts) + 2)
        figure = figures.figure(side + 1, side)
        axis = figure.subplots()
        _draw_matrix(axis, counts, evaluation.class_names)
        axis.set_title(title)
        return figure
    figure = figures.figure(21, 10)
    all_classes, confused = figure.subplots(1, 2)
    _draw_matrix(all_classes, counts)
    all_classes.set_title(f"All {len(counts)} classes: {title[0].lower()}{title[1:]}")
    worst = _most_confused(evaluation)
    names = [evaluation.class_names[index] for index in worst]
    _draw_matrix(confused, counts[np.ix_(worst, worst)], names)
    confused.set_title(f"The {len(worst)} classes that are confused most often")
    return figure


def _most_confused(evaluation: Evaluation) -> list[int]:
    """Classes in the most frequent errors, in their own order."""
    found: set[int] = set()
    for *pair, _ in evaluation.confusions(MOST_CONFUSED**2):
        if len(found | set(pair)) > MOST_CONFUSED:
            break
        found |= set(pair)
    return sorted(found or range(MOST_CONFUSED))


def _draw_matrix(axis: "Axes", counts: Array, names: Sequence[str] = ()) -> None:
    from matplotlib.colors import PowerNorm

    # The diagonal would hide a single error: colors follow the square root.
    norm, interpolation = PowerNorm(0.5, vmin=0), "nearest" if names else None
    image = axis.imshow(counts, cmap="Blues", norm=norm, interpolation=interpolation)
    axis.figure.colorbar(image, ax=axis, label="images", shrink=0.8)
    axis.set(xlabel="predicted", ylabel="true")
    if names:
        _write_names(axis, [_shorten(name) for name in names])
    if names and len(names) <= MOST_NUMBERS:
        _write_counts(axis, counts)


def _write_names(axis: "Axes", names: list[str]) -> None:
    size = 10 if len(names) <= MOST_NUMBERS else 8
    turn = 90 if max(map(len, names)) > 4 or len(names) > 15 else 0
    axis.set_xticks(range(len(names)), names, rotation=turn, fontsize=size)
    axis.set_yticks(range(len(names)), names, fontsize=size)


def _write_counts(axis: "Axes", counts: Array) -> None:
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if count > counts.max() / 3 else "black"
            axis.text(column, row, count, ha="center", va="center", color=color)


def example_figure(images: Array) -> "Figure":
    """A figure of augmented training images, uint8 [n, H, W, C]."""
    figure = _mosaic(list(images[:MOST_IMAGES]))
    figure.suptitle("Images as the model sees them in training")
    return figure


def draw_reconstructions(
    rows: Sequence[tuple[Array, ...]], path: epath.PathLike
) -> None:
    """Draw what a model predicts of masked patches.

    Args:
        rows: Of each image: itself, without the masked patches, with the predictions in
            their places; uint8 [H, W, C].
        path: The PNG file.
    """
    columns = 2 if len(rows) > 1 else 1
    names = ("image", "visible", "predicted") * columns
    images = [image for row in rows for image in row]
    save(_mosaic(images, columns=3 * columns, headings=names), path)


def draw_misclassified(
    evaluation: Evaluation,
    shown: Array,
    images: Sequence[Array],
    path: epath.PathLike,
) -> None:
    """Draw the images, uint8 [H, W, C] each, that `Evaluation.mistakes` chose."""
    wrong = np.count_nonzero(evaluation.predictions != evaluation.labels)
    figure = _mosaic(list(images), [_caption(evaluation, index) for index in shown])
    count = f"the most confident {len(shown)} of " if len(shown) < wrong else ""
    figure.suptitle(f"Misclassified: {count}{wrong} of {len(evaluation.labels)} images")
    save(figure, path)


def draw_reliability(evaluation: Evaluation, path: epath.PathLike) -> None:
    """Draw accuracy over confidence, and the number of images of each confidence."""
    confidence, accuracy, count = evaluation.reliability().T
    figure = figures.figure(5.5, 6.5)
    curve, images = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    curve.plot([0, 1], [0, 1], color="gray", linestyle="--", label="calibrated")
    curve.plot(confidence, accuracy, marker="o", label="test images")
    curve.set(ylabel="accuracy", ylim=(-0.02, 1.02), xlim=(0, 1.02))
    curve.set_title(f"Expected calibration error {evaluation.calibration_error:.4f}")
    curve.legend(loc="upper left")
    curve.grid(alpha=0.3)
    images.bar(confidence, count, width=0.03)
    images.set(xlabel="confidence of the predicted class", ylabel="images")
    save(figure, path)


def _mosaic(
    images: list[Array],
    captions: Sequence[str] = (),
    columns: int = 6,
    headings: Sequence[str] = (),
) -> "Figure":
    """A figure of images [H, W, C] of one size, each below its caption if it has one.

    They share one axes, with the width of an image as the unit: an axes for each takes
    ten times as long to draw.
    """
    columns = min(columns, max(3, len(images)))
    rows = max(1, math.ceil(len(images) / columns))
    side = images[0].shape[0] / images[0].shape[1] if images else 1.0
    across, down = 1.1, side + (0.4 if captions else 0.1)
    figure = figures.figure(1.9 * columns, 1.9 * rows * down / across + 0.5)
    axis = figure.subplots()
    for index, pixels in enumerate(images):
        left, bottom = index % columns * across, index // columns * down + down
        box = (left, left + 1, bottom, bottom - side)
        axis.imshow(pixels, cmap="gray", vmin=0, vmax=255, extent=box)
        if captions:
            middle, top = left + 0.5, bottom - side - 0.02
            axis.text(middle, top, captions[index], fontsize=8, ha="center")
    for column, heading in enumerate(headings):
        axis.text(column * across + 0.5, 0.02, heading, fontsize=9, ha="center")
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


def _shorten(name: str, most: int = 18) -> str:
    """Shorten a name in its middle, as names differ at both ends."""
    half = most // 2
    return name if len(name) <= most else f"{name[: half - 1]}…{name[-half:]}"


def save(figure: "Figure", path: epath.PathLike) -> None:
    """Write a figure as PNG, atomically."""
    with storage.atomic_write(path) as local:
        figures.save(figure, local)
