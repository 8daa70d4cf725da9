"""What a run writes while it trains: checkpoints, history, and the best model."""

import time
from dataclasses import dataclass

import keras
import numpy as np
from etils import epath

from ..errors import Diverged, Preempted
from ..recipe import Recipe, require
from . import checkpoint, run_folder
from .checkpoint import Checkpoint, Owner
from .early_termination import Preemption
from .schedule import learning_rate
from .strategy import is_chief, worker_count
from .trainer import Trainer


@dataclass(frozen=True)
class Length:
    """How long a run is.

    Args:
        steps: Steps of the whole run.
        interval: Steps between two evaluations: Keras's epoch.
        per_pass: Steps in a pass over the images.
    """

    steps: int
    interval: int
    per_pass: int


def run_length(recipe: Recipe, per_pass: int) -> Length:
    """The length of a run whose images make `per_pass` batches.

    Where the recipe counts in steps, an interval is the longest that divides them and
    is no longer than a pass over the images, or than a twentieth of the run.

    Raises:
        RecipeError: There is no such number of any length.
    """
    if recipe.steps is None:
        return Length(recipe.epochs * per_pass, per_pass, per_pass)
    steps = recipe.steps
    longest = min(steps, max(per_pass, steps // 20))
    interval = next(n for n in range(longest, 0, -1) if steps % n == 0)
    require(
        interval > longest // 4,
        "steps",
        f"a multiple of a number from {longest // 4 + 1} to {longest}, the steps "
        "between two evaluations",
        steps,
    )
    return Length(steps, interval, per_pass)


class Recorder(keras.callbacks.Callback):
    """Writes the run's folder: checkpoints, history and the best model; see `runs`.

    The best epoch is the one of the highest validation accuracy, and of the lowest
    validation loss among those; without validation images it is the last one.

    Args:
        trainer: What is trained.
        folder: The run's folder.
        recipe: What is done.
        images: The `images_fingerprint` of the data.
        length: How long.
        keep: How many checkpoints to keep.
        every: Steps between two checkpoints inside an epoch, or None.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: epath.Path,
        recipe: Recipe,
        images: str,
        length: Length,
        keep: int,
        every: int | None = None,
    ):
        super().__init__()
        self.trainer = trainer
        self.folder = folder
        self.length = length
        self.keep = keep
        self.every = every
        self.owner = _owner(trainer, recipe, images)
        self.chief = is_chief(trainer.distribute_strategy)
        self.preemption = Preemption()
        self.history: list[dict[str, float]] = []
        self.first_step = 0
        self.epoch = 0
        self.epoch_began = 0.0
        self.seconds_before = 0.0  # of this epoch, before the run was stopped

    @property
    def checkpoints(self) -> epath.Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def step(self) -> int:
        """Steps of the whole run that are done."""
        return self.epoch * self.length.interval + self.trainer.epoch_step

    def restore(self) -> None:
        """Loads the newest complete checkpoint, if there is one."""
        expected = {
            name: np.broadcast_to(np.zeros((), v.dtype), v.shape)
            for name, v in self.trainer.state().items()
        }
        stored = checkpoint.restore(self.checkpoints, self.owner, expected)
        if stored is not None:
            self.trainer.set_state(stored.arrays)
            self.history = stored.history
            self.first_step = stored.step
            self.seconds_before = stored.seconds

    def best(self) -> dict[str, float]:
        """The best epoch's row."""
        if "val_accuracy" not in self.history[-1]:
            return self.history[-1]
        return max(
            self.history, key=lambda row: (row["val_accuracy"], -row["val_loss"])
        )

    def on_epoch_begin(self, epoch, logs=None):
        """Starts the clock."""
        self.epoch = epoch
        self.epoch_began = time.perf_counter()

    def on_train_batch_begin(self, batch, logs=None):
        """Passes SIGTERM on, to all workers."""
        self.trainer.stop_requested = self.preemption.requested

    def on_train_batch_end(self, batch, logs=None):
        """Saves where it is due, and where the run is stopped."""
        if self.step < self.first_step:
            return  # before the place where the run goes on
        if self.trainer.epoch_step == self.length.interval:
            return  # validation and the epoch's row come first
        if self.trainer.stopping:
            self.save()
            self._stop()
        if self.every and self.step % self.every < self.trainer.steps_per_execution:
            self.save()

    def _stop(self) -> None:
        raise Preempted(
            f"stopped by SIGTERM after step {self.step}; `fit` goes on with --resume"
        )

    def save(self) -> None:
        """Writes a checkpoint of the present step."""
        arrays = self.trainer.state_arrays()
        inside = self.trainer.epoch_step < self.length.interval
        seconds = self._seconds() if inside else 0.0
        state = Checkpoint(self.step, arrays, self.owner, self.history, seconds)
        if self.chief:
            checkpoint.save(self.checkpoints, state, self.keep)

    def _seconds(self) -> float:
        """Of the present epoch so far."""
        return self.seconds_before + time.perf_counter() - self.epoch_began

    def on_epoch_end(self, epoch, logs=None):
        """Writes the best model, the history and, last, the state to resume from."""
        seconds, self.seconds_before = self._seconds(), 0.0
        figures = {name: float(value) for name, value in logs.items()}
        rate = learning_rate(self.trainer.optimizer, self.step - 1)
        self.history.append(
            {
                "epoch": epoch + 1,
                **figures,
                "learning_rate": rate,
                "seconds": round(seconds, 3),
            }
        )
        if self.best() is self.history[-1] and "val_accuracy" in figures:
            self.save_model("best.keras")
        if self.chief:
            run_folder.write_history(self.folder / "history.csv", self.history)
        self.save()
        if self.trainer.stopping:
            self._stop()

    def check_weights(self) -> None:
        """Raises Diverged where the last update has spoilt the weights."""
        arrays = self.trainer.state_arrays()
        spoilt = [n for n, array in arrays.items() if not checkpoint.is_finite(array)]
        if spoilt:
            raise Diverged(
                f"the weights are not finite after step {self.step} ({spoilt[0]}); the "
                f"last good checkpoint is {checkpoint.last_complete(self.checkpoints)}"
            )

    def save_model(self, name: str) -> None:
        """Writes the plain model with averaged weights."""
        with self.trainer.averaged_weights():
            if self.chief:
                run_folder.save_model(self.trainer.model, self.folder / name)


def _owner(trainer: Trainer, recipe: Recipe, images: str) -> Owner:
    strategy = trainer.distribute_strategy
    workers = worker_count(strategy)
    replicas = strategy.num_replicas_in_sync // workers
    recipe_name = f"{checkpoint.fingerprint(recipe)} on {keras.backend.backend()}"
    return Owner(recipe_name, workers, replicas, images)
