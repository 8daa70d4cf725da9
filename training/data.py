"""From a source to batches: the divisions, the order of the images, the pipeline.

A training example is a pure function of (seed, epoch, index): which image stands where
in an epoch, and how it is changed, does not depend on what came before. A resumed run
therefore sees what the uninterrupted one would have seen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.model_selection import train_test_split

from keras_vit import ImagePreprocessing

from .augment import augment, example_seed, fit_to_model
from .errors import DataError
from .recipe import DataConfig, Recipe
from .sources import open_source
from .splits import Split

# Decoded images are kept in memory up to this size; larger sets are read every epoch.
CACHE_LIMIT = 2**30


@dataclass(frozen=True)
class Splits:
    """The images of a run, each in one part only.

    Args:
        class_names: One name for each class.
        train: What the weights are fitted to.
        validation: What the best epoch is chosen by, or None.
        test: What the report is about.
        bad_images: Unreadable images that were left out, with the reason.
    """

    class_names: tuple[str, ...]
    train: Split
    validation: Split | None
    test: Split
    bad_images: tuple[str, ...] = ()


def load_splits(config: DataConfig, channels: int) -> Splits:
    """Opens a source and divides it, each class in proportion.

    Args:
        config: The recipe's `data`.
        channels: 1 for gray images, 3 for RGB.

    Returns:
        The parts, which have no image in common.

    Raises:
        DataError: See `open_source`; or a class has too few images to be divided.
    """
    source = open_source(config, channels)
    train, test = source.train, source.test
    if test is None:
        train, test = _divide(train, config.test, config, "test")
    validation = None
    if config.validation:
        train, validation = _divide(train, config.validation, config, "validation")
    return Splits(source.class_names, train, validation, test, source.bad_images)


def _divide(
    split: Split, share: float, config: DataConfig, part: str
) -> tuple[Split, Split]:
    try:
        rest, taken = train_test_split(
            np.arange(len(split)),
            test_size=share,
            random_state=config.split_seed,
            stratify=split.labels,
        )
    except ValueError as error:
        raise DataError(
            f"{config.source}: a {part} share of {share} cannot be taken from "
            f"{len(split)} images: {error}"
        ) from None
    return split.subset(rest), split.subset(taken)


def steps_per_epoch(split: Split, batch_size: int) -> int:
    """Full batches in an epoch; the images that are left over differ in each.

    Raises:
        DataError: There are fewer images than one batch needs.
    """
    if len(split) < batch_size:
        raise DataError(
            "`batch_size` must not be larger than the number of training images. "
            f"Received: batch_size={batch_size}, {len(split)} training images"
        )
    return len(split) // batch_size


def training_batches(
    split: Split,
    recipe: Recipe,
    preprocessing: ImagePreprocessing,
    first_epoch: int = 0,
) -> tf.data.Dataset:
    """All batches of the epochs from `first_epoch` on, one after the other.

    Args:
        split: The training images.
        recipe: Seed, batch size, epochs and augmentation are used.
        preprocessing: The model's layer: size and resampling.
        first_epoch: The epoch to begin with, from 0.

    Returns:
        Pairs of uint8 images [B, H, W, C] and one-hot float32 labels [B, classes].
    """
    batch_size, seed = recipe.batch_size, recipe.seed
    images = steps_per_epoch(split, batch_size) * batch_size

    def epoch_order(epoch):
        order_seed = tf.stack([tf.constant(seed, tf.int64), epoch])
        return tf.data.Dataset.range(images).map(
            lambda place: (
                epoch,
                tf.random.experimental.index_shuffle(place, order_seed, len(split) - 1),
            )
        )

    def example(epoch, index):
        example = example_seed(seed, epoch, index)
        image = split.read(index)
        return augment(image, example, recipe.augmentation, preprocessing), index

    return _batches(
        tf.data.Dataset.range(first_epoch, recipe.epochs).flat_map(epoch_order),
        example,
        split,
        batch_size,
        drop_remainder=True,
    )


def evaluation_batches(
    split: Split, batch_size: int, preprocessing: ImagePreprocessing
) -> tf.data.Dataset:
    """Every image once, in order, as serving would see it.

    Args:
        split: The images.
        batch_size: Images in a batch; the last one may have fewer.
        preprocessing: The model's layer: size, resampling and crop.

    Returns:
        Pairs of uint8 images [B, H, W, C] and one-hot float32 labels [B, classes].
    """
    return _batches(
        tf.data.Dataset.range(len(split)),
        lambda index: (fit_to_model(split.read(index), preprocessing), index),
        split,
        batch_size,
        drop_remainder=False,
    )


def _batches(
    indices: tf.data.Dataset,
    example: Callable[..., Any],
    split: Split,
    batch_size: int,
    drop_remainder: bool,
) -> tf.data.Dataset:
    labels = tf.constant(split.labels)

    def with_labels(images, index):
        return images, tf.one_hot(tf.gather(labels, index), split.classes)

    return (
        indices.map(example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .batch(batch_size, drop_remainder=drop_remainder)
        .map(with_labels)
        .prefetch(tf.data.AUTOTUNE)
    )


def in_memory(split: Split, preprocessing: ImagePreprocessing) -> Split:
    """The split with its images decoded and resized once, where they are few enough.

    Not for training with random crops, which need the images at their own size.
    """
    pixels = preprocessing.image_size[0] * preprocessing.image_size[1]
    if len(split) * pixels * 3 > CACHE_LIMIT:
        return split
    batches = evaluation_batches(split, 256, preprocessing).as_numpy_iterator()
    images = np.concatenate([images for images, _ in batches])
    return split.with_pixels(images)
