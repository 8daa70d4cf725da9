"""Linear probe: a linear classifier on frozen features, its strength chosen.

With L-BFGS it is scikit-learn's logistic regression with a choice of l2, with AdamW a
Keras layer with a choice of learning rates. The choice is by the accuracy on validation
images; the classifier is then fitted again on all images but the test images.
"""

import dataclasses
import sys
import warnings
from collections.abc import Callable, Sequence

import keras
import numpy as np

from keras_vit.typing import Array

# Of equally good candidates the first is chosen, so the strongest one comes first.
L2 = (1e4, 1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2)
LEARNING_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
ITERATIONS = 1000
EPOCHS = 100
BATCH_SIZE = 1024

Predict = Callable[[Array], Array]
Fit = Callable[[Array, Array, int, float], Predict]


@dataclasses.dataclass(frozen=True)
class LinearProbe:
    """The result of a linear probe."""

    chosen: float  # the l2 or the learning rate of the best validation accuracy
    validation: dict[float, float]  # the accuracy of each candidate, 0 to 1
    predictions: Array  # int64 [m], classes of the test images


def linear_probe(
    train: Array,
    labels: Array,
    validation: Array,
    test: Array,
    classes: int,
    optimizer: str = "lbfgs",
    candidates: Sequence[float] | None = None,
) -> LinearProbe:
    """Choose, fit and apply a linear classifier; features are [n, D], labels int64 [n].

    The features are standardized by those that the classifier is fitted on. The choice
    is made by the images whose indices are `validation`.

    Candidates of lbfgs are values of l2 (the penalty is l2 / 2 times the squared
    weights, beside the sum of all images' cross-entropy), those of adamw peak learning
    rates.
    """
    fit, default = {"lbfgs": (_lbfgs, L2), "adamw": (_adamw, LEARNING_RATES)}[optimizer]
    candidates = default if candidates is None else candidates
    rest = np.setdiff1d(np.arange(len(labels)), validation)
    accuracies = {}
    for value in candidates:
        predict = _standardized(fit, train[rest], labels[rest], classes, value)
        right = predict(train[validation]) == labels[validation]
        accuracies[value] = float(right.mean())
    chosen = max(accuracies, key=lambda value: accuracies[value])
    predict = _standardized(fit, train, labels, classes, chosen)
    return LinearProbe(chosen, accuracies, predict(test))


def _standardized(
    fit: Fit, train: Array, labels: Array, classes: int, value: float
) -> Predict:
    """Fit on features of mean 0 and deviation 1.

    Returns:
        A function from features, as they were given, to classes.
    """
    mean = train.mean(axis=0, dtype="float64").astype("float32")
    scale = train.std(axis=0, dtype="float64").astype("float32") + np.float32(1e-5)
    predict = fit((train - mean) / scale, labels, classes, value)
    return lambda features: predict((features - mean) / scale)


def _lbfgs(train: Array, labels: Array, classes: int, l2: float) -> Predict:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    classifier = LogisticRegression(C=1 / l2, max_iter=ITERATIONS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        classifier.fit(train, labels)
    if any(issubclass(each.category, ConvergenceWarning) for each in caught):
        print(
            f"l2 {l2:g}: not converged after {ITERATIONS} iterations", file=sys.stderr
        )
    predict: Predict = classifier.predict
    return predict


def _adamw(train: Array, labels: Array, classes: int, learning_rate: float) -> Predict:
    batches = _ShuffledBatches(train, labels)
    schedule = keras.optimizers.schedules.CosineDecay(learning_rate, len(batches))
    layer = keras.layers.Dense(classes, kernel_initializer="zeros", dtype="float32")
    network = keras.Sequential([keras.Input(train.shape[1:]), layer])
    network.compile(
        keras.optimizers.AdamW(schedule, weight_decay=0.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    network.fit(batches, shuffle=False, verbose=0)
    kernel, bias = layer.get_weights()
    return lambda features: (features @ kernel + bias).argmax(axis=1)


class _ShuffledBatches(keras.utils.PyDataset):
    """The batches of all epochs, shuffled without Keras's global seed.

    They are one epoch to Keras, whose own work for each would take most of the time.
    """

    def __init__(self, features: Array, labels: Array) -> None:
        super().__init__()
        self.features, self.labels = features, labels
        self.steps = -(-len(labels) // BATCH_SIZE)
        self.epoch, self.order = -1, np.empty(0, int)

    def __len__(self) -> int:
        return EPOCHS * self.steps

    def __getitem__(self, index: int) -> tuple[Array, Array]:
        epoch, position = divmod(index, self.steps)
        if epoch != self.epoch:
            random = np.random.default_rng(epoch)
            self.epoch, self.order = epoch, random.permutation(len(self.labels))
        rows = self.order[position * BATCH_SIZE : (position + 1) * BATCH_SIZE]
        return self.features[rows], self.labels[rows]
