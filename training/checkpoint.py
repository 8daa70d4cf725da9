"""The state of a training run, saved after every epoch so that it can go on bit by bit.

Keras stores neither the seeds of dropout nor what callbacks remember (keras#19796), so
the state here is everything: weights, seed generators, optimizer, epoch and history.
"""

import json
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np

from .errors import RunError


def save_state(
    path: Path, trainer: keras.Model, history: list[dict[str, float]]
) -> None:
    """Writes the state beside `path`, then renames: the file is always whole.

    Args:
        path: The file, `.npz`.
        trainer: The compiled model.
        history: One row for each finished epoch.
    """
    arrays = {name: variable.numpy() for name, variable in _state(trainer).items()}
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, history=json.dumps(history), **arrays)
    os.replace(temporary, path)


def load_state(path: Path, trainer: keras.Model) -> list[dict[str, float]]:
    """Puts the state into a compiled model of the same recipe.

    Args:
        path: What `save_state` wrote.
        trainer: The compiled model, its optimizer built.

    Returns:
        One row for each finished epoch.

    Raises:
        RunError: The state belongs to another model.
    """
    state = _state(trainer)
    with np.load(path) as arrays:
        stored = {name: arrays[name].shape for name in arrays if name != "history"}
        wanted = {name: tuple(variable.shape) for name, variable in state.items()}
        if stored != wanted:
            raise RunError(f"{path}: does not belong to this recipe's model")
        for name, variable in state.items():
            variable.assign(arrays[name])
        return json.loads(str(arrays["history"]))


def _state(trainer: keras.Model) -> dict[str, Any]:
    """Every variable that the next step depends on, by its place."""
    # `variables` of a model, unlike its `weights`, has the seed generators too.
    metrics = {id(variable) for variable in trainer.metrics_variables}
    model_state = [v for v in trainer.variables if id(v) not in metrics]
    return {
        **{f"model_{i}": variable for i, variable in enumerate(model_state)},
        **{f"optimizer_{i}": v for i, v in enumerate(trainer.optimizer.variables)},
    }
