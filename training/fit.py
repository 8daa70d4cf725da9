"""One training run: data, model, optimizer, `model.fit`, and what it leaves behind."""

import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import keras_vit

from . import report, runs
from .checkpoint import load_state, save_state
from .data import (
    Splits,
    evaluation_batches,
    in_memory,
    load_splits,
    steps_per_epoch,
    training_batches,
)
from .evaluate import BATCH_SIZE, evaluate, print_evaluation
from .model import build_model, compile_trainer
from .recipe import Recipe
from .strategy import check_batch_size, make_strategy


def fit(
    recipe: Recipe, folder: Path, resume: bool = False, overwrite: bool = False
) -> dict[str, Any]:
    """Trains, evaluates the best epoch's model on the test images, and reports.

    Args:
        recipe: What to do.
        folder: Where to write; see `runs`.
        resume: Go on after the last complete epoch of the run in the folder. The
            final weights are bit for bit those of a run that was never stopped.
        overwrite: Delete the run in the folder.

    Returns:
        What report.json holds.

    Raises:
        TrainingError: Something is wrong with the recipe, the data or the folder.
    """
    report.pyplot()  # a missing extra is told before the training, not after
    strategy = make_strategy(recipe.strategy)
    check_batch_size(strategy, recipe.batch_size)
    keras.utils.set_random_seed(recipe.seed)
    tf.config.experimental.enable_op_determinism()
    splits = load_splits(recipe.data, recipe.model.channels)
    for reason in splits.bad_images:
        print(f"left out: {reason}", file=sys.stderr)
    steps = steps_per_epoch(splits.train, recipe.batch_size)
    print(_header(recipe, splits))
    with strategy.scope():
        model = build_model(recipe.model, splits.class_names)
        trainer = compile_trainer(model, recipe, steps)
    runs.prepare_folder(folder, recipe, resume, overwrite)
    recorder = Recorder(model, folder)
    first_epoch = recorder.restore(trainer)
    if first_epoch < recipe.epochs:
        train(trainer, recipe, splits, recorder, first_epoch, steps)
    return finish(recipe, splits, recorder)


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
    """Writes the run's folder after each epoch; see `runs`.

    The best epoch is the one of the highest validation accuracy, and of the lowest
    validation loss among those; without validation images it is the last one.
    """

    def __init__(self, plain_model: keras.Model, folder: Path):
        super().__init__()
        self.plain_model = plain_model
        self.folder = folder
        self.history: list[dict[str, float]] = []
        self.epoch_began = 0.0

    def restore(self, trainer: keras.Model) -> int:
        """Loads the last complete epoch, if there is one.

        Returns:
            The epoch to begin with, from 0.
        """
        checkpoint = self.folder / "checkpoint.npz"
        if checkpoint.exists():
            self.history = load_state(checkpoint, trainer)
        return len(self.history)

    def best(self) -> dict[str, float]:
        """The best epoch's row."""
        if "val_accuracy" not in self.history[-1]:
            return self.history[-1]
        return max(
            self.history, key=lambda row: (row["val_accuracy"], -row["val_loss"])
        )

    def on_epoch_begin(self, epoch, logs=None):
        """Starts the clock."""
        self.epoch_began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        """Writes the best model, the history and, last, the state to resume from."""
        seconds = time.perf_counter() - self.epoch_began
        figures = {name: float(value) for name, value in logs.items()}
        rate = float(self.model.optimizer.learning_rate)
        self.history.append(
            {
                "epoch": epoch + 1,
                **figures,
                "learning_rate": rate,
                "seconds": round(seconds, 3),
            }
        )
        if self.best() is self.history[-1] and "val_accuracy" in figures:
            runs.save_model(self.plain_model, self.folder / "best.keras")
        runs.write_history(self.folder / "history.csv", self.history)
        save_state(self.folder / "checkpoint.npz", self.model, self.history)


def train(
    trainer: keras.Model,
    recipe: Recipe,
    splits: Splits,
    recorder: Recorder,
    first_epoch: int,
    steps: int,
) -> None:
    """Calls `model.fit` for the epochs that are left."""
    preprocessing = recorder.plain_model.preprocessing
    images = splits.train
    if recipe.augmentation.crop_min_area == 1:
        images = in_memory(images, preprocessing)
    validation = None
    if splits.validation is not None:
        cached = in_memory(splits.validation, preprocessing)
        validation = evaluation_batches(cached, BATCH_SIZE, preprocessing)
    trainer.fit(
        training_batches(images, recipe, preprocessing, first_epoch),
        epochs=recipe.epochs,
        initial_epoch=first_epoch,
        steps_per_epoch=steps,
        shuffle=False,  # the batches are in their order
        validation_data=validation,
        callbacks=[
            recorder,
            keras.callbacks.TensorBoard(
                recorder.folder / "tensorboard", write_graph=False
            ),
        ],
        verbose=1 if sys.stdout.isatty() else 2,
    )


def finish(recipe: Recipe, splits: Splits, recorder: Recorder) -> dict[str, Any]:
    """Saves the last model, evaluates the best one, draws, prints and reports."""
    folder = recorder.folder
    runs.save_model(recorder.plain_model, folder / "last.keras")
    if splits.validation is None:
        runs.save_model(recorder.plain_model, folder / "best.keras")
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
