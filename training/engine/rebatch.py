"""Batches of one static size for the trainer, from a user's dataset or arrays."""

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

Batch: TypeAlias = tuple[tf.Tensor, ...]  # images, labels and, if given, weights
Batches: TypeAlias = tf.data.Dataset | tf.distribute.DistributedDataset
Data: TypeAlias = tuple[Any, ...]  # batches alone, or the arrays of a `Batch`


def unpack(batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """A batch's images, labels and weights float32 [b]; weights are 1 if absent."""
    images, labels, *rest = batch
    weights = tf.cast(rest[0], tf.float32) if rest else tf.ones(tf.shape(labels)[:1])
    weights.set_shape(labels.shape[:1])  # XLA makes a dynamic size of `ensure_shape`
    return images, labels, weights


def batch_dataset(
    data: Data, batch_size: int | None, parts: int, shuffle: bool
) -> Batches:
    """A dataset of batches of one static size.

    Args:
        data: A `tf.data.Dataset` of batches (images, labels) or (images, labels,
            weights), or a distributed dataset (returned as it is); or arrays of images,
            labels and, if there are any, weights.
        batch_size: For arrays; 32 when absent.
        parts: Number of equal parts into which a batch is divided: replicas times
            micro-batches.
        shuffle: For arrays: whether to shuffle them in each epoch.

    Returns:
        A dataset of (images, labels, weights). Batches have one static size, a multiple
        of `parts`; incomplete ones are padded with copies of weight 0.
    """
    x = data[0]
    if not isinstance(x, tf.data.Dataset | np.ndarray | tf.Tensor):
        return x
    if not isinstance(x, tf.data.Dataset):
        arrays = tuple(array for array in data if array is not None)
        images = tf.data.Dataset.from_tensor_slices(arrays)
        if shuffle:
            images = images.shuffle(len(x))
        x = images.batch(batch_size or 32)
    size = x.element_spec[1].shape[0]
    if size is not None and size % parts == 0:
        return x
    size = size or len(next(iter(x))[1])
    size = -(-size // parts) * parts
    padded = tf.autograph.experimental.do_not_convert(lambda *batch: pad(batch, size))
    return x.map(padded, num_parallel_calls=tf.data.AUTOTUNE)


def pad(batch: Batch, size: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Pad a batch to a size with copies of its own images that have weight 0.

    Copies and not zeros, which would distort the statistics of batch normalization. A
    larger batch raises InvalidArgumentError.
    """
    images, labels, *rest = batch
    count = tf.shape(labels)[0]
    tf.debugging.assert_less_equal(count, size, "the first batch must be the largest")
    weights = tf.cast(rest[0], tf.float32) if rest else tf.ones([count])
    places = tf.range(size)
    images, labels, weights = tf.nest.map_structure(
        lambda tensor: tf.gather(tensor, places % count), (images, labels, weights)
    )
    return images, labels, tf.where(places < count, weights, 0.0)
