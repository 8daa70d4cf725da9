"""A warning where validation stays near chance: the run does not learn."""

import math

import keras
import numpy as np

from keras_vit.typing import Array

from ..engine.progress import Logs

ADVICE = (
    "Try published weights (--recipe finetune_folder), which need far fewer images; or "
    "more epochs, another learning rate, or less augmentation: examples.png shows the "
    "images as the model gets them after the run."
)
# Standard deviations of a guess's accuracy that count as near.
NEAR = 2.0


class ChanceWarning(keras.callbacks.Callback):
    """Callback that prints advice if validation is near chance after a third of a run.

    Chance is the share of the most frequent class among the labels, int64 [n]. Where
    there are so few that it would be near 1, nothing is printed.
    """

    def __init__(self, labels: Array) -> None:
        super().__init__()
        self.chance = float(np.bincount(labels).max() / len(labels))
        self.images = len(labels)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Print the advice, once."""
        if epoch + 1 != math.ceil(self.params["epochs"] / 3):
            return
        accuracy = float(logs["val_accuracy"])
        deviation = math.sqrt(self.chance * (1 - self.chance) / self.images)
        near = self.chance + NEAR * deviation
        if accuracy <= near < 1:
            print(
                f"validation accuracy {accuracy:.4f} is near chance, "
                f"{self.chance:.4f} (the share of the most frequent class), after a "
                f"third of the run. {ADVICE}",
                flush=True,
            )
