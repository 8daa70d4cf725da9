"""Run a recipe: data, model, trainer, `model.fit`, evaluation and report."""

import contextlib
import dataclasses
import sys
from collections.abc import Sequence

import keras
from etils import epath

from keras_vit.analysis import figures
from keras_vit.base import ImageModel
from keras_vit.common.activity import activity

from ..architectures.compiling import compile_trainer, model_to_train
from ..architectures.recipe_model import build_model
from ..data.pipeline import images_of_steps, in_memory, steps_per_epoch
from ..data.read_errors import read_errors
from ..data.splits import Splits, load_splits
from ..engine import checkpoint, run_folder
from ..engine.datasets import training_data, validation_arguments
from ..engine.determinism import check_deterministic, deterministic_operations
from ..engine.early_termination import StopOnDivergence
from ..engine.jax_strategy import AnyStrategy
from ..engine.recorder import Recorder
from ..engine.run_folder import Report
from ..engine.run_length import RunLength, run_length
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
from ..engine.trainer import Trainer
from ..errors import require
from ..probe.head_only import with_features
from ..recipe import Recipe
from ..reporting.progress_line import Stages
from ..user_functions import UserCallbacks
from .callbacks import (
    console_lines,
    fewshot_curve,
    model_pictures,
    tensorboard_callbacks,
)
from .device_limits import memory_errors
from .finish import finish
from .notices import print_notices, print_start

AHEAD = 4  # steps whose images a failing pipeline may have been reading


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
) -> Report:
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
    strategy = _strategy(recipe)
    folder, chief, old = epath.Path(folder), is_chief(strategy), None
    if chief:
        old = run_folder.check_folder(folder, recipe, resume, overwrite, extend)
    keras.utils.set_random_seed(recipe.seed)
    splits = load_splits(recipe.data, recipe.model.channels)
    for reason in splits.bad_images:
        print(f"skipped: {reason}", file=sys.stderr)
    length = _length(recipe, splits, old)
    model, trainer = _build(recipe, splits, length, strategy)
    curve = fewshot_curve(recipe, splits, model, trainer)
    check_deterministic(recipe, trainer.model)
    with (
        run_folder.locked(folder) if chief else contextlib.nullcontext(),
        deterministic_operations(recipe),
    ):
        if chief:
            print_notices(recipe, splits, length, trainer.model)
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
            elif splits.validation is not None:  # which is read in each epoch
                validation = in_memory(splits.validation, trainer.model.preprocessing)
                learned = dataclasses.replace(splits, validation=validation)
            if chief:
                print_start(recorder, old, recipe)
                board = tensorboard_callbacks(
                    recipe, splits, learned, recorder, profile, draw
                )
                callbacks = [*board, *callbacks, *user_callbacks.make()]
            callbacks = [*model_pictures(recipe, splits, recorder), *callbacks]
            # Before the board, which writes what it adds to the logs.
            _train(recipe, learned, recorder, length, [*curve, *callbacks])
        recorder.check_weights()
        with trainer.without_others():
            return finish(recipe, splits, recorder, draw) if chief else {}


def _strategy(recipe: Recipe) -> AnyStrategy:
    """The recipe's strategy, the same one on all workers."""
    strategy = make_strategy(recipe)
    check_workers(strategy, checkpoint.fingerprint(recipe))
    require(
        worker_count(strategy) == 1 or not recipe.data.cache_features,
        "data.cache_features",
        "false with several workers",
        True,
    )
    return strategy


def _length(recipe: Recipe, splits: Splits, old: Recipe | None) -> RunLength:
    """The run's length; `old` is the recipe of the run that it continues."""
    steps_per_pass = steps_per_epoch(splits.train, recipe.batch_size)
    length = run_length(recipe, steps_per_pass)
    if old is not None:
        _check_extension(run_length(old, steps_per_pass), length, old, recipe)
    return length


def _build(
    recipe: Recipe,
    splits: Splits,
    length: RunLength,
    strategy: AnyStrategy,
) -> tuple[ImageModel, Trainer]:
    """The plain model, and its trainer."""
    with activity("building the model"), strategy.scope():
        names = splits.class_names if recipe.supervised else None
        model = build_model(recipe.model, names, recipe.precision)
        trainer = compile_trainer(
            model_to_train(model, recipe),
            recipe,
            length.steps,
            length.steps_per_pass,
            splits.train.labels,
        )
    return model, trainer


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
    if is_chief(trainer.distribute_strategy):
        callbacks = [stages, *callbacks, *console_lines(recipe, splits, recorder)]
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
            callbacks=[stop_on_divergence, *callbacks, recorder],
            verbose=0,
            **validation_arguments(trainer, recipe, splits.validation),
        )
    if progress.stop_requested:  # after the last step had begun
        recorder.stop()
