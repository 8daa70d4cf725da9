"""Every recipe is built and takes two steps on made-up images.

Only sizes are reduced: width, depth, pixels and batch of the model, a stem or ResNet to
the smallest one, the number of images. Weights are not downloaded. Loss, optimizer,
schedule, augmentation, head, splits and source are the recipe's own. Recipes that
become equal in small are tried once.
"""

import dataclasses
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from keras_vit.specs import parse_variant, patch_side
from training.data.pipeline import training_batches
from training.data.splits import load_splits
from training.model import build_model, compile_trainer
from training.recipes import named_recipe, recipe_names

SMALL = {"width": 12, "depth": 2, "mlp_dim": 16, "heads": 3}
LONG = 100_000  # steps of a training that is said in epochs
IN_WORDS = ("name", "description", "reference", "published_accuracy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """24 JPEG files of 3 classes."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for name in "abc":
        (root / name).mkdir()
        for index in range(8):
            pixels = random.integers(0, 256, (40, 36, 3)).astype("uint8")
            contents = tf.io.encode_jpeg(pixels)
            tf.io.write_file(str(root / name / f"{index}.jpg"), contents)
    return root


def small_model(model):
    """The same in small: what a recipe says of the structure stays."""
    if model.architecture == "cnn":
        return model
    if model.architecture != "vit":
        size = {"bit": "R26x1", "resnet": "ResNet50"}[model.architecture]
        return dataclasses.replace(model, variant=size, image_size=32, weights=None)
    small = {**SMALL, "weights": None}
    if model.representation_size is not None:
        small["representation_size"] = SMALL["width"]
    if model.variant is None:
        return dataclasses.replace(model, **small)
    hybrid = "+" in model.variant
    small["variant"] = "R26+Ti/32" if hybrid else f"Ti/{model.variant.split('/')[1]}"
    spec, patch_size = parse_variant(small["variant"])
    small["image_size"] = 2 * patch_side(patch_size, spec.resnet_blocks)
    return dataclasses.replace(model, **small)


def small_recipe(recipe, folder):
    """With a small model and batch; the schedule is as long as it was."""
    data = recipe.data
    if data.source.startswith("folder:"):
        shares = {"test": 0.2, "validation": 0.2 if data.validation else 0.0}
        data = dataclasses.replace(data, source=f"folder:{folder}", **shares)
    return dataclasses.replace(
        recipe,
        model=small_model(recipe.model),
        data=data,
        batch_size=2 * recipe.augmentation.repeats,
        steps=recipe.steps or LONG,
    )


def objects(builder, *args, **kwargs):
    """Examples of clevr and kitti, whose sequences must be equally long."""
    random = np.random.default_rng(1)
    encoded = tf.io.encode_png(np.zeros((20, 30, 3), "uint8")).numpy()
    examples = [
        {
            "image": encoded,
            "objects": {
                "size": random.integers(0, 2, count),
                "pixel_coords": random.uniform(7, 11, (count, 3)).astype("float32"),
                "location": random.uniform(0, 40, (count, 3)).astype("float32"),
                "type": random.integers(0, 8, count),
            },
        }
        for count in random.integers(3, 11, 12)
    ]
    spec = {
        "image": tf.TensorSpec([], tf.string),
        "objects": {
            "size": tf.TensorSpec([None], tf.int64),
            "pixel_coords": tf.TensorSpec([None, 3], tf.float32),
            "location": tf.TensorSpec([None, 3], tf.float32),
            "type": tf.TensorSpec([None], tf.int64),
        },
    }
    return tf.data.Dataset.from_generator(lambda: examples, output_signature=spec)


@pytest.fixture
def eagerly():
    """A graph of the step would take seconds for each recipe."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def loss_of_a_zero_classifier(recipe, classes):
    """Worked out by hand: the logits are `head_bias_init`, whatever the image is.

    The labels of an image sum to 1, mixed and smoothed or not.
    """
    bias = recipe.model.head_bias_init
    if recipe.loss == "softmax":
        return math.log(classes)
    return classes * math.log1p(math.exp(bias)) - bias


def different_recipes():
    """One name for each recipe that is different in small."""
    names = {}
    for name in recipe_names():
        small = dataclasses.asdict(small_recipe(named_recipe(name), "images"))
        kept = {key: value for key, value in small.items() if key not in IN_WORDS}
        names.setdefault(str(kept), name)
    return list(names.values())


@pytest.mark.parametrize("name", different_recipes())
def test_a_recipe_takes_two_steps(name, folder, eagerly):
    recipe = small_recipe(named_recipe(name), folder)
    own = any(word in name for word in ("clevr", "kitti"))
    images = 200 if recipe.data.validation else 12  # shares and slices of 1 %
    with tfds.testing.mock_data(images, as_dataset_fn=objects if own else None):
        splits = load_splits(recipe.data, recipe.model.channels)
        keras.utils.set_random_seed(recipe.seed)
        model = build_model(recipe.model, splits.class_names, recipe.precision)
        batches = training_batches(
            splits.train, recipe, model.preprocessing, total_steps=2
        )
        before = [np.array(weight) for weight in model.trainable_weights]
        trainer = compile_trainer(model, recipe, recipe.steps, LONG / recipe.epochs)
        history = trainer.fit(batches, epochs=2, steps_per_epoch=1, verbose=0).history
    expected = loss_of_a_zero_classifier(recipe, len(splits.class_names))
    assert history["loss"][0] == pytest.approx(expected, rel=1e-4)
    assert np.isfinite(history["loss"][1])
    assert int(trainer.optimizer.iterations) == 2
    assert any(
        not np.array_equal(weight, old)
        for weight, old in zip(model.trainable_weights, before, strict=True)
    )
