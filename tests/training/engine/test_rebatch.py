"""Batches of one static size, padded with copies of weight 0."""

import numpy as np
import pytest
import tensorflow as tf

from training.engine.rebatch import batch_dataset, pad

CLASSES = 5
random = np.random.default_rng(1)
IMAGES = random.normal(size=(48, 3)).astype("float32")
LABELS = np.eye(CLASSES, dtype="float32")[random.integers(0, CLASSES, 48)]


def batches(size):
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(size)


def test_an_incomplete_batch_is_padded_with_copies_of_weight_0():
    images, labels = tf.constant([[1.0], [2], [3]]), tf.constant([1, 2, 3])
    ours = [part.numpy().tolist() for part in pad((images, labels), 8)]
    assert ours[0] == [[1], [2], [3], [1], [2], [3], [1], [2]]
    assert ours[1] == [1, 2, 3, 1, 2, 3, 1, 2]
    assert ours[2] == [1, 1, 1, 0, 0, 0, 0, 0]
    *_, weights = pad((images, labels, tf.constant([5.0, 0, 7])), 4)
    assert weights.numpy().tolist() == [5, 0, 7, 0]


def test_a_batch_larger_than_the_first_is_an_error():
    growing = batches(4).concatenate(batches(8))  # of a size that is not static
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be the largest"):
        list(batch_dataset((growing,), None, 2, shuffle=False))


@pytest.mark.parametrize(
    ("count", "batch_size", "parts", "size"),
    [
        (48, 16, 4, 16),
        (48, 20, 4, 20),
        (48, 18, 4, 20),
        (5, 32, 4, 8),
        (48, None, 1, 32),
    ],
)
def test_batches_have_one_size_that_parts_divide(count, batch_size, parts, size):
    data = (IMAGES[:count], LABELS[:count])
    ours = batch_dataset(data, batch_size, parts, shuffle=True)
    total = 0.0
    for _, labels, weights in ours:
        assert labels.shape == (size, CLASSES)
        total += float(tf.reduce_sum(weights))
    assert total == count
