"""What `fit` prints before its first step: the data, and what is not as asked for."""

import dataclasses
import sys

import keras

from ..architectures.compiling import compiles
from ..data.splits import Splits
from ..engine.recorder import Recorder
from ..engine.run_length import RunLength
from ..engine.schedule import learning_rate, requested_warmup, warmup_steps
from ..recipe import Recipe
from ..reporting.throughput import device_name
from .device_limits import precision_warning


def print_notices(
    recipe: Recipe, splits: Splits, length: RunLength, model: keras.Model
) -> None:
    """Print the data set, and where a run is slower or shorter than it could be."""
    _print_uncompiled(recipe, model)
    if slow := precision_warning(recipe.precision, device_name()):
        print(f"warning: {slow}", file=sys.stderr)
    print(_header(recipe, splits))
    _print_shorter_warmup(recipe, length)


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


def print_start(recorder: Recorder, old: Recipe | None, recipe: Recipe) -> None:
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
