"""Run a recipe: data, model, trainer, `model.fit`, evaluation and report."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from etils import epath

from keras_vit.analysis import figures
from keras_vit.common.file_names import TENSORBOARD

from ..activity import activity
from ..architectures.compiling import compile_trainer, compiles, model_to_train
from ..architectures.recipe_model import build_model
from ..data.labeled_images import Split
from ..data.pipeline import images_at, images_of_steps, steps_per_epoch
from ..data.read_errors import read_errors
from ..data.splits import Splits, load_splits
from ..engine import checkpoint, run_folder
from ..engine.datasets import training_data, validation_arguments
from ..engine.determinism import check_deterministic, deterministic_operations
from ..engine.early_termination import StopOnDivergence
from ..engine.recorder import Recorder
from ..engine.run_length import RunLength, run_length
from ..engine.schedule import learning_rate, requested_warmup, warmup_steps
from ..engine.sigterm import stopped_after_the_step
from ..engine.strategy import (
    check_same_step,
    check_workers,
    gather,
    is_chief,
    lost_workers,
    make_strategy,
    worker_count,
)
from ..errors import require
from ..evaluation.evaluate import Evaluation, evaluate
from ..probe.fewshot_curve import FewShotCurve
from ..probe.head_only import with_features
from ..recipe import Recipe
from ..reporting.chance_warning import ChanceWarning
from ..reporting.model_pictures import ModelPictures
from ..reporting.progress_line import EpochLines, Stages
from ..reporting.tensorboard import RunBoard
from ..reporting.throughput import Throughput, device_name
from ..user_functions import UserCallbacks
from .device_limits import memory_errors, precision_warning
from .finish import augmented_examples, finish

AHEAD = 4  # steps whose images a failing pipeline may have been reading
PICTURED_IMAGES = 32  # whose attention `report.attention_every` shows


@lost_workers()
def fit(
    recipe: Recipe,
    folder: epath.PathLike,
    resume: bool = False,
    overwrite: bool = False,
    *,
    extend: bool = False,
    keep: int = 3,
    checkpoint_every: int | None = None,
    profile: tuple[int, int] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    draw: bool = True,
) -> dict[str, Any]:
    """Train, evaluate the best epoch's model on the test images, and write a report.

    While it runs, TensorFlow's operations are deterministic, unless the recipe says
    `deterministic: false`: random ones then need a seed, and those without such a form
    (`tf.timestamp`) fail.

    Args:
        recipe: The run's recipe.
        folder: The run's folder; see `run_folder`. Several workers need the same one.
        resume: Resume from the newest complete checkpoint in the folder, if there is
            one. The final weights are those of an uninterrupted run: bit for bit on a
            CPU, and where else docs/devices.md says so.
        overwrite: Delete the run in the folder first.
        extend: With `resume`: the recipe may have more epochs than the run in the
            folder, which may be finished. The schedule is then that of the new length,
            from the step where the run stands; the best epoch stays the best until a
            later one is better.
        keep: Number of checkpoints to keep.
        checkpoint_every: Steps between two checkpoints inside an epoch; there is one
            at the end of each epoch in any case.
        profile: First and last step to profile for TensorBoard.
        callbacks: Additional Keras callbacks.
        draw: Whether to draw pictures and write report.html, which takes longer than
            a tiny run.

    Returns:
        The contents of report.json; on workers other than the chief, an empty dict.

    Raises:
        TrainingError: The recipe, the data or the folder is wrong; the run was
            preempted, or it diverged.
    """
    first, last = profile or (1, 1)
    require(first <= last, "--profile", "the first and the last step", profile)
    figures.figure(1, 1)  # report a missing extra before the training, not after
    user_callbacks = UserCallbacks(recipe)
    strategy = make_strategy(recipe)
    check_workers(strategy, checkpoint.fingerprint(recipe))
    require(
        worker_count(strategy) == 1 or not recipe.data.cache_features,
        "data.cache_features",
        "false with several workers",
        True,
    )
    folder = epath.Path(folder)
    old = None
    if is_chief(strategy):
        old = run_folder.check_folder(folder, recipe, resume, overwrite, extend)
    keras.utils.set_random_seed(recipe.seed)
    splits = load_splits(recipe.data, recipe.model.channels)
    for reason in splits.bad_images:
        print(f"skipped: {reason}", file=sys.stderr)
    steps_per_pass = steps_per_epoch(splits.train, recipe.batch_size)
    length = run_length(recipe, steps_per_pass)
    if old is not None:
        _check_extension(run_length(old, steps_per_pass), length, old, recipe)
    with activity("building the model"), strategy.scope():
        names = splits.class_names if recipe.supervised else None
        model = build_model(recipe.model, names, recipe.precision)
        trainer = compile_trainer(
            model_to_train(model, recipe),
            recipe,
            length.steps,
            steps_per_pass,
            splits.train.labels,
        )
    curve = []
    if every := recipe.report.fewshot_every:
        curve = [FewShotCurve(model, splits, every, trainer.local_weights, strategy)]
    check_deterministic(recipe, trainer.model)
    chief = is_chief(strategy)
    with (
        run_folder.locked(folder) if chief else contextlib.nullcontext(),
        deterministic_operations(recipe),
    ):
        if chief:
            _print_uncompiled(recipe, trainer.model)
            if slow := precision_warning(recipe.precision, device_name()):
                print(f"warning: {slow}", file=sys.stderr)
            print(_header(recipe, splits))
            _print_shorter_warmup(recipe, length)
            run_folder.prepare_folder(folder, recipe, resume, overwrite, extend)
        gather(strategy, 0)  # wait until the chief has prepared the folder
        recorder = Recorder(
            trainer, model, folder, recipe, splits, keep, checkpoint_every
        )
        recorder.restore()
        check_same_step(strategy, trainer.progress.first_step)
        if chief and extend:
            run_folder.begin_extension(folder, recipe)
        if len(recorder.history) < length.steps // length.interval:
            learned = splits
            if recipe.data.cache_features:
                learned = with_features(splits, model, strategy)
            if chief:
                _print_start(recorder, old, recipe)
                board = _board(recipe, splits, learned, recorder, profile, draw)
                callbacks = [*board, *callbacks, *user_callbacks.make()]
            callbacks = [*_model_pictures(recipe, splits, recorder), *callbacks]
            # Before the board, which writes what it adds to the logs.
            _train(recipe, learned, recorder, length, [*curve, *callbacks])
        recorder.check_weights()
        with trainer.without_others():
            return finish(recipe, splits, recorder, draw) if chief else {}


def _print_uncompiled(recipe: Recipe, model: keras.Model) -> None:
    """Print a notice where a run would be compiled, were it not deterministic."""
    chosen = dataclasses.replace(recipe, deterministic=False)
    if compiles(chosen, model) and not compiles(recipe, model):
        print(
            "XLA has no deterministic gradient of max pooling, so this run is not "
            "compiled; --deterministic false compiles it"
        )


def _header(recipe: Recipe, splits: Splits) -> str:
    """The data set in one line."""
    parts = {"training": splits.train, "validation": splits.validation}
    parts["test"] = splits.test
    counts = [f"{len(p)} {name}" for name, p in parts.items() if p is not None]
    return (
        f"{recipe.data.source}: {', '.join(counts)} images, "
        f"{len(splits.class_names)} classes"
    )


def _print_shorter_warmup(recipe: Recipe, length: RunLength) -> None:
    """Print a notice where the run is too short for the recipe's warm-up."""
    requested = requested_warmup(recipe, length.steps_per_pass)
    steps = warmup_steps(recipe, length.steps, length.steps_per_pass)
    if steps < requested:
        print(
            f"the warm-up takes {steps} of the run's {length.steps} steps instead of "
            f"the recipe's {requested}"
        )


def _check_extension(
    old_length: RunLength, length: RunLength, old: Recipe, recipe: Recipe
) -> None:
    """Raise RecipeError where more epochs are not more steps of the same epochs."""
    if recipe.epochs == old.epochs:
        return
    longer = length.steps > old_length.steps and length.interval == old_length.interval
    require(
        longer,
        "epochs",
        "left as it is, as `steps`, `min_steps` or `max_steps` decides this run's "
        "length",
        recipe.epochs,
    )


def _print_start(recorder: Recorder, old: Recipe | None, recipe: Recipe) -> None:
    """Print where a run continues, and how the learning rate of a longer one does."""
    step = recorder.trainer.progress.first_step
    if not step:
        if old is not None:
            print("there is no checkpoint yet: begins at step 0")
        return
    print(f"continues after step {step}")
    if old is None or old.epochs == recipe.epochs or not recorder.history:
        return
    before = recorder.history[-1]["learning_rate"]
    now = learning_rate(recorder.trainer.optimizer, step)
    print(
        f"extended from {old.epochs} to {recipe.epochs} epochs: the learning rate "
        f"follows the schedule of the new length, {now:.3g} after {before:.3g}"
    )


def _board(
    recipe: Recipe,
    splits: Splits,
    learned: Splits,
    recorder: Recorder,
    profile: tuple[int, int] | None,
    draw: bool,
) -> list[keras.callbacks.Callback]:
    trainer, strategy = recorder.trainer, recorder.trainer.distribute_strategy

    def evaluate_averaged(images: Split) -> Evaluation:
        with trainer.averaged_weights():
            return evaluate(trainer.model, images)

    validation = None
    # Of several workers each would have to evaluate, not only the chief.
    alone = worker_count(strategy) == 1 and recipe.supervised
    if draw and learned.validation is not None and alone:
        validation = functools.partial(evaluate_averaged, learned.validation)
    throughput = Throughput(recipe.batch_size, trainer.progress.first_step)
    board = RunBoard(
        recorder.folder,
        recipe,
        trainer.model,
        throughput,
        example_images=(
            (lambda: augmented_examples(recipe, splits, recorder)) if draw else None
        ),
        validation=validation,
        profile=profile,
        devices=strategy.num_replicas_in_sync,
        device_name=device_name(),
    )
    return [throughput, board]


def _model_pictures(
    recipe: Recipe, splits: Splits, recorder: Recorder
) -> list[keras.callbacks.Callback]:
    """The callback of `report.attention_every`, or none."""
    trainer, images = recorder.trainer, splits.validation or splits.train
    if not recipe.report.attention_every:
        return []
    shown = range(min(PICTURED_IMAGES, len(images)))
    return [
        ModelPictures(
            recorder.folder / TENSORBOARD / "model",
            np.stack(images_at(images, shown, trainer.model.preprocessing)),
            recipe.report.attention_every,
            is_chief(trainer.distribute_strategy),
        )
    ]


def _train(
    recipe: Recipe,
    splits: Splits,
    recorder: Recorder,
    length: RunLength,
    callbacks: Sequence[keras.callbacks.Callback],
) -> None:
    """Call `model.fit` for the remaining steps."""
    trainer, progress = recorder.trainer, recorder.trainer.progress
    first_step = progress.first_step
    stop_on_divergence = StopOnDivergence(recorder.checkpoints, progress)
    progress.unsaved = worker_count(trainer.distribute_strategy) > 1
    stages = Stages()
    lines: list[keras.callbacks.Callback] = []
    if is_chief(trainer.distribute_strategy):
        callbacks = [stages, *callbacks]
        lines.append(EpochLines(recorder.history))
        if splits.validation is not None and recipe.supervised:
            lines.append(ChanceWarning(splits.validation.labels))
    with (
        stopped_after_the_step(progress),
        memory_errors(recipe, trainer),
        read_errors(
            splits.train,
            splits.validation,
            reading=lambda: images_of_steps(
                splits.train, recipe, range(progress.step, progress.step + AHEAD)
            ),
        ),
        stages.current,
        recorder.saving_before_evaluation(),
    ):
        trainer.fit(
            training_data(trainer, recipe, splits.train, first_step, length.steps),
            epochs=length.steps // length.interval,
            initial_epoch=len(recorder.history),
            steps_per_epoch=length.interval,
            callbacks=[stop_on_divergence, *callbacks, *lines, recorder],
            verbose=0,
            **validation_arguments(trainer, recipe, splits.validation),
        )
    if progress.stop_requested:  # after the last step had begun
        recorder.stop()
