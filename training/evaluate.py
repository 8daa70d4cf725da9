"""How good a model is: accuracy, macro F1, and each class, on one part of a source."""

import math
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from .data.labelled_images import Split
from .data.pipeline import evaluation_batches

BATCH_SIZE = 256


@dataclass(frozen=True)
class Evaluation:
    """Scores of one model on labelled images.

    Args:
        class_names: One name for each class.
        labels: int64 [n], what the images show.
        probabilities: float32 [n, classes], what the model says.
    """

    class_names: tuple[str, ...]
    labels: np.ndarray[Any, Any]
    probabilities: np.ndarray[Any, Any]

    @property
    def predictions(self) -> np.ndarray[Any, Any]:
        """int64 [n], the most probable class."""
        return self.probabilities.argmax(axis=1)

    @property
    def accuracy(self) -> float:
        """Share of images whose most probable class is right."""
        return self.top(1)

    def top(self, k: int) -> float:
        """Share of images whose class is among the k most probable."""
        best = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :k]
        return float((best == self.labels[:, np.newaxis]).any(axis=1).mean())

    def confusion(self) -> np.ndarray[Any, Any]:
        """int64 [classes, classes]: rows are the true classes."""
        return confusion_matrix(
            self.labels, self.predictions, labels=range(len(self.class_names))
        )

    def summary(self) -> dict[str, Any]:
        """All figures, for report.json."""
        columns = ("precision", "recall", "f1", "support")
        scores = precision_recall_fscore_support(
            self.labels,
            self.predictions,
            labels=range(len(self.class_names)),
            zero_division=0.0,
        )
        top_5 = {"top_5": self.top(5)} if len(self.class_names) > 5 else {}
        return {
            "accuracy": self.accuracy,
            **top_5,
            "macro_f1": float(np.mean(scores[2])),
            "images": len(self.labels),
            "classes": {
                name: dict(zip(columns, (value.item() for value in row), strict=True))
                for name, *row in zip(self.class_names, *scores, strict=True)
            },
        }


def evaluate(model: keras.Model, split: Split) -> Evaluation:
    """Classifies every image of a split.

    Args:
        model: With preprocessing and class names; returns logits.
        split: The images.

    Returns:
        The scores, in the order of the split.
    """
    batches = evaluation_batches(split, _batch_size(), model.preprocessing)
    logits = model.predict(batches, verbose=0)[: len(split)]  # without the padding
    probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    return Evaluation(tuple(model.class_names), split.labels, probabilities)


def _batch_size() -> int:
    """`BATCH_SIZE`, or so much more that JAX can cut a batch for its devices."""
    distribution = keras.distribution.distribution()
    devices = 1 if distribution is None else distribution.num_model_replicas
    return devices * math.ceil(BATCH_SIZE / devices)


def print_evaluation(summary: dict[str, Any], title: str) -> None:
    """Prints the table of classes, and the figures for all of them below."""
    table = Table(title=title)
    table.add_column("class")
    for column in ("precision", "recall", "F1", "images"):
        table.add_column(column, justify="right")
    for name, row in summary["classes"].items():
        shares = (f"{row[key]:.4f}" for key in ("precision", "recall", "f1"))
        table.add_row(name, *shares, str(row["support"]))
    console = Console()
    console.print(table)
    top_5 = f", top-5 {summary['top_5']:.4f}" if "top_5" in summary else ""
    console.print(
        f"accuracy {summary['accuracy']:.4f}{top_5}, macro F1 "
        f"{summary['macro_f1']:.4f} on {summary['images']} images",
        highlight=False,
    )
