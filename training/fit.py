"""One training run: data, model, trainer, `model.fit`, and what it leaves behind."""

import math
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from etils import epath

import keras_vit

from . import checkpoint, report, runs
from .checkpoint import Checkpoint, Owner
from .data import (
    Shard,
    Splits,
    evaluation_batches,
    in_memory,
    load_splits,
    steps_per_epoch,
    training_batches,
)
from .errors import Preempted
from .evaluate import BATCH_SIZE, evaluate, print_evaluation
from .failures import Preemption, StopOnDivergence
from .model import build_model, compile_trainer
from .recipe import Recipe
from .strategy import is_chief, make_strategy
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


def run_length(recipe: Recipe, images: int, per_pass: int) -> Length:
    """The length of a run.

    Where the recipe counts in steps, an interval is the longest that divides them and
    is no longer than a pass over the images.
    """
    if recipe.steps is None:
        return Length(recipe.epochs * per_pass, per_pass, per_pass)
    steps = recipe.steps
    longest = min(steps, per_pass)
    interval = next(n for n in range(longest, 0, -1) if steps % n == 0)
    return Length(steps, interval, per_pass)


def fit(
    recipe: Recipe,
    folder: epath.PathLike,
    resume: bool = False,
    overwrite: bool = False,
    *,
    keep: int = 3,
    checkpoint_every: int | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> dict[str, Any]:
    """Trains, evaluates the best epoch's model on the test images, and reports.

    Args:
        recipe: What to do.
        folder: Where to write; see `runs`. Several workers need the same one.
        resume: Go on from the newest complete checkpoint of the run in the folder. The
            final weights are bit for bit those of a run that was never stopped.
        overwrite: Delete the run in the folder.
        keep: How many checkpoints to keep.
        checkpoint_every: Steps between two checkpoints inside an epoch; there is one
            at the end of each epoch in any case.
        callbacks: More Keras callbacks.

    Returns:
        What report.json holds; on workers that are not the chief, nothing.

    Raises:
        TrainingError: Something is wrong with the recipe, the data or the folder; the
            run was preempted, or it diverged.
    """
    report.pyplot()  # a missing extra is told before the training, not after
    strategy = make_strategy(recipe)
    keras.utils.set_random_seed(recipe.seed)
    tf.config.experimental.enable_op_determinism()
    splits = load_splits(recipe.data, recipe.model.channels)
    for reason in splits.bad_images:
        print(f"left out: {reason}", file=sys.stderr)
    per_pass = steps_per_epoch(splits.train, recipe.batch_size)
    length = run_length(recipe, len(splits.train), per_pass)
    with strategy.scope():
        model = build_model(recipe.model, splits.class_names, recipe.precision)
        trainer = compile_trainer(model, recipe, length.steps, per_pass)
    if is_chief(strategy):
        print(_header(recipe, splits))
        runs.prepare_folder(folder, recipe, resume, overwrite)
    recorder = Recorder(trainer, epath.Path(folder), recipe, length, keep)
    recorder.every = checkpoint_every
    recorder.restore()
    if recorder.first_step < length.steps:
        _train(trainer, recipe, splits, recorder, callbacks)
    if not is_chief(strategy):
        return {}
    return _finish(recipe, splits, recorder)


def _header(recipe: Recipe, splits: Splits) -> str:
    """What is trained on, in one line."""
    parts = {"training": splits.train, "validation": splits.validation}
    parts["test"] = splits.test
    counts = [f"{len(p)} {name}" for name, p in parts.items() if p is not None]
    return (
        f"{recipe.data.source}: {', '.join(counts)} images, "
        f"{len(splits.class_names)} classes"
    )


class Recorder(keras.callbacks.Callback):
    """Writes the run's folder: checkpoints, history and the best model; see `runs`.

    The best epoch is the one of the highest validation accuracy, and of the lowest
    validation loss among those; without validation images it is the last one.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: epath.Path,
        recipe: Recipe,
        length: Length,
        keep: int,
    ):
        super().__init__()
        self.trainer = trainer
        self.folder = folder
        self.length = length
        self.keep = keep
        self.every: int | None = None
        self.owner = _owner(trainer, recipe)
        self.chief = is_chief(trainer.distribute_strategy)
        self.preemption = Preemption()
        self.history: list[dict[str, float]] = []
        self.first_step = 0
        self.epoch = 0
        self.epoch_began = 0.0

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
        if self.trainer.stopping:
            self.save()
            raise Preempted(
                f"stopped by SIGTERM after step {self.step}; `fit` goes on with "
                "--resume"
            )
        if self.every and self.step % self.every < self.trainer.steps_per_execution:
            self.save()

    def save(self) -> None:
        """Writes a checkpoint of the present step."""
        arrays = self.trainer.state_arrays()
        if self.chief:
            checkpoint.save(
                self.checkpoints,
                Checkpoint(self.step, arrays, self.owner, self.history),
                self.keep,
            )

    def on_epoch_end(self, epoch, logs=None):
        """Writes the best model, the history and, last, the state to resume from."""
        seconds = time.perf_counter() - self.epoch_began
        figures = {name: float(value) for name, value in logs.items()}
        rate = float(keras.ops.convert_to_numpy(self.trainer.optimizer.learning_rate))
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
            runs.write_history(self.folder / "history.csv", self.history)
        self.save()

    def save_model(self, name: str) -> None:
        """Writes the plain model with averaged weights."""
        with self.trainer.averaged_weights():
            if self.chief:
                runs.save_model(self.trainer.model, self.folder / name)


def _owner(trainer: Trainer, recipe: Recipe) -> Owner:
    strategy = trainer.distribute_strategy
    replicas = strategy.num_replicas_in_sync
    workers = getattr(strategy.extended, "_num_workers", 1)
    return Owner(checkpoint.fingerprint(recipe), workers, replicas // workers)


def _train(
    trainer: Trainer,
    recipe: Recipe,
    splits: Splits,
    recorder: Recorder,
    callbacks: Sequence[keras.callbacks.Callback],
) -> None:
    """Calls `model.fit` for the steps that are left."""
    length, strategy = recorder.length, trainer.distribute_strategy
    first_epoch, trainer.skip_steps = divmod(recorder.first_step, length.interval)
    diverged = StopOnDivergence(recorder.checkpoints, lambda: recorder.step)
    with recorder.preemption:
        trainer.fit(
            _training_data(trainer, recipe, splits, recorder),
            epochs=length.steps // length.interval,
            initial_epoch=first_epoch,
            steps_per_epoch=length.interval,
            **_validation(trainer, splits),
            callbacks=[diverged, recorder, *callbacks],
            verbose=_verbose(strategy),
        )


def _validation(trainer: Trainer, splits: Splits) -> dict[str, Any]:
    """What `model.fit` needs for validation."""
    if splits.validation is None:
        return {}
    replicas = trainer.distribute_strategy.num_replicas_in_sync
    size = replicas * math.ceil(BATCH_SIZE / replicas)
    return {
        "validation_data": _validation_data(trainer, splits, size),
        "validation_steps": math.ceil(len(splits.validation) / size),
    }


def _verbose(strategy: tf.distribute.Strategy) -> int:
    """A bar on a terminal, a line for each epoch in a file, none of other workers."""
    if not is_chief(strategy):
        return 0
    return 1 if sys.stdout.isatty() else 2


def _training_data(trainer, recipe, splits, recorder):
    images, preprocessing = splits.train, trainer.model.preprocessing
    if recipe.augmentation.crop_min_area == 1 and not recipe.augmentation.simple_crop:
        images = in_memory(images, preprocessing)
    return _distributed(
        trainer.distribute_strategy,
        lambda shard: training_batches(
            images,
            recipe,
            preprocessing,
            recorder.first_step,
            recorder.length.steps,
            shard,
        ),
    )


def _validation_data(trainer, splits, batch_size):
    images = in_memory(splits.validation, trainer.model.preprocessing)
    return _distributed(
        trainer.distribute_strategy,
        lambda shard: evaluation_batches(
            images, batch_size, trainer.model.preprocessing, shard
        ),
    )


def _distributed(strategy: tf.distribute.Strategy, batches: Callable[[Shard], Any]):
    """Each worker's own pipeline, without end.

    Of a dataset that may end, several workers would have to agree at each step whether
    there is more, and the size of a batch would not be known beforehand.
    """

    def pipeline(context: tf.distribute.InputContext):
        pipelines = context.num_input_pipelines
        replicas = context.num_replicas_in_sync // pipelines
        return batches(Shard(context.input_pipeline_id, pipelines, replicas)).repeat()

    return strategy.distribute_datasets_from_function(pipeline)


def _finish(recipe: Recipe, splits: Splits, recorder: Recorder) -> dict[str, Any]:
    """Saves the last model, evaluates the best one, draws, prints and reports."""
    folder = recorder.folder
    recorder.save_model("last.keras")
    if splits.validation is None:
        recorder.save_model("best.keras")
    model = runs.load_model(folder / "best.keras")
    evaluation = evaluate(model, splits.test)
    summary = evaluation.summary()
    report.draw_curves(recorder.history, folder / "curves.png")
    report.draw_confusion_matrix(evaluation, folder / "confusion_matrix.png")
    report.draw_misclassified(
        evaluation, splits.test, model.preprocessing, folder / "misclassified.png"
    )
    result = {
        **summary,
        "best_epoch": recorder.best(),
        "training_images": len(splits.train),
        "bad_images": splits.bad_images,
        "parameters": model.count_params(),
        "seconds": round(sum(row["seconds"] for row in recorder.history), 1),
        "seed": recipe.seed,
        "versions": versions(),
        "recipe": asdict(recipe),
    }
    runs.write_report(folder / "report.json", result)
    print_evaluation(summary, f"Test images of {recipe.data.source}")
    print(f"model, report and pictures: {folder}")
    return result


def versions() -> dict[str, str]:
    """What the run's numbers depend on."""
    return {
        "keras_vit": keras_vit.__version__,
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "python": platform.python_version(),
    }
