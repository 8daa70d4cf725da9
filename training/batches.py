"""Batches for the trainer: whole ones of one size, whatever the user's data are."""

import numpy as np
import tensorflow as tf


def unpack(batch):
    """Images, labels and weights float32 [b] of a batch; weights are 1 if absent."""
    images, labels, *rest = batch
    weights = rest[0] if rest else tf.ones(tf.shape(labels)[:1])
    size = labels.shape[0]
    return images, labels, tf.ensure_shape(tf.cast(weights, tf.float32), [size])


def batch_dataset(x, y, batch_size: int | None, parts: int, shuffle: bool):
    """A dataset of whole batches.

    Args:
        x: A `tf.data.Dataset` of batches (images, labels) or (images, labels, weights),
            a distributed dataset (returned as it is), or an array of images.
        y: Labels, where `x` is an array.
        batch_size: For arrays; 32 when absent.
        parts: Into how many equal parts a batch is divided: replicas times
            micro-batches.
        shuffle: For arrays: whether each epoch has an order of its own.

    Returns:
        A dataset of (images, labels, weights). Batches have one static size, a multiple
        of `parts`; what is missing is filled with images of weight 0.

    Raises:
        ValueError: The batch size is not a multiple of `parts`.
    """
    if not isinstance(x, tf.data.Dataset | np.ndarray | tf.Tensor):
        return x
    if not isinstance(x, tf.data.Dataset):
        size = batch_size or 32
        images = tf.data.Dataset.from_tensor_slices((x, y))
        if shuffle:
            images = images.shuffle(len(x))
        x = images.batch(size)
    size = x.element_spec[1].shape[0]
    if size is not None and size % parts == 0:
        return x
    size = size or len(next(iter(x))[1])
    size = -(-size // parts) * parts
    return x.map(lambda *batch: pad(batch, size), num_parallel_calls=tf.data.AUTOTUNE)


def pad(batch, size: int):
    """The batch with images of zeros and weight 0 behind it, up to a size."""
    images, labels, *rest = batch
    missing = size - tf.shape(labels)[0]
    weights = tf.cast(rest[0], tf.float32) if rest else tf.ones(tf.shape(labels)[:1])

    def padded(tensor):
        rank = tensor.shape.rank
        tensor = tf.pad(tensor, [[0, missing]] + [[0, 0]] * (rank - 1))
        return tf.ensure_shape(tensor, [size, *tensor.shape[1:]])

    return tuple(padded(tensor) for tensor in (images, labels, weights))
