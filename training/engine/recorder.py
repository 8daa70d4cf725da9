"""The recorder: writes checkpoints, history and the best model while a run trains."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import NoReturn

import keras
import numpy as np
from etils import epath

from keras_vit.common.file_names import BEST_MODEL, CHECKPOINTS, HISTORY

from ..data.splits import Splits
from ..errors import Preempted
from ..recipe import Recipe
from . import checkpoint, run_folder
from .checkpoint import Checkpoint, Owner
from .data_fingerprint import (
    contents_fingerprint,
    names_fingerprint,
    weights_fingerprint,
)
from .early_termination import divergence
from .lora import merged
from .progress import EvaluationStopped, Logs
from .schedule import learning_rate
from .strategy import gather, is_chief, worker_count
from .trainer import Trainer


class Recorder(keras.callbacks.Callback):
    """Callback that writes the run's folder; see `run_folder`.

    The best epoch is the one of the highest validation accuracy, and of the lowest
    validation loss among those; without labels that of the lowest validation loss;
    without validation images it is the last one.
    """

    def __init__(
        self,
        trainer: Trainer,
        model: keras.Model,
        folder: epath.Path,
        recipe: Recipe,
        data: Splits,
        keep: int,
        every: int | None = None,
    ) -> None:
        super().__init__()
        self.trainer = trainer
        self.saved_model = model
        self.progress = trainer.progress
        self.folder = folder
        self.keep = keep
        self.every = every
        self.owner = _owner(trainer, model, recipe, data)
        self.chief = is_chief(trainer.distribute_strategy)
        self.history: list[Logs] = []
        self.saved_step: int | None = None  # of the newest checkpoint
        self.epoch_began = 0.0
        self.seconds_before = 0.0  # of this epoch, before the run was stopped

    @property
    def checkpoints(self) -> epath.Path:
        """The folder of the checkpoints."""
        return self.folder / CHECKPOINTS

    def restore(self) -> None:
        """Load the newest complete checkpoint, if there is one.

        Raises:
            RunError: It does not fit, or all are damaged.
        """
        expected = {
            name: np.broadcast_to(np.zeros((), v.dtype), v.shape)
            for name, v in self.trainer.state().items()
        }
        stored = checkpoint.restore(self.checkpoints, self.owner, expected)
        if stored is None:
            return
        self.saved_step = stored.step
        self.trainer.set_state(stored.arrays)
        self.progress.first_step = stored.step
        self.history = stored.history
        self.seconds_before = stored.seconds
        self.progress.logs = stored.logs

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Start the clock."""
        self.epoch_began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """Save a checkpoint where one is due, or where the run must stop."""
        progress = self.progress
        if progress.skipping:
            return
        progress.unsaved = True
        if progress.at_epoch_end:
            progress.logs = {name: float(value) for name, value in logs.items()}
            return  # validation and the epoch's row of the history come first
        if progress.stopping:
            self.save()
            self.stop()
        if self.every and progress.step % self.every < self.trainer.steps_per_execution:
            self.save()

    def stop(self) -> NoReturn:
        """Raise Preempted, with the checkpoint that a resumed run begins at.

        All workers end together, when the chief has written it: JAX aborts the chief
        twenty seconds after the first has ended.
        """
        gather(self.trainer.distribute_strategy, 0)
        step, command = self.progress.step, f"`keras-vit resume {self.folder}`"
        if self.saved_step == step:
            continues = f"{command} continues"
        elif self.saved_step is None:
            continues = f"there is no checkpoint, so {command} begins anew"
        else:
            continues = (
                f"{command} continues from the newest checkpoint, of step "
                f"{self.saved_step}"
            )
        raise Preempted(f"stopped by SIGTERM after step {step}; {continues}")

    def save(self) -> None:
        """Write a checkpoint of the current step, if that is possible."""
        arrays = self.trainer.state_arrays()
        step, logs = self.progress.step, self.progress.logs
        seconds = self._seconds() if logs or not self.progress.at_epoch_end else 0.0
        state = Checkpoint(step, arrays, self.owner, self.history, seconds, logs)
        # Workers other than the chief do not know whether it was written.
        if not self.chief or checkpoint.save(self.checkpoints, state, self.keep):
            self.saved_step = step

    @contextlib.contextmanager
    def saving_before_evaluation(self) -> Iterator[None]:
        """Save a checkpoint where the run stops between a step and its evaluation.

        A resumed run begins with that evaluation.
        """
        try:
            yield
        except EvaluationStopped:
            self.save()
            self.stop()

    def _seconds(self) -> float:
        """Duration of the current epoch so far."""
        return self.seconds_before + time.perf_counter() - self.epoch_began

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Write the best model, the history and, last, a checkpoint."""
        seconds, self.seconds_before = self._seconds(), 0.0
        self.progress.logs = {}
        figures = {name: float(value) for name, value in logs.items()}
        rate = learning_rate(self.trainer.optimizer, self.progress.step - 1)
        self.history.append(
            {
                "epoch": epoch + 1,
                **figures,
                "learning_rate": rate,
                "seconds": round(seconds, 3),
            }
        )
        if best_epoch(self.history) is self.history[-1] and "val_loss" in figures:
            self.save_model(BEST_MODEL)
        if self.chief:
            run_folder.write_history(self.folder / HISTORY, self.history)
        self.save()
        if self.progress.stopping:
            self.stop()

    def check_weights(self) -> None:
        """Raise Diverged where the last update left non-finite weights."""
        arrays = self.trainer.state_arrays()
        bad = [n for n, array in arrays.items() if not checkpoint.is_finite(array)]
        if bad:
            what = f"the weights are not finite ({bad[0]})"
            raise divergence(what, self.progress.step, self.checkpoints)

    def save_model(self, name: str) -> None:
        """Write the model with averaged weights, LoRA's matrices merged."""
        trainer, model = self.trainer, self.saved_model
        with trainer.averaged_weights(), merged(model), trainer.local_weights():
            if self.chief:
                run_folder.save_model(model, self.folder / name)


def best_epoch(history: list[Logs]) -> Logs:
    """The row of the history with the best validation accuracy; the last without any.

    Ties, and runs without labels, go to the row with the lowest validation loss, then
    to the first.
    """
    if "val_loss" not in history[-1]:
        return history[-1]
    return max(history, key=lambda row: (row.get("val_accuracy", 0), -row["val_loss"]))


def _owner(trainer: Trainer, model: keras.Model, recipe: Recipe, data: Splits) -> Owner:
    strategy = trainer.distribute_strategy
    workers = worker_count(strategy)
    replicas = strategy.num_replicas_in_sync // workers
    return Owner(
        dataclasses.replace(recipe, epochs=1).to_yaml(),
        keras.backend.backend(),
        workers,
        replicas,
        names_fingerprint(data),
        contents_fingerprint(data, recipe.data.source),
        weights_fingerprint(model) if recipe.data.cache_features else "",
    )
