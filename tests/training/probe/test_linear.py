"""The linear probe against scikit-learn, and its choice of the strength."""

import numpy as np
import pytest
import scipy.optimize

from training.probe import linear

CLASSES, WIDTH = 3, 5


@pytest.fixture
def data():
    """Features of very different scale, of 90 images, and of 31 test images."""
    random = np.random.default_rng(4)
    labels = random.integers(0, CLASSES, 121)
    centers = random.normal(size=(CLASSES, WIDTH))
    features = 2 * centers[labels] + random.normal(size=(121, WIDTH))
    features = features * [100, 1, 1e-2, 1, 1] + [0, 50, 0, 0, 0]
    return features.astype("float32"), labels


def explicit(train, labels, l2):
    """Weights of the regularized cross-entropy in float64, by SciPy."""
    one_hot = np.eye(CLASSES)[labels]

    def objective(flat):
        weights, bias = np.split(flat, [WIDTH * CLASSES])
        weights = weights.reshape(WIDTH, CLASSES)
        logits = train @ weights + bias
        logits -= logits.max(1, keepdims=True)
        losses = np.log(np.exp(logits).sum(1)) - (logits * one_hot).sum(1)
        return losses.sum() + l2 / 2 * (weights**2).sum()

    start = np.zeros(WIDTH * CLASSES + CLASSES)
    flat = scipy.optimize.minimize(objective, start, method="BFGS").x
    weights, bias = np.split(flat, [WIDTH * CLASSES])
    return weights.reshape(WIDTH, CLASSES), bias


def test_lbfgs_predicts_as_an_explicit_minimum(data):
    features, labels = data
    l2 = 7.0
    train = features[:90].astype("float64")
    mean, scale = train.mean(0), train.std(0) + 1e-5
    weights, bias = explicit((train - mean) / scale, labels[:90], l2)
    expected = ((features[90:] - mean) / scale @ weights + bias).argmax(1)
    validation = np.arange(70, 90)
    result = linear.linear_probe(
        features[:90],
        labels[:90],
        validation,
        features[90:],
        CLASSES,
        candidates=[l2],
    )
    np.testing.assert_array_equal(result.predictions, expected)
    assert result.chosen == l2


@pytest.mark.parametrize(
    ("optimizer", "candidates"),
    [
        ("lbfgs", (1e9, 1.0)),
        pytest.param("adamw", (1e-9, 1e-2), marks=pytest.mark.slow),
    ],
)
def test_the_strength_is_chosen_on_validation_images(
    data, monkeypatch, optimizer, candidates
):
    """One that cannot learn predicts one class; the test labels are not given."""
    monkeypatch.setattr(linear, "BATCH_SIZE", 32)
    features, labels = data
    result = linear.linear_probe(
        features[:90],
        labels[:90],
        np.arange(60, 90),
        features[90:],
        CLASSES,
        optimizer,
        candidates,
    )
    assert result.chosen == candidates[1]
    assert result.validation[candidates[1]] > result.validation[candidates[0]]
    assert (result.predictions == labels[90:]).mean() > 0.7


def test_the_classifier_is_fitted_again_on_all_images(data, monkeypatch):
    sizes = []
    fit = linear._lbfgs
    monkeypatch.setattr(
        linear,
        "_lbfgs",
        lambda train, *rest: sizes.append(len(train)) or fit(train, *rest),
    )
    features, labels = data
    linear.linear_probe(
        features[:90], labels[:90], np.arange(7), features[90:], CLASSES
    )
    assert sizes == [83] * len(linear.L2) + [90]
