"""Few-shot accuracy against big_vision's formula, an explicit solution and Ridge."""

import dataclasses

import numpy as np
import pytest
from image_splits import noise_split
from sklearn.linear_model import Ridge

from training.errors import DataError
from training.probe.fewshot import FewShotTask, RidgeClassifier, shuffled_classes

CLASSES = 7
# More images than features, and fewer.
SIZES = [(53, 11), (23, 31)]
L2 = (0.5, 2.0**10)


def problem(count, width):
    """Features of which two are nearly constant, labels, and test features."""
    random = np.random.default_rng(count)
    features = random.normal(size=(count + 19, width)) * random.uniform(0.1, 3, width)
    features += random.normal(size=width)
    features[:, :2] = 1 + 1e-4 * features[:, :2]
    labels = np.concatenate([np.arange(CLASSES), random.integers(0, CLASSES, count)])
    return features[:count], labels[:count], features[count:]


def big_vision(x, y, x_test, l2):
    """fewshot_lsr.py typed anew in float64, with an inverse in place of eigh."""
    mean, std = x.mean(0, keepdims=True), x.std(0, keepdims=True) + 1e-5
    x, x_test = (
        np.concatenate([(part - mean) / std, np.full((len(part), 1), 100.0)], axis=1)
        for part in (x, x_test)
    )
    targets = 2.0 * np.eye(CLASSES)[y] - 1.0
    if len(x) >= x.shape[1]:
        w = np.linalg.inv(x.T @ x + l2 * np.eye(x.shape[1])) @ x.T @ targets
    else:
        w = x.T @ np.linalg.inv(x @ x.T + l2 * np.eye(len(x))) @ targets
    return w, x_test @ w


@pytest.mark.parametrize("l2", L2)
@pytest.mark.parametrize("size", SIZES)
def test_weights_and_predictions_are_those_of_big_vision(size, l2):
    features, labels, test = problem(*size)
    weights, scores = big_vision(features, labels, test, l2)
    ours = RidgeClassifier(features, labels, CLASSES)
    np.testing.assert_allclose(ours.weights(l2), weights, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(ours.predict(test, l2), scores.argmax(1))


@pytest.mark.parametrize("l2", L2)
@pytest.mark.parametrize("size", SIZES)
def test_the_papers_plain_form_is_scikit_learns_ridge(size, l2):
    features, labels, _ = problem(*size)
    targets = 2.0 * np.eye(CLASSES)[labels] - 1.0
    ridge = Ridge(alpha=l2, fit_intercept=False, solver="svd").fit(features, targets)
    ours = RidgeClassifier(features, labels, CLASSES, whiten=False, bias=None)
    np.testing.assert_allclose(ours.weights(l2), ridge.coef_.T, rtol=1e-6, atol=1e-9)


def test_a_large_bias_is_an_intercept_without_penalty():
    features, labels, test = problem(*SIZES[0])
    targets = 2.0 * np.eye(CLASSES)[labels] - 1.0
    ridge = Ridge(alpha=3.0).fit(features, targets)
    ours = RidgeClassifier(features, labels, CLASSES, whiten=False, bias=1e4)
    weights = ours.weights(3.0)
    scores = test @ weights[:-1] + 1e4 * weights[-1]
    np.testing.assert_allclose(scores, ridge.predict(test), atol=1e-4)


def test_many_test_images_are_predicted_in_parts(monkeypatch):
    features, labels, test = problem(*SIZES[0])
    ours = RidgeClassifier(features, labels, CLASSES)
    whole = ours.predict(test, 1.0)
    monkeypatch.setattr("training.probe.fewshot.ROWS", 5)
    np.testing.assert_array_equal(ours.predict(test, 1.0), whole)


def split_of(labels, classes=CLASSES):
    """Images of noise with these labels."""
    split = noise_split(len(labels), (3, 5), 1)
    return dataclasses.replace(split, labels=np.asarray(labels), classes=classes)


NAMES = tuple("abcdefg")


def test_shots_are_drawn_as_in_big_vision():
    labels = problem(53, 11)[1]
    for seed in range(3):
        random = np.random.default_rng(seed)
        expected = [
            random.permutation(np.where(labels == each)[0]) for each in range(CLASSES)
        ]
        ours = shuffled_classes(split_of(labels), seed)
        np.testing.assert_equal(list(ours), expected)


def test_accuracies_of_a_task_follow_big_vision():
    """Every seed and number of shots, from the features of the shots alone."""
    random = np.random.default_rng(5)
    labels = random.permutation(np.repeat(np.arange(CLASSES), 6))
    test_labels = random.integers(0, CLASSES, 41)
    centers = random.normal(size=(CLASSES, 13))
    features = centers[labels] + random.normal(size=(len(labels), 13))
    test = centers[test_labels] + random.normal(size=(41, 13))
    task = FewShotTask(split_of(labels), split_of(test_labels), NAMES, (1, 4), seeds=2)
    assert len(task.support) < len(labels)
    names = [int(name.split()[1]) for name in task.support.names]
    found = task.accuracies(features[names], test, L2)
    assert list(found) == [(shots, l2) for shots in (1, 4) for l2 in L2]
    for (shots, l2), accuracies in found.items():
        expected = []
        for seed in range(2):
            rng = np.random.default_rng(seed)
            chosen = [
                rng.permutation(np.where(labels == each)[0])[:shots]
                for each in range(CLASSES)
            ]
            rows = np.concatenate(chosen)
            _, scores = big_vision(features[rows], labels[rows], test, l2)
            expected.append((scores.argmax(1) == test_labels).mean())
        assert accuracies == pytest.approx(expected, abs=1e-12)
        assert max(accuracies) > 0.3


def test_default_shots_are_those_that_every_class_has():
    labels = np.repeat(np.arange(CLASSES), [9, 6, 30, 30, 5, 30, 30])
    task = FewShotTask(split_of(labels), split_of(labels), NAMES)
    assert task.shots == (1, 5)


@pytest.mark.parametrize(("shots", "missing"), [((1, 6), 5), (None, 0)])
def test_too_few_images_of_a_class_are_an_error(shots, missing):
    counts = [9, 6, 30, 30, missing, 30, 30]
    labels = np.repeat(np.arange(CLASSES), counts)
    with pytest.raises(DataError, match=f"'e' has {missing} training") as error:
        FewShotTask(split_of(labels), split_of(labels), NAMES, shots)
    assert "\n" not in str(error.value)
