"""The recorder: the best epoch, a check of the final weights."""

import dataclasses

import pytest
from tiny_recipe import TINY_MODEL

from training.engine.recorder import best_epoch
from training.errors import Diverged
from training.fit import fit
from training.recipe import (
    DataConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
)

RECIPE = Recipe(data=DataConfig("digits", validation=0.0))


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([(0.5, 1.0), (0.75, 2.0), (0.625, 0.5)], 1),
        ([(0.75, 2.0), (0.75, 1.0), (0.75, 1.5)], 1),
        ([(0.75, 1.0), (0.75, 1.0)], 0),
    ],
    ids=["accuracy", "loss", "first"],
)
def test_the_best_epoch_has_the_best_accuracy_then_the_lowest_loss(rows, best):
    history = [{"val_accuracy": a, "val_loss": loss} for a, loss in rows]
    assert best_epoch(history) is history[best]


def test_without_validation_the_last_epoch_is_the_best():
    history = [{"loss": 1.0}, {"loss": 2.0}]
    assert best_epoch(history) is history[1]


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
