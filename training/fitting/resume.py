"""`keras-vit resume`: continue a run with the recipe in its folder, or extend it."""

import dataclasses
import os

import keras
from etils import epath

from keras_vit.common.file_names import CHECKPOINTS

from ..engine import checkpoint, run_folder
from ..engine.run_folder import Report
from ..errors import RunError
from ..recipe import Recipe
from .fit import fit


def resume(
    folder: epath.PathLike,
    epochs: int | None = None,
    *,
    keep: int = 3,
    checkpoint_every: int | None = None,
) -> Report:
    """Continue the run in a folder.

    Returns:
        The contents of report.json; see `fit`.

    Raises:
        TrainingError: There is no run in the folder, it is finished and is not
            extended, or `fit` cannot continue it.
    """
    recipe = run_folder.check_resumable(folder, epochs)
    _check_workers(recipe, folder)
    longer = epochs is not None and epochs > recipe.epochs
    if epochs is not None:
        recipe = dataclasses.replace(recipe, epochs=epochs)
    return fit(
        recipe,
        folder,
        resume=True,
        extend=longer,
        keep=keep,
        checkpoint_every=checkpoint_every,
    )


def _check_workers(recipe: Recipe, folder: epath.PathLike) -> None:
    """Raise RunError where several workers have to continue together."""
    alone = "TF_CONFIG" not in os.environ and keras.backend.backend() == "tensorflow"
    if recipe.strategy == "multi_worker" and alone:  # JAX may know the others
        stored = checkpoint.stored_workers(epath.Path(folder) / CHECKPOINTS)
        command = f"keras-vit launch --workers {stored or 'N'} -- resume {folder}"
        raise RunError(
            f"{folder}: several workers train it; `{command}` continues on this "
            "machine, and `resume` with its own TF_CONFIG on each of several"
        )
