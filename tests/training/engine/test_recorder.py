"""How long a run is, and that its end is looked at."""

import dataclasses

import pytest

from training.engine.run_length import RunLength, run_length
from training.errors import Diverged, RecipeError
from training.fit import fit
from training.model import compiles
from training.recipe import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
)

RECIPE = Recipe(data=DataConfig("digits", validation=0.0))


@pytest.mark.parametrize(
    ("steps", "per_pass", "interval"),
    [
        (20_000, 2502, 2500),  # ImageNet
        (10_000, 97, 500),  # CIFAR
        (2500, 1, 125),  # VTAB
        (500, 6, 25),  # Pets
        (13, 44, 13),
    ],
)
def test_intervals_divide_the_steps(steps, per_pass, interval):
    recipe = dataclasses.replace(RECIPE, steps=steps)
    assert run_length(recipe, per_pass) == RunLength(steps, interval, per_pass)


def test_steps_without_a_suitable_divisor_are_rejected():
    with pytest.raises(RecipeError, match="`steps` must be a multiple of a number"):
        run_length(dataclasses.replace(RECIPE, steps=211), 44)


def test_an_epoch_is_a_pass_over_the_images():
    assert run_length(dataclasses.replace(RECIPE, epochs=3), 44) == RunLength(
        132, 44, 44
    )


def test_non_finite_weights_after_the_last_update_are_a_divergence(tmp_path):
    recipe = dataclasses.replace(
        RECIPE,
        steps=1,
        model=ModelConfig(
            variant=None,
            patch_size=4,
            width=12,
            depth=1,
            mlp_dim=16,
            heads=3,
            image_size=8,
            channels=1,
        ),
        optimizer=OptimizerConfig(learning_rate=3e38, weight_decay=10.0),
        schedule=ScheduleConfig("constant"),
    )
    with pytest.raises(Diverged, match="not finite after step 1"):
        fit(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "best.keras").exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, False), ({"jit_compile": "on"}, True), ({"strategy": "tpu"}, True)],
)
def test_xla_is_off_on_a_cpu_by_default(changes, expected):
    assert compiles(dataclasses.replace(RECIPE, **changes)) == expected
