"""Losses against NumPy in float64."""

import numpy as np
import pytest

from training.architectures.compiling import log_shares
from training.engine.losses import make_loss

LOGITS = np.random.default_rng(0).normal(size=(5, 3))
LABELS = np.array([0, 2, 1, 1, 2])


def cross_entropy(logits, labels):
    shifted = logits - logits.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -logs[np.arange(len(labels)), labels]


def test_the_loss_adds_the_adjustment_to_the_logits():
    """Equation 10 of arXiv:2007.07314, with tau = 2."""
    shares = np.array([0.7, 0.1, 0.2])
    loss = make_loss("softmax", adjustment=(2 * np.log(shares)).astype("float32"))
    wanted = cross_entropy(LOGITS + 2 * np.log(shares), LABELS)
    np.testing.assert_allclose(loss(LABELS, LOGITS), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "labels", [LABELS, np.eye(3)[LABELS]], ids=["integers", "rows"]
)
@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_label_smoothing_spreads_its_share_over_all_classes(name, labels):
    targets = 0.8 * np.eye(3)[LABELS] + 0.2 / 3
    if name == "softmax":
        columns = [cross_entropy(LOGITS, np.full(5, k)) for k in range(3)]
        wanted = (targets * np.stack(columns, axis=1)).sum(axis=1)
    else:  # binary cross-entropy, summed over the classes
        true, false = (np.log1p(np.exp(sign * LOGITS)) for sign in (-1, 1))
        wanted = (targets * true + (1 - targets) * false).sum(axis=1)
    loss = make_loss(name, label_smoothing=0.2)
    np.testing.assert_allclose(loss(labels, LOGITS), wanted, rtol=1e-5)


def test_shares_are_those_of_the_images():
    shares = np.exp(log_shares(np.array([0, 0, 0, 2]), 3))
    np.testing.assert_allclose(shares, [0.6, 0.2, 0.2], rtol=1e-6)  # 1 for a class of 0
