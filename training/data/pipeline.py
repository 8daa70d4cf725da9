"""The input pipeline: from images to sharded batches for training and evaluation.

A training example is a pure function of (seed, epoch, index): its position in a step
and its augmentation depend neither on what came before nor on the number of workers and
replicas. A resumed run therefore sees the batches of an uninterrupted one, and several
replicas together see those of a single one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import ImagePreprocessing
from keras_vit.common.activity import activity
from keras_vit.typing import Array

from ..augmentation_config import CROPS, AugmentationConfig, marked
from ..cores import usable_cores
from ..errors import DataError, RecipeError
from ..recipe import Recipe
from .augment import augment, example_seed, fit_to_model
from .labeled_images import Split, host_constant
from .masking import Masking
from .mixup import check_pairs, mix_pair, mixes
from .read_errors import read_errors, read_image

# Bytes up to which decoded images are cached; larger sets are read in every epoch.
CACHE_LIMIT = 2**30
READY = 2  # batches ahead of the step


@dataclass(frozen=True)
class Shard:
    """The part of each global batch that one worker reads.

    A global batch is divided into `count * replicas` pieces, of which this worker has
    `replicas` consecutive ones.
    """

    index: int = 0  # the worker's number
    count: int = 1  # of workers
    replicas: int = 1  # on each worker

    @property
    def pieces(self) -> int:
        """Number of pieces of a global batch."""
        return self.count * self.replicas


def steps_per_epoch(split: Split, batch_size: int) -> int:
    """Number of full batches in an epoch; in each epoch other images are left over.

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
    masking: Masking | None = None,
) -> tf.data.Dataset:
    """The training batches of the steps from `first_step` on, counted from 0.

    They end before `total_steps`, by default the recipe's length.

    Returns:
        Pairs of uint8 images [b, H, W, C], or float32 features [b, D], and float32
        labels [b, classes], one pair for each of the shard's replicas in each step; b
        is the batch size divided by the number of pieces. With `masking`, pairs as
        `masked_example` has them.

    Raises:
        RecipeError: The batch cannot be divided into pieces, or, where images are
            mixed, these into pairs.
        DataError: There are fewer images than one batch needs.
    """
    if total_steps is None:
        epoch = steps_per_epoch(split, recipe.batch_size)
        total_steps = recipe.steps or recipe.epochs * epoch
    labels = host_constant(split.labels)
    mixed = mixes(recipe.augmentation)

    def example(index: tf.Tensor, seed: tf.Tensor) -> tuple[Any, ...]:
        image = augment(split, index, seed, recipe.augmentation, preprocessing)
        if masking is not None:
            return masked_example(image, *masking(seed))
        label = tf.one_hot(tf.gather(labels, index), split.classes)
        return (image, label, seed) if mixed else (image, label)

    dataset = example_order(split, recipe, first_step, total_steps, shard)
    size = recipe.batch_size // shard.pieces
    if split.of_features:
        dataset = parallel(dataset.batch(size, drop_remainder=True), example)
    elif mixed:
        dataset = _mixed(parallel(dataset, example), size, recipe.augmentation)
    else:
        dataset = parallel(dataset, example).batch(size, drop_remainder=True)
    return ready(dataset)


def masked_example(
    image: tf.Tensor, indices: tf.Tensor, masked: tf.Tensor
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """A pair of the inputs and the mask of self-supervision; see `Masking`."""
    return {"images": image, "patch_indices": indices}, masked


def example_order(
    split: Split, recipe: Recipe, first_step: int, total_steps: int, shard: Shard
) -> tf.data.Dataset:
    """The index, scalar int64, and seed, int64 [2], of each example of a shard.

    Arguments and errors are those of `training_batches`.
    """
    positions = _positions(recipe, shard)
    steps = steps_per_epoch(split, recipe.batch_size)

    @tf.autograph.experimental.do_not_convert
    def examples(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return _examples(step, positions, len(split), steps, recipe)

    return tf.data.Dataset.range(first_step, total_steps).map(examples).unbatch()


def _positions(recipe: Recipe, shard: Shard) -> Array:
    """Positions of the shard's examples in the global batch: int64 [n]."""
    size, pieces = recipe.batch_size, shard.pieces
    if size % pieces:
        raise RecipeError(
            f"`batch_size` must be a multiple of the {pieces} replicas. "
            f"Received: {size}"
        )
    check_pairs(recipe.augmentation, size, pieces)
    positions: Array = np.arange(size).reshape(shard.count, -1)[shard.index]
    return positions


def _examples(
    step: tf.Tensor,
    positions: Array,
    images: int,
    steps: int,
    recipe: Recipe,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Indices int64 [n] and seeds int64 [n, 2] of a step's examples.

    With repeats, copy r of the j-th of the step's B / repeats images has the position
    r * B / repeats + j, so that neighbors, which are mixed, are different images.
    """
    distinct = recipe.batch_size // recipe.augmentation.repeats
    epoch, epoch_step = step // steps, step % steps
    copy, image = np.divmod(positions, distinct)
    index = tf.random.experimental.index_shuffle(
        epoch_step * distinct + image,
        tf.stack([tf.constant(recipe.seed, tf.int64), epoch]),
        images - 1,
    )
    return index, example_seed(recipe.seed, epoch, index, tf.constant(copy))


def images_of_steps(split: Split, recipe: Recipe, steps: Iterable[int]) -> list[int]:
    """Indices of the training images of some steps, of all workers."""
    positions = np.arange(recipe.batch_size)
    per_epoch = steps_per_epoch(split, recipe.batch_size)
    batches = [
        _examples(tf.constant(step, tf.int64), positions, len(split), per_epoch, recipe)
        for step in steps
    ]
    return sorted({int(index) for indices, _ in batches for index in indices})


def parallel(dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Apply a function to several elements in parallel, keeping their order.

    It must have no Python control flow that depends on tensors: AutoGraph, whose
    conversion takes longer than all the rest of tracing, is off.
    """
    function = tf.autograph.experimental.do_not_convert(function)
    return dataset.map(
        function, num_parallel_calls=max(2, usable_cores()), deterministic=True
    )


def ready(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Prepare batches ahead, without the thread by which tf.data tunes a pipeline.

    It would find what stands here: as many examples at once as there are cores. It
    sleeps up to as long as its iterator has existed, a minute at most, and the end of
    an iterator, after each validation and after training, waits for it now and then:
    it may be woken just before it can know that it must end.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(READY).with_options(options)


def _mixed(
    dataset: tf.data.Dataset, size: int, config: AugmentationConfig
) -> tf.data.Dataset:
    """Batch examples (image, label, seed), and mix neighbors."""
    # Pairs fit into the processor's cache: mixing whole batches takes twice as long.
    pairs = parallel(
        dataset.batch(2, drop_remainder=True),
        lambda images, labels, seeds: mix_pair(images, labels, seeds, config),
    )

    @tf.autograph.experimental.do_not_convert
    def joined(*pairs: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(tf.reshape(pair, [size, *pair.shape[2:]]) for pair in pairs)

    return pairs.batch(size // 2, drop_remainder=True).map(joined)


def evaluation_batches(
    split: Split,
    batch_size: int,
    preprocessing: ImagePreprocessing,
    shard: Shard = Shard(),
    masking: Masking | None = None,
) -> tf.data.Dataset:
    """Batches of every image once, in order, preprocessed as in serving.

    Returns:
        Triples of uint8 images [b, H, W, C], or float32 features [b, D], one-hot
        float32 labels [b, classes] and float32 weights [b]; b is the batch size divided
        by the number of pieces, rounded up. With `masking`, the first two are as
        `masked_example` has them.
        Every batch is full, and every worker has the same number: they are padded with
        zeros of weight 0.
    """
    size = -(-batch_size // shard.pieces)
    own, whole = size * shard.replicas, size * shard.pieces
    count = own * -(-len(split) // whole)
    numbers = np.arange(count) // own * whole + np.arange(count) % own
    real = int((numbers + shard.index * own < len(split)).sum())
    labels = host_constant(split.labels)

    def example(position: tf.Tensor) -> tuple[Any, ...]:
        index = position // own * whole + position % own + shard.index * own
        image = split.read(index)
        if not split.fitted:
            image = fit_to_model(image, preprocessing)
        if masking is not None:
            return *masked_example(image, *masking.of_evaluated(index)), 1.0
        label = tf.one_hot(tf.gather(labels, index), split.classes)
        return image, label, tf.ones_like(index, tf.float32)

    dataset = tf.data.Dataset.range(real)
    if split.of_features:
        dataset = parallel(dataset.batch(size), example).unbatch()
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(real))
    else:
        dataset = parallel(dataset, example)
    zeros = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype), dataset.element_spec
    )
    padding = tf.data.Dataset.from_tensors(zeros).repeat(count - real)
    dataset = dataset.concatenate(padding).batch(size, drop_remainder=True)
    return ready(dataset)


def in_memory(split: Split, preprocessing: ImagePreprocessing) -> Split:
    """Decode and resize all images once, where they fit into `CACHE_LIMIT`.

    Not for training with random crops, which need the images' own size.
    """
    pixels = preprocessing.image_size[0] * preprocessing.image_size[1]
    if split.fitted or len(split) * pixels * 3 > CACHE_LIMIT:
        return split
    return split.with_pixels(evaluation_images(split, preprocessing))


def evaluation_images(split: Split, preprocessing: ImagePreprocessing) -> Array:
    """All images as the model sees them in evaluation: uint8 [n, H, W, C].

    Raises:
        DataError: Some cannot be read.
    """
    batches = evaluation_batches(split, 256, preprocessing)
    with read_errors(split), activity(f"decoding and resizing {len(split)} images"):
        images = [images for images, *_ in batches.as_numpy_iterator()]
    return np.concatenate(images)[: len(split)]  # without the padding


def resized_once(
    split: Split, recipe: Recipe, preprocessing: ImagePreprocessing
) -> Split:
    """The training images `in_memory`, unless each epoch crops them randomly."""
    if marked(CROPS, recipe.augmentation):
        return split
    return in_memory(split, preprocessing)


def example_images(
    split: Split, recipe: Recipe, preprocessing: ImagePreprocessing, count: int
) -> Array:
    """The first training images after augmentation: uint8 [count, H, W, C].

    There are fewer where the training set is smaller.
    """
    batches = training_batches(split, recipe, preprocessing)
    examples = batches.unbatch().take(count)
    with read_errors(split):
        return np.stack([image for image, _ in examples.as_numpy_iterator()])


def images_at(
    split: Split, indices: Iterable[int], preprocessing: ImagePreprocessing
) -> list[Array]:
    """Some images as the model sees them in evaluation: uint8 [H, W, C] each."""
    return [
        np.asarray(fit_to_model(read_image(split, int(i)), preprocessing))
        for i in indices
    ]
