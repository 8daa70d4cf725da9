"""The length of a run, and the interval of its evaluations."""

import dataclasses

import pytest

from training.engine.run_length import RunLength, run_length
from training.errors import RecipeError
from training.recipe import DataConfig, Recipe

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


@pytest.mark.parametrize(
    ("per_pass", "expected"),
    [
        (1, RunLength(400, 20, 1)),  # 40 images: more than 20 passes
        (100, RunLength(2000, 100, 100)),
        (11_000, RunLength(20_000, 10_000, 11_000)),  # 350,000: less than 20
    ],
)
def test_bounds_hold_for_few_and_for_many_images(per_pass, expected):
    recipe = dataclasses.replace(RECIPE, epochs=20, min_steps=400, max_steps=20_000)
    assert run_length(recipe, per_pass) == expected
