"""Losses: softmax and sigmoid cross-entropy of logits, with label smoothing."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops


def make_loss(
    name: str, label_smoothing: float = 0.0, adjustment: Any = 0.0
) -> Callable[[Any, Any], Any]:
    """Make the loss function of single examples, without averaging.

    Args:
        name: `"softmax"`, or `"sigmoid"`: binary cross-entropy of each class, summed
            over the classes as in google-research/big_vision. The paper's models were
            pre-trained with the latter (google-research/vision_transformer, issue 34).
        label_smoothing: Share s of the target spread evenly over all K classes: labels
            become (1 - s) * label + s / K.
        adjustment: Added to the logits [K], such as a multiple of the classes' log
            frequencies (equation 10 of arXiv:2007.07314).

    Returns:
        A function of labels (integer [B], or [B, K] with rows that sum to 1) and logits
        [B, K], giving float32 [B].
    """

    def loss(labels, logits):
        logits = ops.cast(logits, "float32") + adjustment
        classes = logits.shape[-1]
        targets = ops.cast(dense_labels(labels, classes), "float32")
        targets = (1 - label_smoothing) * targets + label_smoothing / classes
        if name == "softmax":
            return keras.losses.categorical_crossentropy(
                targets, logits, from_logits=True
            )
        mean = keras.losses.binary_crossentropy(targets, logits, from_logits=True)
        return mean * classes

    return loss


def dense_labels(labels, classes: int):
    """Labels as [B, classes]; integer labels are one-hot encoded."""
    labels = ops.convert_to_tensor(labels)
    return labels if len(labels.shape) == 2 else ops.one_hot(labels, classes)
