"""Nearest neighbors against NumPy float64, and against scikit-learn."""

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from training.probe import knn

CLASSES, WIDTH = 7, 13


@pytest.fixture
def data():
    """Features of 101 training and 37 test images in overlapping classes."""
    random = np.random.default_rng(2)
    labels = random.integers(0, CLASSES, 101)
    classes = random.integers(0, CLASSES, 37)
    centers = random.normal(size=(CLASSES, WIDTH))
    train = centers[labels] + random.normal(size=(101, WIDTH))
    test = centers[classes] + random.normal(size=(37, WIDTH))
    return train.astype("float32"), labels, test.astype("float32")


def votes_in_numpy(train, labels, test, k):
    """The classes by the formula, image by image."""
    train, test = (
        x / np.sqrt((x.astype("float64") ** 2).sum(1, keepdims=True))
        for x in (train, test)
    )
    classes = []
    for image in test:
        similarity = train @ image
        totals = np.zeros(CLASSES)
        for neighbor in np.argsort(-similarity)[:k]:
            totals[labels[neighbor]] += np.exp(similarity[neighbor] / 0.07)
        classes.append(totals.argmax())
    return np.array(classes)


@pytest.mark.parametrize("rows", [None, (8, 5), (40, 100)])
def test_predictions_are_those_of_numpy_and_scikit_learn(data, monkeypatch, rows):
    """In one piece, and in chunks smaller and larger than k."""
    if rows is not None:
        monkeypatch.setattr(knn, "TRAINING_ROWS", rows[0])
        monkeypatch.setattr(knn, "TEST_ROWS", rows[1])
    train, labels, test = data
    predictions = knn.knn_predictions(train, labels, test, CLASSES, (1, 10, 23))
    assert list(predictions) == [1, 10, 23]
    for k, ours in predictions.items():
        np.testing.assert_array_equal(ours, votes_in_numpy(train, labels, test, k))
        theirs = KNeighborsClassifier(
            k, weights=lambda d: np.exp((1 - d) / 0.07), metric="cosine"
        ).fit(train, labels)
        np.testing.assert_array_equal(ours, theirs.predict(test))
    assert len({tuple(p) for p in predictions.values()}) > 1


def test_neighbors_are_sorted_and_all_images_can_be_neighbors(data, monkeypatch):
    monkeypatch.setattr(knn, "TRAINING_ROWS", 30)
    train, _, test = data
    similarities, indices = knn.nearest(train, test, len(train))
    assert (np.diff(similarities, axis=1) <= 0).all()
    np.testing.assert_array_equal(
        np.sort(indices, axis=1), np.tile(np.arange(101), (37, 1))
    )


def test_training_features_are_read_once_and_in_chunks(data, monkeypatch):
    """Those of ImageNet do not fit into memory as they are."""
    monkeypatch.setattr(knn, "TRAINING_ROWS", 16)
    monkeypatch.setattr(knn, "TEST_ROWS", 10)
    train, _, test = data

    class Mapped:
        """Rows that count how often they are read."""

        reads = np.zeros(len(train), int)

        def __len__(self):
            return len(train)

        def __getitem__(self, rows):
            self.reads[rows] += 1
            assert self.reads[rows].sum() <= 16
            return train[rows]

    knn.nearest(Mapped(), test, 5)
    np.testing.assert_array_equal(Mapped.reads, 1)
