"""How a run ends early: preempted by SIGTERM, or with a loss that is no number."""

import math
import signal
import threading
from collections.abc import Callable

import keras
from etils import epath

from ..errors import Diverged
from .checkpoint import last_complete


class Preemption:
    """Notes SIGTERM, so that the step is finished and a checkpoint is saved.

    Use it as a context manager around the training, and after the strategy was made
    (TensorFlow's multi-worker runtime installs a handler of its own). A second SIGTERM
    ends the process at once. Outside the main thread, where Python allows no handlers,
    it never notes anything.

    Attributes:
        requested: Whether SIGTERM has come.
    """

    def __init__(self):
        self.requested = False
        self._in_main_thread = threading.current_thread() is threading.main_thread()

    def __enter__(self):
        if self._in_main_thread:
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *error):
        if self._in_main_thread:
            # None: a handler that was not installed from Python
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)

    def _note(self, number, frame):
        self.requested = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class StopOnDivergence(keras.callbacks.Callback):
    """Ends the training once the loss is not finite.

    The loss that Keras reports is the mean since the epoch began, which stays NaN once
    one step's loss was. An infinite one can turn NaN, but never finite again.

    Args:
        checkpoints: The checkpoints' folder, for the message.
        step: Gives the number of steps of the whole run that are done.

    Raises:
        Diverged: After the first call of the step function with such a loss.
    """

    def __init__(self, checkpoints: epath.PathLike, step: Callable[[], int]):
        super().__init__()
        self.checkpoints = checkpoints
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        """Looks at the loss."""
        self._check("loss", logs)

    def on_epoch_end(self, epoch, logs=None):
        """Looks at the loss of the validation, which comes after the last update."""
        self._check("val_loss", logs)

    def _check(self, name: str, logs) -> None:
        loss = float(logs.get(name, 0.0))
        if math.isfinite(loss):
            return
        last = last_complete(self.checkpoints)
        kept = f"the last good checkpoint is {last}" if last else "no checkpoint yet"
        raise Diverged(
            f"{name} is {loss} at step {self.step()}; {kept}; a lower "
            "optimizer.learning_rate, more warm-up or optimizer.clip_norm may help"
        )
