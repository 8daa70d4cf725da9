"""All recipes: valid, with a schedule for short runs, weights that exist, a header."""

import dataclasses

import numpy as np
import pytest
from parsed_recipes import every_recipe, recipe

from keras_vit import list_weights
from keras_vit.specs import parse_variant, patch_side
from training.engine.schedule import make_schedule, requested_warmup, warmup_steps
from training.model_config import IMAGE_SIZE
from training.recipes import named_recipe, recipe_names, recipes_of_file
from training.recipes import recipe_files as files


def test_every_recipe_is_valid_and_has_its_name():
    recipes = every_recipe()
    assert [r.name for r in recipes] == recipe_names()
    assert all(r.description for r in recipes)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("folder_small_gray", "folder_small-gray"),
        ("folder-small", "folder_small-color"),
        ("digits_cnn", "digits-cnn"),
        ("vtab_clevr-count", "vtab-clevr_count"),
        ("finetune_cifar100_R50+L32_augreg", "finetune_cifar100-R50+L32-augreg"),
    ],
)
def test_a_name_is_found_with_hyphens_or_underscores(typed, name):
    assert named_recipe(typed) == recipe(name)


def test_no_two_recipes_differ_by_hyphens_and_underscores_alone():
    names = [name.replace("-", "_") for name in recipe_names()]
    assert len(set(names)) == len(names)


SHORT = {
    "one epoch": {"epochs": 1},
    "one epoch instead of steps": {"epochs": 1, "steps": None},
    "one step": {"steps": 1},
    "ten steps": {"steps": 10},
}


@pytest.mark.parametrize("changes", SHORT.values(), ids=SHORT)
def test_a_short_run_of_every_recipe_warms_up_to_the_peak(changes):
    alike = {
        (r.schedule, r.optimizer.learning_rate, r.epochs, r.steps): r
        for r in every_recipe()
        if not r.schedule.warmup_share  # a share fits any run
    }
    for own in alike.values():
        name, recipe = own.name, dataclasses.replace(own, **changes)
        for per_pass in (3, 45):
            steps = recipe.steps or per_pass
            warmup = warmup_steps(recipe, steps, per_pass)
            if requested_warmup(recipe, per_pass) >= steps:
                assert warmup == steps // 10, name
            else:
                assert warmup == requested_warmup(recipe, per_pass), name
            schedule = make_schedule(recipe, steps, per_pass)
            rates = np.array(schedule(np.arange(steps)))
            peak = pytest.approx(recipe.optimizer.learning_rate)
            assert rates[warmup] == peak, name
            assert rates.max() == peak, name
            assert rates.min() >= 0, name


def test_published_weights_exist_for_every_recipe_that_names_some():
    of_own = ("finetune_folder", "finetune_mae")
    named = [
        r for r in every_recipe() if r.model.weights and not r.name.startswith(of_own)
    ]
    assert len(named) == 5 * (5 + 12) + 8 + 19 + 5
    for ours in named:
        if ours.model.architecture == "resnet":
            assert ours.model.weights == "imagenet"
        else:
            published = {row.name: row for row in list_weights(ours.model.variant)}
            assert published[ours.model.weights].classes == 21_843


def test_patches_fit_into_the_image_at_full_size():
    for ours in every_recipe():
        model = ours.model
        if model.architecture != "vit":
            continue
        patch = model.patch_size
        if model.variant is not None:
            spec, patch_size = parse_variant(model.variant)
            patch = patch_side(patch_size, spec.resnet_blocks)
        assert (model.image_size or IMAGE_SIZE) % patch == 0, ours.name


def test_own_photographs_begin_with_published_weights():
    for name in ("finetune_folder", *(f"finetune_folder-{v}" for v in VARIANTS)):
        ours = named_recipe(name)
        rows = {row.name: row for row in list_weights(ours.model.variant)}
        assert rows[ours.model.weights].classes == 21_843
    assert named_recipe("finetune_folder").model.variant == "S/16"


VARIANTS = ("Ti16", "S16", "B16")


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_the_head_of_a_file_says_how_and_what_came_out(path):
    lines = path.read_text("utf-8").splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert lines[0].startswith(("# keras-vit fit", "# keras-vit compare"))
    for word in ("Hardware", "Time", "Accuracy"):
        assert any(line.startswith(f"# {word}") for line in comments), word
    for name in recipes_of_file(path):
        ours = recipe(name)
        own = path.stem in ("digits", "digits-cnn", "folder_small", "finetune_folder")
        assert ours.reference or own
