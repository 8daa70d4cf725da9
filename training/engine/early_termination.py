"""Early ends of a run: preemption by SIGTERM, and divergence.

A run has diverged when a loss (`StopOnDivergence`) or, after the last update, a weight
(`Recorder.check_weights`) is not finite.
"""

import math
import signal
import threading

import keras
from etils import epath

from ..errors import Diverged
from .checkpoint import newest_committed
from .progress import Progress


class Preemption:
    """Context manager that turns SIGTERM into a request to stop after the step.

    Enter it after the strategy was created, as TensorFlow's multi-worker runtime
    installs a handler of its own. A second SIGTERM ends the process at once. Outside
    the main thread, where Python allows no handlers, it does nothing.

    Args:
        progress: Its `stop_requested` is set.
    """

    def __init__(self, progress: Progress):
        self.progress = progress
        self._in_main_thread = threading.current_thread() is threading.main_thread()

    def __enter__(self):
        if self._in_main_thread:
            self._before = signal.signal(signal.SIGTERM, self._request_stop)
        return self

    def __exit__(self, *error):
        if self._in_main_thread:
            # None: a handler that was not installed from Python
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    def _request_stop(self, number, frame):
        self.progress.stop_requested = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class StopOnDivergence(keras.callbacks.Callback):
    """Callback that ends the training once the loss is not finite.

    The loss that Keras reports is the mean since the epoch began, which stays NaN once
    one step's loss was. An infinite one can turn NaN, but never finite again.

    Args:
        checkpoints: The checkpoints' folder, for the message.
        progress: The run's progress, for the message.

    Raises:
        Diverged: After the first call of the step function with such a loss.
    """

    def __init__(self, checkpoints: epath.PathLike, progress: Progress):
        super().__init__()
        self.checkpoints = checkpoints
        self.progress = progress

    def on_train_batch_end(self, batch, logs=None):
        """Check the training loss."""
        self._check("loss", logs)

    def on_epoch_end(self, epoch, logs=None):
        """Check the validation loss, which is computed after the last update."""
        self._check("val_loss", logs)

    def _check(self, name: str, logs) -> None:
        loss = float(logs.get(name, 0.0))
        if math.isfinite(loss):
            return
        raise divergence(f"{name} is {loss}", self.progress, self.checkpoints)


def divergence(what: str, progress: Progress, checkpoints: epath.PathLike) -> Diverged:
    """The error of a run that has diverged: what is wrong, and what to try."""
    newest = newest_committed(checkpoints)
    kept = f"the checkpoint before it is {newest}" if newest else "no checkpoint yet"
    return Diverged(
        f"{what} at step {progress.step}; {kept}; a new run (--overwrite) with a lower "
        "optimizer.learning_rate, more warm-up or optimizer.clip_norm may help"
    )
