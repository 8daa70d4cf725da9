"""Recipes of AugReg, DeiT, plain ViT and of studies have the published values."""

import numpy as np
import pytest
from parsed_recipes import recipe

from training.architectures.recipe_model import make_preprocessing
from training.recipes import recipe_names

# arXiv:2106.10270, figure 4: RandAugment's operations and magnitude, mixup's alpha.
AUGREG = {
    "none": (0, 0, 0),
    "light1": (2, 0, 0),
    "light2": (2, 10, 0.2),
    "medium1": (2, 15, 0.2),
    "medium2": (2, 15, 0.5),
    "strong1": (2, 20, 0.5),
    "strong2": (2, 20, 0.8),
}
# Data set, epochs; what big_vision's configs have for the two.
AUGREG_RUNS = [
    ("augreg_imagenet", "", 300, -6.9, 768),
    ("augreg_imagenet21k", "", 300, -10.0, None),
    ("augreg_imagenet21k", "-30ep", 30, -10.0, None),
]


@pytest.mark.parametrize("level", AUGREG)
@pytest.mark.parametrize("run", AUGREG_RUNS, ids=lambda run: run[0] + run[1])
def test_augreg_is_that_of_its_paper(run, level):
    file, ending, epochs, bias, representation_size = run
    ours = recipe(f"{file}-{level}{ending}")
    layers, magnitude, mixup = AUGREG[level]
    changes = ours.augmentation
    assert changes.policy == ("randaugment" if layers else "none")
    if layers:
        assert (changes.layers, changes.magnitude) == (layers, magnitude)
    assert (changes.mixup, changes.cutmix) == (mixup, 0)
    assert (changes.crop_min_area, changes.flip) == (0.05, True)
    assert (ours.epochs, ours.batch_size) == (epochs, 4096)
    assert (ours.loss, ours.model.head_bias_init) == ("sigmoid", bias)
    assert ours.model.representation_size == representation_size
    optimizer = ours.optimizer
    assert (optimizer.name, optimizer.learning_rate) == ("adamw", 1e-3)
    assert (optimizer.beta_1, optimizer.beta_2) == (0.9, 0.999)
    assert optimizer.weight_decay in (0.1, 0.03)
    assert optimizer.clip_norm == 1
    assert (ours.schedule.name, ours.schedule.warmup_steps) == ("cosine", 10_000)


def test_augreg_has_seven_levels_of_each_run():
    ours = [name for name in recipe_names() if name.startswith("augreg_")]
    assert len(ours) == len(AUGREG) * len(AUGREG_RUNS)


# arXiv:2012.12877, Table 9 and main.py; accuracy: Table 5, without distillation.
DEIT = {"Ti16": ("Ti/16", 72.2), "S16": ("S/16", 79.8), "B16": ("B/16", 81.8)}


@pytest.mark.parametrize("size", DEIT)
def test_deit_is_that_of_its_paper(size):
    ours = recipe(f"deit-{size}")
    assert ours.model.variant == DEIT[size][0]
    assert ours.published_accuracy == pytest.approx(DEIT[size][1] / 100)
    assert ours.epochs == 300
    assert abs(ours.batch_size - 1024) <= 16  # a multiple of the 3 repeats
    assert ours.label_smoothing == 0.1
    assert ours.model.stochastic_depth == 0.1
    assert ours.model.dropout == 0
    assert ours.optimizer.learning_rate == pytest.approx(5e-4 * 1024 / 512)
    assert ours.optimizer.weight_decay == 0.05
    assert ours.optimizer.ema == 0.99996
    assert ours.schedule.warmup_epochs == 5
    assert ours.schedule.start_learning_rate == 1e-6
    assert ours.schedule.end_learning_rate == 1e-5
    changes = ours.augmentation  # rand-m9-mstd0.5-inc1
    assert (changes.policy, changes.magnitude) == ("randaugment", 9)
    assert (changes.layers, changes.magnitude_std) == (2, 0.5)
    assert (changes.mixup, changes.cutmix, changes.cutmix_share) == (0.8, 1.0, 0.5)
    assert (changes.erase, changes.repeats) == (0.25, 3)


# README_revenge.md: rate, drop path and pixels of the first training; accuracy at 224.
DEIT3 = {
    "S16": ("S/16", 0.05, 224, 81.4),
    "B16": ("B/16", 0.2, 192, None),
    "L16": ("L/16", 0.45, 192, None),
    "H14": ("H/14", 0.6, 160, None),
}


@pytest.mark.parametrize("size", DEIT3)
def test_deit_3_is_that_of_its_readme(size):
    variant, drop_path, pixels, accuracy = DEIT3[size]
    ours = recipe(f"deit3-{size}")
    patch = int(variant[2:])
    assert ours.model.variant == variant
    assert ours.model.stochastic_depth == drop_path
    assert ours.model.image_size == pixels // patch * patch
    published = ours.published_accuracy
    assert published == (None if accuracy is None else pytest.approx(accuracy / 100))
    assert (ours.epochs, ours.loss, ours.label_smoothing) == (800, "sigmoid", 0)
    assert abs(ours.batch_size - 2048) <= 32
    assert ours.model.layer_scale == 1e-4
    assert ours.optimizer.weight_decay == 0.05
    # LAMB there; AdamW with DeiT's rule here, and the file says so.
    assert ours.optimizer.learning_rate == pytest.approx(5e-4 * 2048 / 512)
    assert ours.schedule.warmup_epochs == 5
    assert ours.schedule.start_learning_rate == 1e-6
    changes = ours.augmentation
    assert (changes.policy, changes.color_jitter) == ("three_augment", 0.3)
    assert (changes.mixup, changes.cutmix) == (0.8, 1.0)
    assert (changes.erase, changes.repeats) == (0, 3)
    assert ours.model.crop_fraction == 1


@pytest.mark.parametrize("name", ["deit-Ti16", "deit-B16", "deit3-S16", "deit3-H14"])
def test_deits_pixels_are_normalized_by_imagenets_statistics(name):
    layer = make_preprocessing(recipe(name).model)
    image = np.random.default_rng(0).integers(0, 256, (1, *layer.image_size, 3))
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(
        layer(image, fitted=True), (image / 255 - mean) / std, atol=1e-5
    )


@pytest.mark.parametrize(("epochs", "accuracy"), [(90, 0.765), (300, 0.80)])
def test_plain_vit_is_that_of_its_config(epochs, accuracy):
    ours = recipe(f"plain_vit-{epochs}ep")
    assert ours.epochs == epochs
    assert ours.published_accuracy == accuracy
    assert (ours.batch_size, ours.loss) == (1024, "softmax")
    model = ours.model
    assert (model.variant, model.pooling, model.class_token) == ("S/16", "avg", False)
    assert model.position_embedding == "sincos2d"
    assert model.representation_size == 384
    changes = ours.augmentation
    assert (changes.policy, changes.layers) == ("randaugment", 2)
    assert (changes.magnitude, changes.mixup) == (10, 0.2)
    # 1e-4 there is not multiplied by the learning rate of 1e-3, as ours is.
    optimizer = ours.optimizer
    assert optimizer.learning_rate * optimizer.weight_decay == pytest.approx(1e-4)
    assert (optimizer.learning_rate, optimizer.clip_norm) == (1e-3, 1)
    assert (ours.schedule.name, ours.schedule.warmup_steps) == ("cosine", 10_000)
    assert (ours.data.train, ours.data.test) == ("train[:99%]", "validation")
    assert (model.resize, model.crop_fraction) == ("small", 224 / 256)


# The comparison study's accuracies in percent.
STUDY = {
    "ViTB16": ("vit", "B/16", 99.33),
    "ResNet50": ("resnet", "ResNet50", 80.03),
    "ResNet152": ("resnet", "ResNet152", 92.76),
    "BiTR50x1": ("bit", "R50x1", None),
    "BiTR152x2": ("bit", "R152x2", None),
}


@pytest.mark.parametrize("model", STUDY)
def test_the_study_is_as_published(model):
    ours = recipe(f"study-{model}")
    architecture, variant, accuracy = STUDY[model]
    assert (ours.model.architecture, ours.model.variant) == (architecture, variant)
    published = ours.published_accuracy
    assert published == (None if accuracy is None else pytest.approx(accuracy / 100))
    assert (ours.epochs, ours.batch_size) == (3, 16)
    assert ours.optimizer.learning_rate == 1e-5
    assert ours.model.weights


def test_mnist_is_as_its_published_reading():
    ours = recipe("mnist")
    assert (ours.epochs, ours.published_accuracy) == (10, 0.9085)
    assert (ours.data.source, ours.model.channels) == ("tfds:mnist", 1)


def test_the_convolutional_baseline_differs_from_the_digits_in_the_model_alone():
    ours, theirs = recipe("digits-cnn"), recipe("digits")
    for part in ("data", "augmentation", "optimizer", "schedule"):
        assert getattr(ours, part) == getattr(theirs, part)
    for value in ("epochs", "batch_size", "loss", "label_smoothing", "seed"):
        assert getattr(ours, value) == getattr(theirs, value)
    assert ours.model.architecture == "cnn"
