"""What a user reads after a mistake in a command line or in a recipe file."""

from typing import Literal

import pytest
from training_commands import main

from training.errors import RecipeError
from training.recipe import Recipe, parse_recipe
from training.recipes import named_recipe
from training.typed_values import in_words, typed_fields

DIGITS = ("fit", "--recipe", "digits")
NUMBER = "must be a whole number. Received:"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["fit"], "needs --recipe NAME"),
        (["push", "a", "hf://a/b", "--dry_run"], "--dry_run: expected one argument"),
        (["predict"], "are required: images, --model (--help"),
        (["evaluate", "x", "--split", "all"], "--split: invalid choice: 'all'"),
        (["recipes", "a", "b"], "one argument too many: 'b'"),
        ([*DIGITS, "--epoch", "1"], "there is no --epoch. Did you mean --epochs?"),
        ([*DIGITS, "--batch-size=1"], "Did you mean --batch_size?"),
        ([*DIGITS, "--learning_rate", "1"], "Did you mean --optimizer.learning_rate?"),
        ([*DIGITS, "--lerning_rate", "1"], "Did you mean --optimizer.learning_rate?"),
        ([*DIGITS, "--optimizer.learning_rat=1"], "mean --optimizer.learning_rate?"),
        ([*DIGITS, "--lr", "1"], "Did you mean --optimizer.learning_rate?"),
        ([*DIGITS, "--zzz", "1"], "there is no --zzz (--help"),
        ([*DIGITS, "--epochs", "2.5"], f"`epochs` {NUMBER} '2.5'"),
        ([*DIGITS, "--keep", "0"], "argument --keep: must be at least 1"),
        (
            [*DIGITS, "--model.pooling", "tail"],
            "must be token, avg, map, query or nu",
        ),
        (
            [*DIGITS, "--model.lora_layers=[x]"],
            "query, key, value, out and mlp. Rec",
        ),
        ([*DIGITS, "--data", "folder:x"], "--data is a group: set its values, as --d"),
        ([*DIGITS, "--optimizer.learning_rate", "-1"], "positive. Received: -1.0"),
        ([*DIGITS, "--name", "a/b"], "`name` must be a name for a folder"),
        ([*DIGITS, "--optimizer.name", "adam"], "`optimizer.name` adamw)"),
        ([*DIGITS, "--model.variant", "B/16"], "`model.variant` must be null where"),
        (["fit", "--recipe", "digit"], "one of digits, "),
        (["fit", "--recipe", "my.yaml"], "takes a name, --config takes a file: my"),
        (["fit", "--config", "none.yaml"], "none.yaml: no such file"),
        (["fit", "--config", "digits"], "Did you mean --recipe digits?"),
        (["fit", "--data.source", "floder:x"], "Did you mean folder:x?"),
    ],
)
def test_a_mistake_in_a_command_line(arguments, wanted, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as error:
        main(arguments)
    assert "\n" not in str(error.value)
    assert wanted in str(error.value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: [\n", ":2: "),
        ("a: 1\n\tb: 2\n", ":2: found character"),
        ("data: {source: digits\nepochs: 1\n", ":2: expected ',' or '}', but got ':'"),
        ("- 1\n", ": must be a recipe"),
        ("", ": must be a recipe"),
        ("model:\n  widht: 64\n", ":2: there is no `model.widht`. Did you mean model."),
        ("\nepoch: 1\n", ":2: there is no `epoch`. Did you mean epochs?"),
        ("epochs: 1\nepochs: 2\n", ":2: `epochs` is there a second time, after line 1"),
        ("data: digits\n", ":1: `data` must have values below it, such as `data.sour"),
        ("name: x\nseed: one\n", f":2: `seed` {NUMBER} 'one'"),
        ("epochs: [1, 2]\n", f":1: `epochs` {NUMBER} '[1, 2]'"),
        ("model:\n  heads: x\n", ":2: `model.heads` must be a whole number or null."),
        ("data: {source: digits}\nbatch_size: 0", ":2: `batch_size` must be at lea"),
        ("epochs: 1\n", ": `data.source` must be given, such as folder:PATH"),
    ],
)
def test_a_mistake_in_a_file(tmp_path, text, wanted):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as error:
        parse_recipe(text, str(path))
    assert str(error.value).startswith(f"{path}{wanted}")
    if "data.source" not in wanted:
        with pytest.raises(RecipeError) as error:
            main(["fit", "--data.source=digits", "--config", str(path)])
        assert str(error.value).startswith(f"{path}{wanted}")


def test_the_file_is_not_blamed_for_a_flag(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("epochs: 1\ndata: {source: digits}\n")
    with pytest.raises(RecipeError, match="^`epochs` must be at least 1"):
        main(["fit", "--config", str(path), "--epochs", "0"])


def test_a_file_may_use_anchors_and_merge_keys(tmp_path):
    text = "data: {source: digits}\noptimizer: &x {<<: {name: sgd}, momentum: 0.5}\n"
    recipe = parse_recipe(text, "here")
    assert (recipe.optimizer.name, recipe.optimizer.momentum) == ("sgd", 0.5)


def test_the_type_of_a_value_decides_what_its_text_is():
    """YAML 1.1 reads `off` as false, and 1e-3 as text."""
    text = "jit_compile: off\ndata: {source: digits, test: 1e-1}\nname: 2024-01-01\n"
    recipe = parse_recipe(text, "here")
    assert (recipe.jit_compile, recipe.data.test) == ("off", 0.1)
    assert recipe.name == "2024-01-01"


def test_every_value_of_a_recipe_has_its_type_in_words():
    for _, hint, _ in typed_fields(Recipe):
        words = in_words(hint)
        assert words
        assert not any(each in words for each in "[<|")
    assert in_words(Literal["a"] | tuple[int, int] | None) == (
        "a, a list of 2 whole numbers or null"
    )


def test_the_recipes_of_the_project_have_none(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(named_recipe("digits").to_yaml())
    assert parse_recipe(path.read_text(), str(path)) == named_recipe("digits")
