"""Divergence: the end of a run whose loss or weights are not finite.

A run has diverged when a loss (`StopOnDivergence`) or, after the last update, a weight
(`Recorder.check_weights`) is not finite.
"""

import math

import keras
from etils import epath

from ..errors import Diverged
from .checkpoint import newest_committed
from .progress import Logs, Progress


class StopOnDivergence(keras.callbacks.Callback):
    """Callback that ends the training once the loss is not finite.

    The loss that Keras reports is the mean since the epoch began, which stays NaN once
    one step's loss was. An infinite one can turn NaN, but never finite again.

    Raises:
        Diverged: As soon as it gets such a loss, which is one call of the step function
            late (`Progress.lag`).
    """

    def __init__(self, checkpoints: epath.PathLike, progress: Progress) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.progress = progress

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """Check the training loss."""
        self._check("loss", logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Check the validation loss, which is computed after the last update."""
        self._check("val_loss", logs)

    def _check(self, name: str, logs: Logs) -> None:
        loss = float(logs.get(name, 0.0))
        if math.isfinite(loss):
            return
        step = self.progress.step - self.progress.lag
        raise divergence(f"{name} is {loss}", step, self.checkpoints)


def divergence(what: str, step: int, checkpoints: epath.PathLike) -> Diverged:
    """The error of a run that has diverged: what is wrong, and what to try."""
    newest = newest_committed(checkpoints)
    kept = f"the checkpoint before it is {newest}" if newest else "no checkpoint yet"
    return Diverged(
        f"{what} at step {step}; {kept}; a new run (--overwrite) with a lower "
        "optimizer.learning_rate, more warm-up or optimizer.clip_norm may help"
    )
