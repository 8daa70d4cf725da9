"""The recorder: a check of the final weights."""

import dataclasses

import pytest
from tiny_recipe import TINY_MODEL

from training.errors import Diverged
from training.fit import fit
from training.recipe import (
    DataConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
)

RECIPE = Recipe(data=DataConfig("digits", validation=0.0))


def test_non_finite_weights_after_the_last_update_are_a_divergence(tmp_path):
    recipe = dataclasses.replace(
        RECIPE,
        steps=1,
        model=TINY_MODEL,
        optimizer=OptimizerConfig(learning_rate=3e38, weight_decay=10.0),
        schedule=ScheduleConfig("constant"),
    )
    with pytest.raises(Diverged, match="not finite .* at step 1"):
        fit(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "best.keras").exists()
