"""`keras-vit fit`, and `resume`, which continues or extends a run."""

import argparse
import dataclasses
import functools

from keras_vit.common.command_line import Parser, positive_integer

from .. import storage
from ..engine import early_checks, run_folder
from ..engine.tpu_runtime import set_variables
from ..errors import require
from ..flags import add_recipe, recipe_of
from ..recipe import Recipe
from ..typed_values import read_flag
from .command import RUNS, Command


def _add_fit(parser: Parser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--on_bad_image",
        choices=("error", "skip"),
        help="short for --data.on_bad_image",
    )
    parser.add_argument(
        "--output_dir",
        help="the run's folder (default: runs/NAME, or runs/NAME-seedSEED)",
    )
    parser.add_argument("--resume", action="store_true", help="resume a stopped run")
    parser.add_argument(
        "--overwrite", action="store_true", help="delete the run in the folder first"
    )
    group = parser.add_argument_group("Checkpoints and profiling")
    _add_checkpoints(group)
    group.add_argument(
        "--profile",
        type=functools.partial(read_flag, "profile", tuple[int, int]),
        help="[first, last]: the steps to profile for TensorBoard",
    )


def _add_checkpoints(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--keep", type=positive_integer, default=3, help="number of checkpoints to keep"
    )
    parser.add_argument(
        "--checkpoint_every",
        type=positive_integer,
        help="steps between two checkpoints, in addition to those at each epoch's end",
    )


def _new_run(options: argparse.Namespace) -> tuple[Recipe, str]:
    """The recipe of `fit` and the run's folder."""
    recipe = recipe_of(options)
    if options.on_bad_image is not None:
        data = dataclasses.replace(recipe.data, on_bad_image=options.on_bad_image)
        recipe = dataclasses.replace(recipe, data=data)
    seeded = f"-seed{recipe.seed}" if recipe.seed else ""
    return recipe, options.output_dir or str(RUNS / f"{recipe.name}{seeded}")


def _check_fit(options: argparse.Namespace) -> None:
    recipe, folder = _new_run(options)
    steps = options.profile
    require(not steps or min(steps) > 0, "--profile", "steps from 1", steps)
    early_checks.check_new_run(recipe, folder, options.resume, options.overwrite)
    set_variables(recipe.strategy, recipe.tpu)


def _run_fit(options: argparse.Namespace) -> None:
    from ..fitting.fit import fit

    fit(
        *_new_run(options),
        options.resume,
        options.overwrite,
        keep=options.keep,
        checkpoint_every=options.checkpoint_every,
        profile=options.profile,
    )


fit = Command(
    "fit",
    _add_fit,
    _run_fit,
    _check_fit,
    description="Train a model by a recipe, whose values are flags too",
)


def _add_resume(parser: Parser) -> None:
    parser.add_argument("run", help="the run's folder")
    parser.add_argument(
        "--epochs",
        type=positive_integer,
        help="extend the run, also a finished one, to so many epochs; the schedule is "
        "then that of the new length, from the step where the run stands",
    )
    _add_checkpoints(parser)


def _check_resume(options: argparse.Namespace) -> None:
    if not storage.is_remote(options.run):
        recipe = run_folder.check_resumable(options.run, options.epochs)
        early_checks.check_recipe(recipe)
        set_variables(recipe.strategy, recipe.tpu)


def _run_resume(options: argparse.Namespace) -> None:
    from ..fitting.resume import resume

    resume(
        options.run,
        options.epochs,
        keep=options.keep,
        checkpoint_every=options.checkpoint_every,
    )


resume = Command("resume", _add_resume, _run_resume, _check_resume)
