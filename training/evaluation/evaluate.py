"""Evaluation of a model: accuracy, macro F1, and precision and recall by class."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from keras_vit.common.activity import activity
from keras_vit.typing import Array

from ..architectures.model_reading import read_classifier
from ..data.class_folders import distinct
from ..data.labeled_images import Split
from ..data.sources import open_source
from ..data.splits import load_splits
from ..engine.early_checks import data_of_run
from ..engine.forward_pass import ForwardPass, even_batches
from ..engine.run_folder import Report
from ..engine.strategy import evaluation_strategy
from ..errors import RunError
from ..recipe import DataConfig, Strategy
from .metrics import METRICS

BINS = 15  # of confidence, as in the paper that `reliability` cites


class ClassScores(NamedTuple):
    """Arrays [classes]."""

    precision: Array
    recall: Array
    f1: Array
    support: Array  # number of images


@dataclass(frozen=True)
class Evaluation:
    """Scores of one model on labeled images."""

    class_names: tuple[str, ...]
    labels: Array  # int64 [n], the true classes
    probabilities: Array  # float32 [n, classes], the model's

    @property
    def predictions(self) -> Array:
        """int64 [n], the most probable class."""
        most_probable: Array = self.probabilities.argmax(axis=1)
        return most_probable

    @property
    def accuracy(self) -> float:
        """Share of images whose most probable class is the true one."""
        return self.top(1)

    def top(self, k: int) -> float:
        """Share of images whose true class is among the k most probable."""
        best = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :k]
        return float((best == self.labels[:, np.newaxis]).any(axis=1).mean())

    def confusion(self) -> Array:
        """int64 [classes, classes]: rows are the true classes."""
        counts: Array = confusion_matrix(
            self.labels, self.predictions, labels=range(len(self.class_names))
        )
        return counts

    def mistakes(self, most: int) -> Array:
        """Indices of misclassified images, those of the highest confidence first."""
        wrong = np.flatnonzero(self.predictions != self.labels)
        confidence = self.probabilities[wrong].max(axis=1)
        return wrong[np.argsort(-confidence, kind="stable")][:most]

    def confusions(self, most: int) -> list[tuple[int, int, int]]:
        """The most frequent errors: true class, predicted class, number of images."""
        counts = self.confusion()
        np.fill_diagonal(counts, 0)
        order = np.argsort(-counts, axis=None, kind="stable")[:most]
        pairs = np.stack(np.unravel_index(order, counts.shape), axis=1).tolist()
        return [
            (true, other, int(counts[true, other]))
            for true, other in pairs
            if counts[true, other]
        ]

    def reliability(self) -> Array:
        """Confidence against accuracy (Guo et al., 2017, arXiv:1706.04599, Figure 1).

        Returns:
            float64 [bins, 3]: of the images whose highest probability is in one of 15
            bins of equal width, mean probability, accuracy and number. Bins without
            images are left out.
        """
        confidence = self.probabilities.max(axis=1).astype("float64")
        right = self.predictions == self.labels
        bins = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence)
        count, *sums = (
            np.bincount(bins, values, minlength=BINS)
            for values in (None, confidence, right)
        )
        used = count > 0
        means = [total[used] / count[used] for total in sums]
        return np.stack([*means, count[used]], axis=1)

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: mean gap between confidence and accuracy."""
        confidence, accuracy, count = self.reliability().T
        return float(np.abs(confidence - accuracy) @ count / count.sum())

    @functools.cached_property
    def of_classes(self) -> ClassScores:
        """Precision, recall and F1 of each class; 0 where one is not defined."""
        scores = precision_recall_fscore_support(
            self.labels,
            self.predictions,
            labels=range(len(self.class_names)),
            zero_division=0.0,
        )
        return ClassScores(*scores)

    def summary(self) -> Report:
        """All scores, for report.json."""
        values = {name: metric.value(self) for name, metric in METRICS.items()}
        return {
            **{name: value for name, value in values.items() if value is not None},
            "images": len(self.labels),
            "classes": {
                name: dict(
                    zip(
                        ClassScores._fields,
                        (value.item() for value in row),
                        strict=True,
                    )
                )
                for name, *row in zip(self.class_names, *self.of_classes, strict=True)
            },
        }


def evaluation_pass(model: keras.Model, split: Split) -> ForwardPass:
    """The forward pass for `evaluate`, to evaluate a split more than once."""
    return ForwardPass(model, batch_size=even_batches(len(split)))


def evaluate(
    model: keras.Model, split: Split, forward: ForwardPass | None = None
) -> Evaluation:
    """Evaluate a model on every image of a split, on all devices of its strategy.

    Args:
        forward: `evaluation_pass` of the model; by default one is made.

    Raises:
        DataError: An image cannot be read.
    """
    forward = forward or evaluation_pass(model, split)
    with activity(f"evaluating {len(split)} images"):
        outputs = list(forward.of_split(split, model.preprocessing))
    probabilities = model.probabilities(np.concatenate(outputs))
    return Evaluation(tuple(model.class_names), split.labels, probabilities)


def print_evaluation(summary: Report, title: str) -> None:
    """Print the table of classes, and the scores over all classes below it."""
    table = Table(title=title)
    table.add_column("class")
    for column in ("precision", "recall", "F1", "images"):
        table.add_column(column, justify="right")
    for name, row in summary["classes"].items():
        shares = (f"{row[key]:.4f}" for key in ("precision", "recall", "f1"))
        table.add_row(name, *shares, str(row["support"]))
    console = Console()
    console.print(table)
    scores = ", ".join(
        f"{metric.title} {summary[name]:.4f}"
        for name, metric in METRICS.items()
        if metric.hub_name is not None and name in summary
    )
    console.print(f"{scores} on {summary['images']} images", highlight=False)


def evaluate_file(
    model: str | Path,
    part: str,
    source: str | None = None,
    class_names: str | None = None,
    pixels: str | None = None,
    *,
    strategy: Strategy = "auto",
    tpu: str | None = None,
) -> None:
    """Evaluate a model file and print the scores; the flags explain the arguments.

    Raises:
        TrainingError: The model or the images cannot be read, or their classes differ.
    """
    devices = evaluation_strategy(strategy, tpu)
    with devices.scope():
        loaded = read_classifier(model, class_names, pixels)
    if source is None:
        title, names, split = _run_images(str(model), part, loaded.channels)
    else:
        title, names, split = _source_images(source, loaded.channels)
    own = list(loaded.class_names or ())
    if list(names) != own:
        every = sorted({*names, *own})
        text = dict(zip(every, distinct(every), strict=True))
        ours, theirs = (", ".join(text[name] for name in each) for each in (own, names))
        raise RunError(
            f"{model}: its classes are not those of the {title}: {ours} and {theirs}"
        )
    with devices.scope():
        evaluation = evaluate(loaded, split)
    print_evaluation(evaluation.summary(), title)


NamedImages = tuple[str, tuple[str, ...], Split]  # title, class names, images


def _run_images(model: str, part: str, channels: int) -> NamedImages:
    """A part of the data of the run that a model file is in."""
    config = data_of_run(model, {}, "--source")
    splits = load_splits(config, channels)
    split = getattr(splits, part)
    if split is None:
        raise RunError(f"{config.source}: no validation images (data.validation is 0)")
    return f"{part} images of {config.source}", splits.class_names, split


def _source_images(name: str, channels: int) -> NamedImages:
    """The test images of a source; of a folder without test/, all images."""
    config = DataConfig(name)
    if name.startswith("folder:"):
        source = open_source(config, channels)
        if source.test is None:
            return f"images of {name}", source.class_names, source.train
        return f"test images of {name}", source.class_names, source.test
    splits = load_splits(config, channels)
    return f"test images of {name}", splits.class_names, splits.test
