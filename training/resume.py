"""`keras-vit resume`: continue a run with the recipe in its folder, or extend it."""

import dataclasses
from typing import Any

from etils import epath

from .engine import run_folder
from .errors import RunError
from .fit import fit
from .recipe import require


def resume(
    folder: epath.PathLike,
    epochs: int | None = None,
    *,
    keep: int = 3,
    checkpoint_every: int | None = None,
) -> dict[str, Any]:
    """Continue the run in a folder.

    Args:
        folder: The run's folder.
        epochs: Extend the run to so many epochs; see `fit`.
        keep: Number of checkpoints to keep.
        checkpoint_every: Steps between two checkpoints inside an epoch.

    Returns:
        The contents of report.json; see `fit`.

    Raises:
        TrainingError: There is no run in the folder, it is finished and is not
            extended, or `fit` cannot continue it.
    """
    recipe = run_folder.read_recipe(folder)
    wanted = f"at least the run's {recipe.epochs}"
    require(epochs is None or epochs >= recipe.epochs, "--epochs", wanted, epochs)
    longer = epochs is not None and epochs > recipe.epochs
    if run_folder.is_finished(folder) and not longer:
        raise RunError(
            f"{folder}: the run is finished; --epochs with a number above "
            f"{recipe.epochs} extends it"
        )
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
