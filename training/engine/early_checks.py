"""What a command can refuse before Keras and TensorFlow, which take seconds to import.

The functions raise the errors that the command would raise later. What is in a bucket,
which is read with TensorFlow, is left to it.
"""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_vit.common.file_names import (
    BEST_MODEL,
    MODEL_SUFFIXES,
    RECIPE,
    REPORT,
    model_file,
)

from .. import storage
from ..data.class_folders import open_class_folders
from ..errors import RecipeError, RunError, require
from ..recipe import DataConfig, Recipe, load_recipe
from . import run_folder
from .job import this_job

# A name of published weights; all others without a colon are paths.
PUBLISHED = re.compile(r"[\w@-]+")


def check_recipe(recipe: Recipe) -> None:
    """Check the files that a recipe names.

    Raises:
        RecipeError: `model.weights` is a path without a file or folder.
        DataError: See `check_source`.
    """
    weights = recipe.model.weights
    if weights and not PUBLISHED.fullmatch(weights) and _is_missing(weights):
        raise RecipeError(
            f"`model.weights`: {weights}: there is no such file or folder"
        )
    check_source(recipe.data.source, recipe.data.on_bad_image)


def check_source(
    source: str | None, on_bad_image: str = DataConfig.on_bad_image
) -> None:
    """Check a folder of images; other sources need TensorFlow.

    Raises:
        DataError: See `open_class_folders`.
    """
    kind, _, path = (source or "").partition(":")
    if kind == "folder" and not storage.is_remote(path):
        open_class_folders(path, on_bad_image)


def _is_missing(name: str) -> bool:
    """Whether a name is a path, rather than VARIANT:NAME or a URL, of nothing."""
    return ":" not in name and not Path(name).expanduser().exists()


def check_model(name: str) -> None:
    """Check what is not published: see `keras_vit.open_model`.

    Raises:
        RunError: There is no such file or folder, a run without a model, or a file that
            is no model.
    """
    if _is_missing(name):
        raise RunError(f"{name}: there is no such file or folder")
    best = Path(name, BEST_MODEL)
    if Path(name, RECIPE).is_file() and not best.is_file():
        raise RunError(f"{best}: there is no such file")
    if Path(name).is_file() and Path(name).suffix not in MODEL_SUFFIXES:
        raise RunError(f"{name}: must be a .keras file, a checkpoint or a run's folder")


def check_output(flag: str, file: str | None) -> None:
    """Raise RecipeError where the folder of a file to write does not exist."""
    ok = file is None or Path(file).parent.is_dir()
    require(ok, flag, "in an existing folder", file)


def check_new_run(recipe: Recipe, folder: str, resume: bool, overwrite: bool) -> None:
    """Check a run's recipe and folder; see `run_folder.check_folder`.

    With several workers the chief alone checks the folder, later, in `fit`.
    """
    alone = recipe.strategy in ("one_device", "mirrored")
    if recipe.strategy == "auto":
        alone = "TF_CONFIG" not in os.environ and this_job().processes == 1
    if alone and not storage.is_remote(folder):
        run_folder.check_folder(folder, recipe, resume, overwrite)
    check_recipe(recipe)


def data_of_run(model: str, changes: dict[str, Any], flag: str) -> DataConfig:
    """The data of a command line, or else of the run that a model belongs to.

    Args:
        model: A run's folder or a file in it.
        changes: Values on the command line; None where they are not given.
        flag: The flag of `source`, for the message.

    Raises:
        RecipeError: Neither has a source.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    if "source" in given:
        return DataConfig(**given)
    recipe = model_file(Path(model)).with_name(RECIPE)
    if not recipe.is_file():
        raise RecipeError(
            f"{model}: there is no {RECIPE} beside it, so {flag} is needed"
        )
    return replace(load_recipe(recipe).data, **given)


def check_finished_run(run: Path) -> None:
    """Raise RunError where a folder is not that of a finished run."""
    if not all((run / n).is_file() for n in (REPORT, RECIPE)):
        raise RunError(
            f"{run}: is not the folder of a finished run, which has "
            f"{REPORT} and {RECIPE}"
        )
