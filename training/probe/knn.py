"""Accuracy of weighted nearest neighbors, as in DINO (arXiv:2104.14294, appendix E).

Cosine similarity of L2-normalized features; each of the k nearest training images
votes for its class with weight exp(similarity / 0.07). Features are [n, D] of training
and [m, D] of test images, labels int64 [n].
"""

from collections.abc import Sequence

import numpy as np
from sklearn.preprocessing import normalize

from keras_vit.typing import Array

K = (10, 20, 100, 200)
TEMPERATURE = 0.07
# Rows of training and of test features in memory at a time, and their product: with
# 1,024 features 64 MiB, 4 MiB and 64 MiB.
TRAINING_ROWS = 16_384
TEST_ROWS = 1_024


def nearest(train: Array, test: Array, k: int) -> tuple[Array, Array]:
    """The training images of the highest cosine similarity to each test image.

    Both arrays are read in chunks, so that they can be memory-mapped; the training
    features, the larger ones, only once.

    Args:
        train: Features [n, D], of n >= k images.
        test: Features [m, D].
        k: Number of neighbors.

    Returns:
        Similarities, float32 [m, k], the highest first, and the images' indices, int64
        [m, k].
    """
    similarities = np.full((len(test), k), -np.inf, "float32")
    indices = np.zeros((len(test), k), np.int64)
    for first in range(0, len(train), TRAINING_ROWS):
        chunk = normalize(train[first : first + TRAINING_ROWS])
        for row in range(0, len(test), TEST_ROWS):
            rows = slice(row, row + TEST_ROWS)
            found = normalize(test[rows]) @ chunk.T
            _keep_best(similarities[rows], indices[rows], found, first)
    order = np.argsort(-similarities, axis=1, kind="stable")
    return (
        np.take_along_axis(similarities, order, axis=1),
        np.take_along_axis(indices, order, axis=1),
    )


def _keep_best(
    similarities: Array,
    indices: Array,
    found: Array,
    first: int,
) -> None:
    """Replace the k best [m, k] by the best of these and of what was found [m, n].

    What was found is of the training images from `first` on.
    """
    k = similarities.shape[1]
    if found.shape[1] > k:
        new = np.argpartition(-found, k - 1, axis=1)[:, :k]
    else:
        new = np.broadcast_to(np.arange(found.shape[1]), found.shape)
    both = np.concatenate([similarities, np.take_along_axis(found, new, 1)], axis=1)
    numbers = np.concatenate([indices, new + first], axis=1)
    best = np.argpartition(-both, k - 1, axis=1)[:, :k]
    similarities[:] = np.take_along_axis(both, best, axis=1)
    indices[:] = np.take_along_axis(numbers, best, axis=1)


def knn_predictions(
    train: Array,
    labels: Array,
    test: Array,
    classes: int,
    k: Sequence[int] = K,
    temperature: float = TEMPERATURE,
) -> dict[int, Array]:
    """Classes by a weighted vote of the nearest neighbors, int64 [m], for each k."""
    similarities, indices = nearest(train, test, max(k))
    votes, voters = np.exp(similarities / temperature), labels[indices]
    predictions = {number: np.empty(len(test), np.int64) for number in k}
    for row in range(0, len(test), TEST_ROWS):
        rows = slice(row, row + TEST_ROWS)
        images = np.arange(len(votes[rows]))[:, np.newaxis]
        for number, predicted in predictions.items():
            totals = np.zeros((len(images), classes), "float32")
            chosen = images, voters[rows, :number]
            np.add.at(totals, chosen, votes[rows, :number])
            predicted[rows] = totals.argmax(axis=1)
    return predictions
