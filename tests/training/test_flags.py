"""Flags that depend on each other or on the user's home folder."""

import pytest
from training_commands import parse

from training.engine.run_length import run_length
from training.errors import RecipeError
from training.flags import recipe_of

FOLDER = ("--recipe", "finetune_folder")  # min_steps 400, max_steps 40000


@pytest.mark.parametrize(
    ("flags", "bounds", "steps"),
    [
        (["--max_steps=60"], (60, 60), 60),
        (["--max_steps", "60"], (60, 60), 60),
        (["--max_steps=500"], (400, 500), 400),
        (["--min_steps=50000"], (50000, 50000), 50000),
        (["--min_steps=10", "--max_steps=60"], (10, 60), 60),
    ],
)
def test_a_bound_of_the_steps_moves_the_recipes_other_one(flags, bounds, steps):
    recipe = recipe_of(parse("fit", [*FOLDER, *flags]))
    assert (recipe.min_steps, recipe.max_steps) == bounds
    assert run_length(recipe, steps_per_pass=8).steps == steps


def test_two_bounds_that_contradict_each_other_are_an_error():
    with pytest.raises(
        RecipeError, match=r"`max_steps` must be at least min_steps \(61"
    ):
        parse("fit", [*FOLDER, "--min_steps=61", "--max_steps=60"])


@pytest.mark.parametrize("flags", [["--output_dir=~/x"], ["--output_dir", "~/x"]])
def test_the_home_folder_is_expanded_after_an_equals_sign(flags, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    options = parse("fit", ["--recipe", "digits", *flags])
    assert options.output_dir == "/home/ada/x"
