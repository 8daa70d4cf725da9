"""From images to batches: their order, and which worker has which.

A training example is a pure function of (seed, epoch, index): which image stands where
in a step, and how it is changed, depends neither on what came before nor on how many
workers and replicas there are. A resumed run therefore sees what the uninterrupted one
would have seen, and several replicas see together what one would have seen alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import ImagePreprocessing

from ..errors import DataError, RecipeError
from ..recipe import AugmentationConfig, Recipe
from .augment import augment, example_seed, fit_to_model
from .labelled_images import Split
from .mixup import check_pairs, mix_pair, mixes

# Decoded images are kept in memory up to this size; larger sets are read every epoch.
CACHE_LIMIT = 2**30


@dataclass(frozen=True)
class Shard:
    """The part of each global batch that one worker reads.

    A global batch is cut into `count * replicas` pieces; this worker has `replicas` of
    them, one after the other.

    Args:
        index: The worker's number, from 0.
        count: How many workers there are.
        replicas: Replicas on each worker.
    """

    index: int = 0
    count: int = 1
    replicas: int = 1

    @property
    def pieces(self) -> int:
        """Pieces of a global batch."""
        return self.count * self.replicas


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
    first_step: int = 0,
    total_steps: int | None = None,
    shard: Shard = Shard(),
) -> tf.data.Dataset:
    """The batches of the steps from `first_step` on, one after the other.

    Args:
        split: The training images.
        recipe: Seed, batch size, length and augmentation are used.
        preprocessing: The model's layer: size and resampling.
        first_step: The step to begin with, from 0.
        total_steps: Where to end; the recipe's length when absent.
        shard: The pieces of each step's batch to read.

    Returns:
        Pairs of uint8 images [b, H, W, C] and float32 labels [b, classes], one pair for
        each of the shard's replicas in each step; b is the batch size over the number
        of pieces.

    Raises:
        RecipeError: The batch cannot be cut into pieces, or, where images are mixed,
            these into pairs.
        DataError: There are fewer images than one batch needs.
    """
    if total_steps is None:
        epoch = steps_per_epoch(split, recipe.batch_size)
        total_steps = recipe.steps or recipe.epochs * epoch
    labels = tf.constant(split.labels)
    mixed = mixes(recipe.augmentation)

    def example(index, seed):
        image = augment(split, index, seed, recipe.augmentation, preprocessing)
        label = tf.one_hot(labels[index], split.classes)
        return (image, label, seed) if mixed else (image, label)

    dataset = example_order(split, recipe, first_step, total_steps, shard)
    dataset = parallel(dataset, example)
    size = recipe.batch_size // shard.pieces
    if mixed:
        dataset = _mixed(dataset, size, recipe.augmentation)
    else:
        dataset = dataset.batch(size, drop_remainder=True)
    return dataset.prefetch(tf.data.AUTOTUNE)


def example_order(
    split: Split, recipe: Recipe, first_step: int, total_steps: int, shard: Shard
) -> tf.data.Dataset:
    """The number, scalar int64, and seed, int64 [2], of each example of a shard.

    Arguments and errors are those of `training_batches`.
    """
    places = _places(recipe, shard)
    steps = steps_per_epoch(split, recipe.batch_size)

    def examples(step):
        return _examples(step, places, len(split), steps, recipe)

    return tf.data.Dataset.range(first_step, total_steps).map(examples).unbatch()


def _places(recipe: Recipe, shard: Shard) -> np.ndarray[Any, Any]:
    """Where the shard's examples stand in the global batch: int64 [n]."""
    size, pieces = recipe.batch_size, shard.pieces
    if size % pieces:
        raise RecipeError(
            f"`batch_size` must be a multiple of the {pieces} replicas. "
            f"Received: {size}"
        )
    check_pairs(recipe.augmentation, size, pieces)
    return np.arange(size).reshape(shard.count, -1)[shard.index]


def _examples(
    step: tf.Tensor,
    places: np.ndarray[Any, Any],
    images: int,
    steps: int,
    recipe: Recipe,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Numbers int64 [n] and seeds int64 [n, 2] of a step's examples.

    With repeats, copy r of the j-th of the step's B / repeats images stands at the
    place r * B / repeats + j, so that neighbours, which are mixed, are different
    images.
    """
    different = recipe.batch_size // recipe.augmentation.repeats
    epoch, position = step // steps, step % steps
    copy, place = np.divmod(places, different)
    index = tf.random.experimental.index_shuffle(
        position * different + place,
        tf.stack([tf.constant(recipe.seed, tf.int64), epoch]),
        images - 1,
    )
    return index, example_seed(recipe.seed, epoch, index, tf.constant(copy))


def parallel(dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Applies a function to several elements at once, and keeps their order."""
    return dataset.map(
        function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )


def _mixed(
    dataset: tf.data.Dataset, size: int, config: AugmentationConfig
) -> tf.data.Dataset:
    """Batches of examples (image, label, seed), of which neighbours are mixed."""
    # Pairs fit into the processor's cache: mixing whole batches takes twice as long.
    pairs = parallel(
        dataset.batch(2, drop_remainder=True),
        lambda images, labels, seeds: mix_pair(images, labels, seeds, config),
    )

    def joined(*pairs):
        return tuple(tf.reshape(pair, [size, *pair.shape[2:]]) for pair in pairs)

    return pairs.batch(size // 2, drop_remainder=True).map(joined)


def evaluation_batches(
    split: Split,
    batch_size: int,
    preprocessing: ImagePreprocessing,
    shard: Shard = Shard(),
) -> tf.data.Dataset:
    """Every image once, in order, as serving would see it.

    Args:
        split: The images.
        batch_size: Images in a global batch.
        preprocessing: The model's layer: size, resampling and crop.
        shard: The pieces of each global batch to read.

    Returns:
        Triples of uint8 images [b, H, W, C], one-hot float32 labels [b, classes] and
        float32 weights [b]; b is the batch size over the number of pieces, rounded up.
        Every batch is full, and every worker has as many: what is missing are zeros of
        weight 0.
    """
    size = -(-batch_size // shard.pieces)
    own, whole = size * shard.replicas, size * shard.pieces
    count = own * -(-len(split) // whole)
    numbers = np.arange(count) // own * whole + np.arange(count) % own
    real = int((numbers + shard.index * own < len(split)).sum())
    labels = tf.constant(split.labels)

    def example(place):
        index = place // own * whole + place % own + shard.index * own
        image = split.read(index)
        if not split.fitted:
            image = fit_to_model(image, preprocessing)
        return image, tf.one_hot(labels[index], split.classes), 1.0

    dataset = parallel(tf.data.Dataset.range(real), example)
    nothing = [tf.zeros(spec.shape, spec.dtype) for spec in dataset.element_spec]
    padding = tf.data.Dataset.from_tensors(tuple(nothing)).repeat(count - real)
    dataset = dataset.concatenate(padding).batch(size, drop_remainder=True)
    return dataset.prefetch(tf.data.AUTOTUNE)


def in_memory(split: Split, preprocessing: ImagePreprocessing) -> Split:
    """The split with its images decoded and resized once, where they are few enough.

    Not for training with random crops, which need the images at their own size.
    """
    pixels = preprocessing.image_size[0] * preprocessing.image_size[1]
    if len(split) * pixels * 3 > CACHE_LIMIT:
        return split
    batches = evaluation_batches(split, 256, preprocessing).as_numpy_iterator()
    images = np.concatenate([images for images, *_ in batches])
    return split.with_pixels(images[: len(split)])


def resized_once(
    split: Split, recipe: Recipe, preprocessing: ImagePreprocessing
) -> Split:
    """The training images `in_memory`, unless each epoch crops them anew."""
    config = recipe.augmentation
    if config.crop_min_area < 1 or config.simple_crop:
        return split
    return in_memory(split, preprocessing)


def example_images(
    split: Split, recipe: Recipe, preprocessing: ImagePreprocessing, count: int
) -> np.ndarray[Any, Any]:
    """The first training images as the model gets them: uint8 [count, H, W, C].

    There are fewer where the training has fewer.
    """
    batches = training_batches(split, recipe, preprocessing)
    images = batches.unbatch().take(count).as_numpy_iterator()
    return np.stack([image for image, _ in images])
