"""`data-speed`: images per second of each stage of a recipe's input pipeline."""

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from keras_vit import ImagePreprocessing

from .. import storage
from ..architectures.recipe_model import make_preprocessing
from ..data import augment
from ..data.labeled_images import Split
from ..data.pipeline import (
    Shard,
    example_order,
    parallel,
    ready,
    resized_once,
    training_batches,
)
from ..data.read_errors import read_errors
from ..data.splits import load_splits
from ..recipe import Recipe

ENDLESS = 2**40  # steps
TURNS = 3  # of each pipeline
CHUNK = 64  # images that are counted at a time in the stages before the batches

# From an image's index and seed.
Read: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@dataclass(frozen=True)
class Stage:
    """The measurement of one stage."""

    name: str
    images_per_second: float  # of the pipeline up to this stage
    seconds: float  # that this stage adds for one image


def data_speed(recipe: Recipe, seconds: float, file: Path | None = None) -> list[Stage]:
    """Measure the input pipeline of `fit`, and print a table.

    Returns:
        One row for each stage.

    Raises:
        TrainingError: The recipe's images cannot be read.
    """
    splits = load_splits(recipe.data, recipe.model.channels)
    preprocessing = make_preprocessing(recipe.model)
    images = resized_once(splits.train, recipe, preprocessing)
    with read_errors(images):
        stages = measure(pipelines(images, recipe, preprocessing), seconds)
    print_stages(stages, f"{recipe.name}: {len(images)} images of {recipe.data.source}")
    if file is not None:
        rows = [asdict(stage) for stage in stages]
        text = json.dumps(
            {"bottleneck": bottleneck(stages).name, "stages": rows}, indent=1
        )
        storage.write_text(file, text)
    return stages


def pipelines(
    split: Split, recipe: Recipe, preprocessing: ImagePreprocessing
) -> dict[str, tf.data.Dataset]:
    """Endless pipelines, each with one more stage, by the name of their last stage.

    The elements of all but the last are meaningless numbers, one for each image.
    """
    config = recipe.augmentation

    def read(index: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return augment.read(split, index, seed, config)

    def resized(index: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        image = read(index, seed)
        if split.fitted:
            return image
        return augment.resize(image, seed, config, preprocessing)

    def changed(index: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return augment.change(resized(index, seed), seed, config)

    def first_pixel(stage: Read) -> Read:
        return lambda index, seed: tf.cast(stage(index, seed)[0, 0, 0], tf.int32)

    stages: dict[str, Read] = {}
    first = "read and crop"
    if (encoded := split.encoded) is not None:
        stages["read"] = lambda index, seed: tf.strings.length(encoded(index))
        first = "decode and crop"
    for name, stage in ((first, read), ("resize", resized), ("augment", changed)):
        stages[name] = first_pixel(stage)
    order = example_order(split, recipe, 0, ENDLESS, Shard())
    datasets = {
        name: ready(parallel(order, stage).batch(CHUNK))
        for name, stage in stages.items()
    }
    whole = training_batches(split, recipe, preprocessing, 0, ENDLESS)
    return {**datasets, "mix and batch": whole.map(lambda images, labels: labels)}


def measure(datasets: dict[str, tf.data.Dataset], seconds: float) -> list[Stage]:
    """Measure the pipelines in turns, each for some seconds in all.

    What else the machine does slows turns down: the fastest one counts, and what a
    pipeline with more stages reaches, its part reaches too.
    """
    console = Console(stderr=True)
    turns = [*datasets] * TURNS
    rates = dict.fromkeys(datasets, 0.0)
    for number, name in enumerate(turns, 1):
        console.print(f"{number} of {len(turns)}: {name}", highlight=False)
        rate = images_per_second(datasets[name], seconds / TURNS)
        rates[name] = max(rates[name], rate)
    falling = [*itertools.accumulate(reversed(rates.values()), max)][::-1]
    times = np.diff([0.0, *(1 / rate for rate in falling)])
    return [
        Stage(name, rate, float(added))
        for name, rate, added in zip(rates, falling, times, strict=True)
    ]


def images_per_second(dataset: tf.data.Dataset, seconds: float) -> float:
    """Throughput of a dataset of batches, after a warm-up of a third of the time."""
    batches, images = iter(dataset), 0
    next(batches)
    warm = time.perf_counter() + seconds / 3
    while time.perf_counter() < warm:
        next(batches)
    start = time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds or not images:
        images += len(next(batches))
    return images / passed


def bottleneck(stages: list[Stage]) -> Stage:
    """The stage that takes the most time for an image."""
    return max(stages, key=lambda stage: stage.seconds)


def print_stages(stages: list[Stage], title: str) -> None:
    """Print the measurements as a table, and the bottleneck below it."""
    table = Table(title=title)
    table.add_column("stage")
    for heading in ("images/s up to here", "ms per image", "share"):
        table.add_column(heading, justify="right")
    whole = sum(stage.seconds for stage in stages)
    for stage in stages:
        table.add_row(
            stage.name,
            f"{stage.images_per_second:,.0f}",
            f"{stage.seconds * 1000:.3f}",
            f"{stage.seconds / whole:.0%}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"{stages[-1].images_per_second:,.0f} images/s; the bottleneck is "
        f"{bottleneck(stages).name!r}",
        highlight=False,
    )
