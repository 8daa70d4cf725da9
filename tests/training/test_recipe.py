"""Recipes: all files are valid, and every mistake is a one-line error."""

import dataclasses
import inspect
import math
import pathlib
import subprocess
import sys

import pytest
import yaml
from training_commands import main

import keras_vit
from keras_vit.options import REQUIRED
from training.errors import RecipeError
from training.recipe import (
    AugmentationConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    load_recipe,
    parse_recipe,
)
from training.recipes import named_recipe, recipe_files, recipe_names

ROOT = pathlib.Path(__file__).parents[2]
DIGITS = DataConfig("digits")
PRINT = "--print_config"


# What the run decides: its images' classes, its precision, logits from raw pixels.
OF_THE_RUN = {
    *("classes", "class_names", "classifier_activation", "dtype", "name"),
    *("preprocessing", "include_preprocessing"),
}


def test_the_model_section_has_every_argument_of_the_model():
    parameters = inspect.signature(keras_vit.VisionTransformer).parameters
    fields = {field.name: field.default for field in dataclasses.fields(ModelConfig)}
    assert parameters.keys() - fields.keys() == OF_THE_RUN
    for name in parameters.keys() & fields.keys() - set(REQUIRED):
        if name != "pooling":  # None is what the weights have
            assert fields[name] == parameters[name].default, name
    for name in fields:
        assert f"{name}: " in ModelConfig.__doc__, name


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Run in a temporary folder, so that no run is left in the checkout."""
    monkeypatch.chdir(tmp_path)


def test_a_variant_overrides_its_file_by_its_row():
    path = next(path for path in recipe_files() if path.stem == "finetune_cifar10")
    tree = yaml.safe_load(path.read_text())
    variants = tree.pop("variants")
    assert variants["B16"].pop("optimizer") == {"learning_rate": 0.01}
    assert variants["B16"].pop("model") == {"variant": "B/16"}
    tree["optimizer"]["learning_rate"] = 0.01
    tree["model"]["variant"] = "B/16"
    tree |= {"name": "finetune_cifar10-B16", **variants["B16"]}
    own = parse_recipe(yaml.safe_dump(tree), "here")
    assert named_recipe("finetune_cifar10-B16") == own


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("digit", "digits"),
        ("finetune_cifar10", "finetune_cifar10-B16"),
        ("finetune_cifar10-B61", "finetune_cifar10-B16"),
        ("x", "-"),
    ],
)
def test_an_unknown_recipe_error_lists_similar_names(name, word):
    with pytest.raises(RecipeError, match="keras-vit recipes") as error:
        named_recipe(name)
    assert word in str(error.value)
    assert len(str(error.value)) < 300


def test_a_resolved_recipe_round_trips(tmp_path):
    recipe = dataclasses.replace(
        named_recipe("digits"),
        model=ModelConfig(variant="Ti/8", image_size=(32, 64)),
    )
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    assert load_recipe(path) == recipe


def test_flags_override_the_recipe(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["fit", "--recipe=digits", "--optimizer.learning_rate=7e-5", PRINT])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert "learning_rate: 7.0e-05" in printed
    assert "source: digits" in printed


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda: ModelConfig(variant=None), "model.variant"),
        (lambda: ModelConfig(depth=0), "model.depth"),
        (lambda: ModelConfig(variant="B/16", **dict.fromkeys(REQUIRED, 8)), "variant"),
        (lambda: ModelConfig(dropout=1.0), "model.dropout"),
        (lambda: ModelConfig(pixel_std=0.0), "model.pixel_std"),
        (lambda: ModelConfig(pixel_mean=127.5), "model.pixel_mean"),
        (lambda: ModelConfig(pixel_mean=(0.5, 0.5)), "each of the 3 channels"),
        (lambda: ModelConfig(pixel_std=(0.5, 0.0, 0.5)), "model.pixel_std"),
        (lambda: ModelConfig(channels=1, pixel_mean=(0.5,) * 3), "1 channels"),
        (lambda: ModelConfig(crop_fraction=1.5), "model.crop_fraction"),
        (lambda: DataConfig("digits", validation=1.0), "data.validation"),
        (lambda: DataConfig("digits", test=0.0), "data.test"),
        (lambda: DataConfig("folder:"), "folder:PATH"),
        (lambda: AugmentationConfig(crop_min_area=0.0), "crop_min_area"),
        (lambda: AugmentationConfig(shift=-1), "augmentation.shift"),
        (lambda: AugmentationConfig(rotate=181.0), "augmentation.rotate"),
        (lambda: AugmentationConfig(scale=1.0), "augmentation.scale"),
        (lambda: AugmentationConfig(crop_from=-1), "augmentation.crop_from"),
        (
            lambda: AugmentationConfig(crop_min_area=0.5, crop_from=160),
            "augmentation.crop_from",
        ),
        (lambda: OptimizerConfig(beta_1=1.0), "optimizer.beta_1"),
        (lambda: OptimizerConfig(learning_rate=math.inf), "learning_rate.*inf"),
        (lambda: OptimizerConfig("sgd", weight_decay=0.1), "weight_decay"),
        (lambda: ScheduleConfig(warmup_epochs=-1.0), "warmup_epochs"),
        (lambda: ScheduleConfig("staircase"), "given for staircase"),
        (lambda: ScheduleConfig("staircase", decay_at=(0.6, 0.3)), "rising shares"),
        (lambda: ScheduleConfig("staircase", decay_at=(1.0,)), "rising shares"),
        (lambda: ScheduleConfig(decay_factor=1.0), "schedule.decay_factor"),
        (lambda: Recipe(data=DIGITS, label_smoothing=1.0), "label_smoothing"),
        (lambda: Recipe(data=DIGITS, seed=-1), "seed"),
    ],
)
def test_a_value_out_of_range_is_an_error(build, word):
    with pytest.raises(RecipeError, match=word):
        build()


def test_a_recipe_error_exits_with_2_and_one_line_on_stderr():
    result = subprocess.run(
        [sys.executable, "-m", "training", "fit", "--epochs", "none"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("keras-vit fit: ")


def test_the_list_has_every_recipe(capsys):
    main(["recipes"])
    *lines, _ = capsys.readouterr().out.splitlines()
    listed, file = [], ""
    for line in lines:
        if line.startswith(" "):
            listed += [file + ending for ending in line.split()]
        else:
            file = line.split()[0]
            listed.append(file)
    assert set(listed) >= set(recipe_names())
    families = {path.stem for path in recipe_files()} - set(recipe_names())
    assert sorted(listed) == sorted([*recipe_names(), *families])


@pytest.mark.parametrize("name", ["digits", "vtab-clevr_count", "deit-B16"])
def test_a_printed_recipe_round_trips(capsys, tmp_path, name):
    main(["recipes", name])
    path = tmp_path / "printed.yaml"
    path.write_text(capsys.readouterr().out)
    assert load_recipe(path) == named_recipe(name)


def test_flags_override_a_variant(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--recipe=finetune_cifar10-B16", "--model.variant=S/16", PRINT])
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["model"]["variant"] == "S/16"
    assert printed["optimizer"]["learning_rate"] == 0.01
    assert printed["name"] == "finetune_cifar10-B16"
