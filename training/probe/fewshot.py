"""Few-shot linear accuracy in closed form, as in the paper and in big_vision.

Section 4.1 of arXiv:2010.11929: regularized least squares from frozen features of a few
images of each class to targets {-1, 1}^classes. big_vision (evaluators/fewshot_lsr.py)
whitens the features and appends a constant one. All is computed in float64.
"""

import statistics
from collections.abc import Sequence

import numpy as np
import scipy.sparse

from keras_vit.typing import Array

from ..data.labeled_images import Split
from ..data.splits import Splits, concatenate
from ..errors import DataError

SHOTS = (1, 5, 10, 25)
SEEDS = 3
L2 = 2.0**10
BIAS = 100.0  # so large that its weight is hardly regularized
ROWS = 4096  # images whose scores are computed at a time


class RidgeClassifier:
    """Least squares from features to {-1, 1} targets, for any number of l2.

    X is [N, D] for N images with D features (the constant included), Y [N, classes].
    One eigendecomposition, of X^T X where N >= D and of X X^T otherwise, gives the
    weights (X^T X + l2 I)^-1 X^T Y = X^T (X X^T + l2 I)^-1 Y for each l2.

    Args:
        features: [N, D] of the training images.
        labels: int64 [N], their classes.
        classes: Number of classes.
        whiten: Whether to subtract the training images' mean from each feature, and
            divide it by their standard deviation + 1e-5.
        bias: Value of the constant feature, or None for no such feature.
    """

    def __init__(
        self,
        features: Array,
        labels: Array,
        classes: int,
        whiten: bool = True,
        bias: float | None = BIAS,
    ) -> None:
        features = np.asarray(features, "float64")
        self.bias = bias
        self.mean = features.mean(axis=0) if whiten else 0.0
        self.scale = features.std(axis=0) + 1e-5 if whiten else 1.0
        x = self._prepared(features)
        count, width = x.shape
        one_hot = scipy.sparse.csr_matrix(
            (np.ones(count), (labels, np.arange(count))), (classes, count)
        )
        if count >= width:
            self.eigenvalues, vectors = np.linalg.eigh(x.T @ x)
            targets = 2 * (one_hot @ x).T - x.sum(axis=0)[:, np.newaxis]  # X^T Y
            self.left, self.right = vectors, vectors.T @ targets
        else:
            self.eigenvalues, vectors = np.linalg.eigh(x @ x.T)
            self.left = x.T @ vectors
            self.right = vectors.T @ (2 * one_hot.T.toarray() - 1)

    def _prepared(self, features: Array) -> Array:
        """Whitened features with the constant one, float64."""
        x = (features - self.mean) / self.scale
        if self.bias is None:
            return x
        return np.pad(x, ((0, 0), (0, 1)), constant_values=self.bias)

    def weights(self, l2: float) -> Array:
        """The solution for one l2 > 0: float64 [D, classes], the bias in the last."""
        weights: Array = (self.left / (self.eigenvalues + l2)) @ self.right
        return weights

    def predict(self, features: Array, l2: float) -> Array:
        """The classes of the highest scores: int64 [n] of features [n, D]."""
        weights = self.weights(l2)
        predictions = [
            np.argmax(self._prepared(features[row : row + ROWS]) @ weights, axis=1)
            for row in range(0, len(features), ROWS)
        ]
        return np.concatenate(predictions)


class FewShotTask:
    """Which images a few-shot evaluation needs, and the accuracies from their features.

    Each seed shuffles the images of each class; the first of them are its shots, as
    in big_vision. Only images that are some seed's shots need features.

    Args:
        train: The images of which the shots are taken.
        test: The images of which the accuracy is computed.
        class_names: One name for each class.
        shots: Numbers of images of each class; by default those of 1, 5, 10 and 25
            that every class has.
        seeds: Number of seeds, which are 0, 1, ...

    Attributes:
        shots: The numbers of images of each class.
        support: All images that are shots.

    Raises:
        DataError: A class has too few images.
    """

    def __init__(
        self,
        train: Split,
        test: Split,
        class_names: Sequence[str],
        shots: Sequence[int] | None = None,
        seeds: int = SEEDS,
    ) -> None:
        self.test = test
        self.shots = _possible_shots(train, class_names, shots)
        most = max(self.shots)
        self.chosen = [
            [images[:most] for images in shuffled_classes(train, seed)]
            for seed in range(seeds)
        ]
        used = np.unique(np.concatenate([np.concatenate(c) for c in self.chosen]))
        self.support = train.subset(used)
        self._used = used

    def accuracies(
        self,
        support: Array,
        test: Array,
        l2: Sequence[float] = (L2,),
        whiten: bool = True,
        bias: float | None = BIAS,
    ) -> dict[tuple[int, float], list[float]]:
        """The accuracy of each seed.

        Args:
            support: Features [n, D] of the images of `support`.
            test: Features [m, D] of the test images.
            l2: Values of the regularization.
            whiten: See `RidgeClassifier`.
            bias: See `RidgeClassifier`.

        Returns:
            For each number of shots and each l2 a list of accuracies, 0 to 1.
        """
        found: dict[tuple[int, float], list[float]] = {
            (shots, value): [] for shots in self.shots for value in l2
        }
        for chosen in self.chosen:
            for shots in self.shots:
                images = np.concatenate([images[:shots] for images in chosen])
                rows = np.searchsorted(self._used, images)
                labels = self.support.labels[rows]
                classifier = RidgeClassifier(
                    support[rows], labels, self.test.classes, whiten, bias
                )
                for value in l2:
                    right = classifier.predict(test, value) == self.test.labels
                    found[shots, value].append(float(right.mean()))
        return found


def shuffled_classes(split: Split, seed: int) -> list[Array]:
    """Indices of each class's images, shuffled as big_vision does: int64 [n] each."""
    random = np.random.default_rng(seed)
    counts = np.bincount(split.labels, minlength=split.classes)
    by_class = np.split(np.argsort(split.labels, kind="stable"), np.cumsum(counts)[:-1])
    return [random.permutation(images) for images in by_class]


def _possible_shots(
    train: Split, class_names: Sequence[str], shots: Sequence[int] | None
) -> tuple[int, ...]:
    """The shots asked for, or those of `SHOTS` that every class has.

    Raises:
        DataError: A class has too few images for the shots, or none at all.
    """
    counts = np.bincount(train.labels, minlength=train.classes)
    least = int(counts.min())
    wanted = tuple(shot for shot in SHOTS if shot <= least) if shots is None else shots
    if not wanted or max(wanted) > least:
        name = class_names[int(counts.argmin())]
        raise DataError(
            f"`shots` must be at most the images of each class: {name!r} has {least} "
            f"training images. Received: {', '.join(map(str, wanted or SHOTS))}"
        )
    return tuple(dict.fromkeys(wanted))


def support_images(splits: Splits) -> Split:
    """All images but the test images: a probe selects nothing on validation images."""
    if splits.validation is None:
        return splits.train
    return concatenate([splits.train, splits.validation])


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds; 0 for a single one."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return statistics.fmean(values), deviation
