"""`keras-vit probe`: a model's frozen features, evaluated by one method."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from keras_vit.typing import Array

from .. import storage
from ..architectures.model_reading import read_any_model
from ..data.labeled_images import Split
from ..data.splits import Splits, load_splits, stratified_share
from ..engine.early_checks import data_of_run
from ..engine.strategy import evaluation_strategy
from ..errors import DataError, RecipeError
from ..probe import fewshot, knn, linear
from ..probe.feature_cache import cached_features
from ..probe.features import FeatureExtractor
from ..recipe import Strategy

VALIDATION_SHARE = 0.1  # of the training images, where there are no validation images

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class ProbeConfig:
    """How frozen features are evaluated: by the flags of `keras-vit probe`."""

    method: Literal["fewshot", "linear", "knn"] = "fewshot"
    shots: Sequence[int] | None = None
    seeds: int = fewshot.SEEDS
    l2: Sequence[float] | None = None  # None for the method's own
    whiten: bool = True
    bias: float = fewshot.BIAS
    k: Sequence[int] | None = None
    optimizer: Literal["lbfgs", "adamw"] = "lbfgs"
    learning_rates: Sequence[float] | None = None


@dataclass(frozen=True)
class FrozenModel:
    """A model's features, and where they are kept."""

    extractor: FeatureExtractor
    cache: Path | None  # the folder of the features, or None to keep none

    def features(self, split: Split, title: str) -> Array:
        """The features of a split: float32 [n, D]."""
        return cached_features(self.extractor, split, self.cache, title)


def probe(frozen: FrozenModel, splits: Splits, config: ProbeConfig) -> Rows:
    """Evaluate frozen features.

    Args:
        frozen: The features.
        splits: Shots, neighbors and the final linear classifier are of all images but
            the test images; the linear classifier's strength is chosen by validation
            images, or where there are none by a tenth of the training images.
        config: The method and its options.

    Returns:
        The rows of the table: options and the `accuracy` of each, 0 to 1.

    Raises:
        DataError: A class has too few images, or there are fewer than `k`.
    """
    return METHODS[config.method](frozen, splits, config)


def _fewshot(frozen: FrozenModel, splits: Splits, config: ProbeConfig) -> Rows:
    train = fewshot.support_images(splits)
    task = fewshot.FewShotTask(
        train, splits.test, splits.class_names, config.shots, config.seeds
    )
    support = frozen.features(task.support, "features of the shots")
    test = frozen.features(splits.test, "features of the test images")
    l2 = (fewshot.L2,) if config.l2 is None else config.l2
    found = task.accuracies(support, test, l2, config.whiten, config.bias or None)
    rows = []
    for (shots, value), accuracies in found.items():
        mean, deviation = fewshot.mean_and_deviation(accuracies)
        row = {"shots": shots, "l2": value, "accuracy": mean, "deviation": deviation}
        rows.append({**row, "seeds": accuracies})
    return rows


def _linear(frozen: FrozenModel, splits: Splits, config: ProbeConfig) -> Rows:
    train = fewshot.support_images(splits)
    lbfgs = config.optimizer == "lbfgs"
    features = frozen.features(train, "features of the training images")
    result = linear.linear_probe(
        features,
        train.labels,
        _validation_rows(splits),
        frozen.features(splits.test, "features of the test images"),
        train.classes,
        config.optimizer,
        config.l2 if lbfgs else config.learning_rates,
    )
    accuracy = float((result.predictions == splits.test.labels).mean())
    name = "l2" if lbfgs else "learning_rate"
    return [
        {
            "optimizer": config.optimizer,
            name: result.chosen,
            "validation_accuracy": result.validation[result.chosen],
            "accuracy": accuracy,
            "candidates": [
                {name: value, "validation_accuracy": each}
                for value, each in result.validation.items()
            ],
        }
    ]


def _validation_rows(splits: Splits) -> Array:
    """Where the validation images are among `support_images`: int64 [n]."""
    count = len(splits.train)
    if splits.validation is not None:
        return count + np.arange(len(splits.validation))
    _, rows = stratified_share(
        splits.train.labels,
        VALIDATION_SHARE,
        0,
        splits.class_names,
        "the validation images of `probe`",
    )
    return rows


def _knn(frozen: FrozenModel, splits: Splits, config: ProbeConfig) -> Rows:
    train, test = fewshot.support_images(splits), splits.test
    k = [number for number in knn.K if number <= len(train)]
    k = (k or [len(train)]) if config.k is None else list(config.k)
    if max(k) > len(train):
        raise DataError(
            f"`k` must be at most the {len(train)} training images. Received: {max(k)}"
        )
    predictions = knn.knn_predictions(
        frozen.features(train, "features of the training images"),
        train.labels,
        frozen.features(test, "features of the test images"),
        train.classes,
        k,
    )
    return [
        {"k": number, "accuracy": float((predicted == test.labels).mean())}
        for number, predicted in predictions.items()
    ]


METHODS = {"fewshot": _fewshot, "linear": _linear, "knn": _knn}


def probe_file(
    model: str,
    data: dict[str, Any],
    config: ProbeConfig,
    *,
    cache: Path | None = None,
    out: Path | None = None,
    pixels: str | None = None,
    strategy: Strategy = "auto",
    tpu: str | None = None,
) -> None:
    """Read a model and images, evaluate the frozen features, and print the table.

    Raises:
        TrainingError: The model or the images cannot be read or used.
    """
    if out is not None and not out.parent.is_dir():
        raise RecipeError(f"`out` must be in an existing folder. Received: '{out}'")
    data_config = data_of_run(model, data, "--data.source")
    devices = evaluation_strategy(strategy, tpu)
    with devices.scope():
        loaded = read_any_model(model, pixels)
    extractor = FeatureExtractor(loaded, devices)
    splits = load_splits(data_config, loaded.channels)
    for reason in splits.bad_images:
        print(f"skipped: {reason}", file=sys.stderr)
    rows = probe(FrozenModel(extractor, cache), splits, config)
    result = {
        "model": model,
        "source": data_config.source,
        "method": config.method,
        "features": extractor.width,
        "training_images": len(fewshot.support_images(splits)),
        "test_images": len(splits.test),
        "classes": len(splits.class_names),
        "rows": rows,
    }
    if out is not None:
        storage.write_text(out, json.dumps(result, indent=2) + "\n")
    _print(result)


def _print(result: dict[str, Any]) -> None:
    """Print the rows without what is only in the JSON, and what they are about."""
    rows = [
        {name: value for name, value in row.items() if not isinstance(value, list)}
        for row in result["rows"]
    ]
    table = Table(title=f"{result['method']}: test images of {result['source']}")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(_cell(name, value) for name, value in row.items()))
    console = Console()
    console.print(table)
    console.print(
        f"{result['features']} features, {result['training_images']} training images, "
        f"{result['test_images']} test images, {result['classes']} classes",
        highlight=False,
    )


def _cell(name: str, value: object) -> str:
    if name in ("accuracy", "validation_accuracy", "deviation"):
        return f"{value:.4f}"
    return f"{value:g}" if isinstance(value, float) else str(value)
