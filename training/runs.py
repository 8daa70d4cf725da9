"""A run's folder: what lies where, when it may be written, and model files in it.

recipe.yaml           the resolved recipe
history.csv           one row for each epoch
tensorboard/          for `tensorboard --logdir runs`
checkpoint.npz        the state that --resume goes on from
best.keras last.keras the models
report.json           the result; a run that has one is finished
*.png                 pictures
"""

import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any

import keras

import keras_vit

from .errors import RunError
from .recipe import Recipe, load_recipe


def prepare_folder(folder: Path, recipe: Recipe, resume: bool, overwrite: bool) -> None:
    """Makes the folder ready for a run, and writes the recipe into it.

    Args:
        folder: The run's folder; made where it does not exist.
        recipe: The run's recipe.
        resume: Go on with the run in the folder, if there is one.
        overwrite: Delete the run in the folder, if there is one.

    Raises:
        RunError: The folder holds something that would be lost, or another recipe.
    """
    recipe_file = folder / "recipe.yaml"
    if overwrite and recipe_file.exists():
        shutil.rmtree(folder)
    if recipe_file.exists():
        _check_old_run(folder, recipe, resume)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(
            f"{folder}: exists and is not a run; choose another --output_dir"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(recipe_file, recipe.to_yaml())
    except OSError as error:
        raise RunError(f"{folder}: cannot be written: {error.strerror}") from None


def _check_old_run(folder: Path, recipe: Recipe, resume: bool) -> None:
    finished = (folder / "report.json").exists()
    if finished or not resume:
        state = "a finished run" if finished else "an unfinished run"
        wish = "" if finished else "--resume goes on with it, "
        raise RunError(
            f"{folder}: holds {state}; {wish}--overwrite deletes it, --name or "
            "--output_dir writes elsewhere"
        )
    if load_recipe(folder / "recipe.yaml") != recipe:
        raise RunError(
            f"{folder}: --resume needs the recipe that the run began with "
            f"({folder / 'recipe.yaml'})"
        )


def write_text(path: Path, text: str) -> None:
    """Writes beside the file, then renames."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_history(path: Path, history: list[dict[str, float]]) -> None:
    """Writes one line for each epoch, with a header."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, history[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(history)
    os.replace(temporary, path)


def save_model(model: keras.Model, path: Path) -> None:
    """Saves the plain model beside the file, then renames."""
    temporary = path.with_name(f"{path.stem}.tmp.keras")
    model.save(temporary)
    os.replace(temporary, path)


def load_model(path: Path) -> keras_vit.VisionTransformer:
    """Opens a `.keras` file of this project.

    Raises:
        RunError: There is no file, or it is no Vision Transformer that reads pixels
            and knows its classes.
    """
    if not path.is_file():
        raise RunError(f"{path}: there is no such file")
    try:
        model = keras.models.load_model(path, compile=False)
    except (ValueError, TypeError, OSError, KeyError) as error:
        raise RunError(
            f"{path}: is not a Keras model: {' '.join(str(error).split())}"
        ) from None
    complete = (
        isinstance(model, keras_vit.VisionTransformer)
        and model.preprocessing is not None
        and model.class_names is not None
    )
    if not complete:
        raise RunError(
            f"{path}: is not a VisionTransformer with preprocessing and class names, "
            "as `python -m training fit` saves it"
        )
    return model


def model_file(run_or_file: Path) -> Path:
    """`best.keras` of a run's folder, or the file itself."""
    return run_or_file / "best.keras" if run_or_file.is_dir() else run_or_file


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Writes JSON for people: indented, in the order given."""
    write_text(path, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
