"""One training run: data, model, trainer, `model.fit`, and what it leaves behind."""

import functools
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import keras
import tensorflow as tf
from etils import epath

import keras_vit

from .data.pipeline import (
    Splits,
    example_images,
    images_fingerprint,
    load_splits,
    steps_per_epoch,
)
from .data.sharding import training_data, validation_arguments
from .data.splits import Split
from .engine import checkpoint, run_folder
from .engine.early_termination import StopOnDivergence
from .engine.recorder import Length, Recorder, run_length
from .engine.schedule import stated_warmup, warmup_steps
from .engine.strategy import (
    check_same_step,
    check_workers,
    gather,
    is_chief,
    lost_workers,
    make_strategy,
    worker_count,
)
from .evaluate import Evaluation, evaluate, print_evaluation
from .model import build_model, compile_trainer, compiles
from .recipe import Recipe, require
from .reporting import pictures
from .reporting.progress_line import EpochLines
from .reporting.tensorboard import RunBoard
from .reporting.throughput import device_name

EXAMPLES = 24  # in the picture of augmented images


@lost_workers()
def fit(
    recipe: Recipe,
    folder: epath.PathLike,
    resume: bool = False,
    overwrite: bool = False,
    *,
    keep: int = 3,
    checkpoint_every: int | None = None,
    profile: tuple[int, int] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> dict[str, Any]:
    """Trains, evaluates the best epoch's model on the test images, and reports.

    TensorFlow's operations stay deterministic in this process: random ones then need a
    seed, and those without such a form (`tf.timestamp`) fail.

    Args:
        recipe: What to do.
        folder: Where to write; see `runs`. Several workers need the same one.
        resume: Go on from the newest complete checkpoint of the run in the folder. The
            final weights are bit for bit those of a run that was never stopped.
        overwrite: Delete the run in the folder.
        keep: How many checkpoints to keep.
        checkpoint_every: Steps between two checkpoints inside an epoch; there is one
            at the end of each epoch in any case.
        profile: First and last step to profile for TensorBoard.
        callbacks: More Keras callbacks.

    Returns:
        What report.json holds; on workers that are not the chief, nothing.

    Raises:
        TrainingError: Something is wrong with the recipe, the data or the folder; the
            run was preempted, or it diverged.
    """
    first, last = profile or (1, 1)
    require(first <= last, "--profile", "the first and the last step", profile)
    pictures.pyplot()  # a missing extra is told before the training, not after
    strategy = make_strategy(recipe)
    check_workers(strategy, checkpoint.fingerprint(recipe))
    keras.utils.set_random_seed(recipe.seed)
    splits = load_splits(recipe.data, recipe.model.channels)
    for reason in splits.bad_images:
        print(f"left out: {reason}", file=sys.stderr)
    per_pass = steps_per_epoch(splits.train, recipe.batch_size)
    length = run_length(recipe, per_pass)
    with strategy.scope():
        model = build_model(recipe.model, splits.class_names, recipe.precision)
        trainer = compile_trainer(model, recipe, length.steps, per_pass)
    if not (compiles(recipe) and _pools(model)):
        tf.config.experimental.enable_op_determinism()
    folder = epath.Path(folder)
    if is_chief(strategy):
        print(_header(recipe, splits))
        _print_shorter_warmup(recipe, length)
        run_folder.prepare_folder(folder, recipe, resume, overwrite)
    gather(strategy, 0)  # all wait until the chief has prepared the folder
    images = images_fingerprint(splits)
    recorder = Recorder(trainer, folder, recipe, images, length, keep, checkpoint_every)
    recorder.restore()
    check_same_step(strategy, recorder.first_step)
    if recorder.first_step < length.steps:
        board = [_board(recipe, splits, recorder, profile)] * is_chief(strategy)
        _train(recipe, splits, recorder, [*board, *callbacks])
    recorder.check_weights()
    if not is_chief(strategy):
        return {}
    return _finish(recipe, splits, recorder)


def _pools(model: keras.Model) -> bool:
    """Whether XLA would refuse the model's gradient once operations must repeat."""
    kinds = (keras.layers.MaxPooling2D, keras.layers.GlobalMaxPooling2D)
    return any(isinstance(layer, kinds) for layer in model._flatten_layers())


def _header(recipe: Recipe, splits: Splits) -> str:
    """What is trained on, in one line."""
    parts = {"training": splits.train, "validation": splits.validation}
    parts["test"] = splits.test
    counts = [f"{len(p)} {name}" for name, p in parts.items() if p is not None]
    return (
        f"{recipe.data.source}: {', '.join(counts)} images, "
        f"{len(splits.class_names)} classes"
    )


def _print_shorter_warmup(recipe: Recipe, length: Length) -> None:
    """Says where the run is too short for the recipe's warm-up."""
    stated = stated_warmup(recipe, length.per_pass)
    steps = warmup_steps(recipe, length.steps, length.per_pass)
    if steps < stated:
        print(
            f"the warm-up is {steps} of the run's {length.steps} steps instead of the "
            f"recipe's {stated}"
        )


def _board(recipe: Recipe, splits: Splits, recorder: Recorder, profile) -> RunBoard:
    trainer, strategy = recorder.trainer, recorder.trainer.distribute_strategy
    # Of several workers each would have to evaluate, not only the one that draws.
    images = splits.validation if worker_count(strategy) == 1 else None

    return RunBoard(
        recorder.folder,
        recipe,
        trainer.model,
        recipe.batch_size,
        example_images=lambda: _examples(recipe, splits, recorder),
        validation=(
            None
            if images is None
            else functools.partial(_evaluate_averaged, trainer, images)
        ),
        profile=profile,
        first_step=recorder.first_step,
        devices=strategy.num_replicas_in_sync,
        device_name=device_name(),
    )


def _evaluate_averaged(trainer, images: Split) -> Evaluation:
    with trainer.averaged_weights():
        return evaluate(trainer.model, images)


def _examples(recipe: Recipe, splits: Splits, recorder: Recorder):
    preprocessing = recorder.trainer.model.preprocessing
    return example_images(splits.train, recipe, preprocessing, EXAMPLES)


def _train(
    recipe: Recipe,
    splits: Splits,
    recorder: Recorder,
    callbacks: Sequence[keras.callbacks.Callback],
) -> None:
    """Calls `model.fit` for the steps that are left."""
    length, trainer = recorder.length, recorder.trainer
    first_epoch, trainer.skip_steps = divmod(recorder.first_step, length.interval)
    diverged = StopOnDivergence(recorder.checkpoints, lambda: recorder.step)
    lines = [EpochLines()] * is_chief(trainer.distribute_strategy)
    with recorder.preemption:
        trainer.fit(
            training_data(
                trainer, recipe, splits.train, recorder.first_step, length.steps
            ),
            epochs=length.steps // length.interval,
            initial_epoch=first_epoch,
            steps_per_epoch=length.interval,
            callbacks=[diverged, *callbacks, *lines, recorder],
            verbose=0,
            **validation_arguments(trainer, splits.validation),
        )


def _finish(recipe: Recipe, splits: Splits, recorder: Recorder) -> dict[str, Any]:
    """Saves the last model, evaluates the best one, draws, prints and reports."""
    folder = recorder.folder
    recorder.save_model("last.keras")
    if splits.validation is None:
        recorder.save_model("best.keras")
    model = run_folder.load_model(folder / "best.keras")
    evaluation = evaluate(model, splits.test)
    summary = evaluation.summary()
    pictures.draw_curves(recorder.history, folder / "curves.png")
    pictures.draw_confusion_matrix(evaluation, folder / "confusion_matrix.png")
    pictures.draw_misclassified(
        evaluation, splits.test, model.preprocessing, folder / "misclassified.png"
    )
    pictures.draw_examples(_examples(recipe, splits, recorder), folder / "examples.png")
    seconds = sum(row["seconds"] for row in recorder.history)
    devices = recorder.trainer.distribute_strategy.num_replicas_in_sync
    result = {
        **summary,
        "best_epoch": recorder.best(),
        "training_images": len(splits.train),
        "bad_images": splits.bad_images,
        "parameters": model.count_params(),
        "seconds": round(seconds, 1),
        "images_per_second": recorder.history[-1].get("images_per_second"),
        "devices": devices,
        "device_name": device_name(),
        "accelerator_hours": devices * seconds / 3600,
        "seed": recipe.seed,
        "versions": versions(),
        "recipe": asdict(recipe),
    }
    pictures.write_markdown(folder, result, recipe, recorder.history)
    run_folder.write_report(folder / "report.json", result)
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
