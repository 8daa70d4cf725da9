"""What `--help` shows, and flags that depend on each other or on the home folder."""

import re

import pytest
from training_commands import parse

from keras_vit.common import commands
from training.engine.run_length import run_length
from training.errors import RecipeError
from training.flags import recipe_of, recipe_values

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


def test_a_flag_before_the_recipe_that_would_replace_it_is_an_error():
    with pytest.raises(RecipeError, match="--epochs must stand after --recipe digits"):
        parse("fit", ["--epochs", "5", "--recipe", "digits"])


def test_a_recipe_replaces_another_one_and_equal_values(tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("epochs: 3")
    both = ["--recipe", "digits", "--config", str(config)]
    assert recipe_of(parse("fit", both)).epochs == 3
    same = ["--epochs", "80", "--recipe", "digits"]
    assert recipe_of(parse("fit", same)).epochs == 80


@pytest.mark.parametrize("flags", [["--output_dir=~/x"], ["--output_dir", "~/x"]])
def test_the_home_folder_is_expanded_after_an_equals_sign(flags, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    options = parse("fit", ["--recipe", "digits", *flags])
    assert options.output_dir == "/home/ada/x"


@pytest.fixture
def help_text(monkeypatch, capsys):
    """The help of a command on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def text(*arguments):
        with pytest.raises(SystemExit) as ended:
            parse(*arguments)
        assert ended.value.code == 0
        return capsys.readouterr().out

    return text


def flags_in(text):
    return set(re.findall(r"^  (?:-h, )?--([\w.]+)", text, re.M))


OF_ALL = {"help", "help_all", "recipe", "config", "print_config"}
COMMON = {
    *("data.source", "model.variant", "model.weights", "model.image_size"),
    *("epochs", "batch_size", "optimizer.learning_rate", "precision", "strategy"),
}


@pytest.mark.parametrize(
    ("command", "own"),
    [
        ("fit", {"output_dir", "resume", "overwrite", "on_bad_image"}),
        ("data-speed", {"seconds", "json"}),
        ("tpu-check", {"topology"}),
    ],
)
def test_help_has_the_description_first_and_the_common_flags(command, own, help_text):
    text = help_text(command, ["--help"])
    assert text.startswith(f"usage: keras-vit {command} --recipe NAME [--FLAG VALUE")
    assert text.splitlines()[2].endswith(".")
    assert flags_in(text) == OF_ALL | COMMON | own
    assert len(text.splitlines()) < 60


@pytest.mark.parametrize("command", ["fit", "data-speed", "tpu-check"])
def test_help_all_has_a_flag_for_each_value_of_a_recipe(command, help_text):
    text = help_text(command, ["--help_all"])
    assert flags_in(text) >= {*OF_ALL, *recipe_values(), "name"}
    assert text.startswith(help_text(command, ["--help"]).rstrip("\n"))


def test_help_all_has_the_flags_of_fit_that_help_leaves_out(help_text):
    left_out = {"keep", "checkpoint_every", "profile"}
    assert left_out <= flags_in(help_text("fit", ["--help_all"]))


def test_a_choice_is_not_listed_twice(help_text):
    text = " ".join(help_text("fit", ["--help_all"]).split())
    assert "--loss LOSS softmax, or sigmoid" in text
    assert "--model.gelu GELU tanh or exact: " not in text
    assert "--model.position_placement POSITION_PLACEMENT stem, every_layer" in text


def test_a_shell_completes_the_flags_that_help_leaves_out(capsys):
    assert commands.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    flags = re.search(r"_keras_vit_fit_option_strings=\((.+)\)", script)[1].split()
    assert {f"--{name}" for name in recipe_values()} <= set(flags)
