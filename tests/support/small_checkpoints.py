"""Small checkpoints of a run that does not exist."""

import ml_dtypes
import numpy as np

from training.engine.checkpoint import Checkpoint, Owner
from training.recipe import DataConfig, Recipe

RECIPE = Recipe(data=DataConfig("digits")).to_yaml()
OWNER = Owner(RECIPE, workers=2, replicas=3)


def state(step, size=7):
    """A small `Trainer.state_arrays`, different for each step."""
    random = np.random.default_rng(step)
    return {
        "model_0": random.normal(size=(size, 5)).astype("float32"),
        "model_1": random.normal(size=(3,)).astype(ml_dtypes.bfloat16),
        "optimizer_0": np.array(step, "int64"),
        "seed_0": np.array([step, 2**32 - 1], "uint32"),
    }


def make(step, **changes):
    history = [{"epoch": 1, "loss": 0.1 + step}]
    return Checkpoint(step, changes.pop("arrays", state(step)), OWNER, history)
