"""Losses: softmax and sigmoid cross-entropy of logits, with label smoothing."""

from collections.abc import Callable
from typing import TypeAlias

import keras
from keras import ops

from keras_vit.typing import Array, Logits, Tensor

Labels: TypeAlias = Tensor  # integers [B], or [B, classes]
Loss: TypeAlias = Callable[[Labels, Logits], Tensor]  # of each example, float32 [B]


def make_loss(
    name: str, label_smoothing: float = 0.0, adjustment: float | Array = 0.0
) -> Loss:
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

    def loss(labels: Labels, logits: Logits) -> Tensor:
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


def dense_labels(labels: Labels, classes: int) -> Tensor:
    """Labels as [B, classes]; integer labels are one-hot encoded."""
    labels = ops.convert_to_tensor(labels)
    return labels if len(labels.shape) == 2 else ops.one_hot(labels, classes)
