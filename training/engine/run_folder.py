"""The folder of a run: its layout, preparation, and reading and writing its files.

recipe.yaml           the resolved recipe
history.csv           one row for each epoch
tensorboard/          for `tensorboard --logdir runs`
checkpoints/          what --resume continues from; see `checkpoint`
best.keras last.keras the models
report.json report.md the result; a run that has one is finished
*.png                 pictures

The folder can be in a bucket: gs://bucket/runs/name.
"""

import csv
import json
import os
from pathlib import Path
from typing import Any

import keras
from etils import epath

from keras_vit.completion import complete_classifier

from .. import storage
from ..errors import RunError
from ..recipe import Recipe, load_recipe

RECIPE = "recipe.yaml"


def prepare_folder(
    folder: epath.PathLike, recipe: Recipe, resume: bool, overwrite: bool
) -> None:
    """Prepare a folder for a run, and write the recipe into it.

    Args:
        folder: The run's folder; created where it does not exist.
        recipe: The run's recipe.
        resume: Resume the run in the folder, if there is one.
        overwrite: Delete the run in the folder, if there is one.

    Raises:
        RunError: The folder contains files that would be lost, or another recipe.
    """
    folder = epath.Path(folder)
    try:
        with storage.os_errors(folder):
            _make_room(folder, recipe, resume, overwrite)
            folder.mkdir(parents=True, exist_ok=True)
        storage.write_text(folder / RECIPE, recipe.to_yaml())
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be written: {error.strerror or error}"
        ) from None


def _make_room(
    folder: epath.Path, recipe: Recipe, resume: bool, overwrite: bool
) -> None:
    is_run = (folder / RECIPE).exists()
    if is_run and overwrite:
        _delete_run(folder)
    elif is_run:
        _check_old_run(folder, recipe, resume)
    elif folder.exists() and not _is_empty(folder):
        raise RunError(
            f"{folder}: exists and is not a run; choose another --output_dir"
        )


def _delete_run(folder: epath.Path) -> None:
    """Delete a run, the recipe last: until then the folder is recognized as a run."""
    for path in folder.iterdir():
        if path.is_dir() and not os.path.islink(path):
            path.rmtree()
        elif path.name != RECIPE:
            path.unlink()
    folder.rmtree()


def _is_empty(folder: epath.Path) -> bool:
    """Whether a folder is empty but for unfinished files of a killed run."""
    return folder.is_dir() and all(
        path.name.startswith(storage.UNFINISHED) for path in folder.iterdir()
    )


def _check_old_run(folder: epath.Path, recipe: Recipe, resume: bool) -> None:
    finished = (folder / "report.json").exists()
    if finished or not resume:
        state = "a finished run" if finished else "an unfinished run"
        resumes = "" if finished else "--resume continues it, "
        raise RunError(
            f"{folder}: contains {state}; {resumes}--overwrite deletes it, --name or "
            "--output_dir writes elsewhere"
        )
    with storage.local_copy(folder / RECIPE) as local:
        old_recipe = load_recipe(local)
    if old_recipe != recipe:
        raise RunError(
            f"{folder}: --resume needs the recipe that the run began with, "
            f"{folder / RECIPE}"
        )


def write_history(path: epath.PathLike, history: list[dict[str, float]]) -> None:
    """Write the history as CSV, one row for each epoch."""
    with (
        storage.atomic_write(path) as local,
        local.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(file, history[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(history)


def save_model(model: keras.Model, path: epath.PathLike) -> None:
    """Save the plain model atomically."""
    with storage.atomic_write(path) as local:
        model.save(local)


def load_model(
    path: Path, class_names: str | None = None, pixels: str | None = None
) -> keras.Model:
    """Load a classifier from a `.keras` file, of a run or of one's own making.

    Args:
        path: The file.
        class_names: A text file with one name per line, or names and commas, for a
            model without class names.
        pixels: `"raw"` or `"normalized"`, for a model that does not state what it
            reads.

    Returns:
        A `keras_vit.VisionTransformer`, `ResNet` or `ImageClassifier` with class names
        that reads pixels from 0 to 255.

    Raises:
        RunError: There is no such file, its model is not one of these, or something is
            missing; the message says which argument supplies it.
    """
    model = read_model(path)
    try:
        return complete_classifier(model, class_names, pixels)
    except ValueError as error:
        raise RunError(f"{path}: {error}") from None


def read_model(path: Path) -> keras.Model:
    """Load any Keras model file; raise RunError where it is missing or invalid."""
    if not path.is_file():
        raise RunError(f"{path}: there is no such file")
    try:
        return keras.models.load_model(path, compile=False)
    except (ValueError, TypeError, OSError, KeyError) as error:
        raise RunError(
            f"{path}: is not a Keras model: {' '.join(str(error).split())}"
        ) from None


def model_file(run_or_file: Path) -> Path:
    """`best.keras` of a run's folder, or the file itself."""
    return run_or_file / "best.keras" if run_or_file.is_dir() else run_or_file


def write_report(path: epath.PathLike, report: dict[str, Any]) -> None:
    """Write a report as indented JSON."""
    storage.write_text(path, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
