"""Recipes take two training steps on synthetic images.

Only sizes are reduced: width, depth, pixels and batch of the model, a stem or ResNet to
the smallest one, the number of images. Weights are not downloaded. Loss, optimizer,
schedule, augmentation, pooling, splits and source are the recipe's own. The recipes
that are trained cover every pair of options that any recipe has; `make test` trains
those of the digits only. Two other files compare the values of all recipes:
test_recipes_published.py and test_recipes_of_later_papers.py.
"""

import dataclasses
import itertools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from few_formats import few_formats
from parsed_recipes import every_recipe, recipe

from keras_vit.specs import parse_variant, patch_side
from training.architectures.compiling import compile_trainer, model_to_train
from training.architectures.recipe_model import build_model
from training.data.masking import Masking
from training.data.pipeline import training_batches
from training.data.splits import load_splits

SMALL = {"width": 12, "depth": 1, "mlp_dim": 16, "heads": 3}
LONG = 100_000  # steps of a training whose length is given in epochs
PRETRAINING = ("mae-digits",)
OTHER_PRETRAINING = """
    mae-B16 masked_patches-B16 masked_patches-B16-4x4 masked_patches-B16-pixels
    masked_patches-digits simmim-B16
"""
IN_WORDS = ("name", "description", "reference", "published_accuracy")

QUICK = "digits"
# With those of QUICK, they have every pair of options that any recipe has.
OTHERS = """
    augreg_imagenet-light1 augreg_imagenet-none augreg_imagenet21k-light1
    augreg_imagenet21k-light2 bit_hyperrule-cifar10 bit_hyperrule-small deit-Ti16
    deit3-H14 deit3-S16 digits-cnn finetune_cifar10-B32 finetune_cifar10-H14
    finetune_cifar10-R50+B16 finetune_folder-S16 finetune_mae-B16 finetune_mae-H14
    folder_small-color folder_small-gray mnist plain_vit-90ep pretrain_imagenet-B32
    pretrain_imagenet-R50+B16
    pretrain_imagenet-R50x1 pretrain_imagenet21k-B16 pretrain_imagenet21k-B32
    pretrain_jft-H14 pretrain_jft-R50+B16 pretrain_jft-R50x1 study-BiTR50x1
    study-ResNet50 vtab-caltech101 vtab-clevr_count vtab-dsprites_location
"""


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
    """The same model with small sizes; its structure stays."""
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
    """The recipe with a small model and batch, and its own schedule."""
    data = recipe.data
    if data.source.startswith("folder:"):
        shares = {"test": 0.2, "validation": 0.2 if data.validation else 0.0}
        data = dataclasses.replace(data, source=f"folder:{folder}", **shares)
    decoder = {"decoder_width": 12, "decoder_depth": 1, "decoder_heads": 3}
    return dataclasses.replace(
        recipe,
        model=small_model(recipe.model),
        self_supervision=dataclasses.replace(recipe.self_supervision, **decoder),
        data=data,
        batch_size=2 * recipe.augmentation.repeats,
        steps=recipe.steps or LONG,
    )


def objects(builder, *args, **kwargs):
    """Synthetic examples of clevr and kitti, whose sequences have one length."""
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


def loss_of_a_zero_classifier(recipe, classes):
    """The loss in closed form: for every image the logits are `head_bias_init`.

    An image's labels sum to 1, mixed and smoothed or not.
    """
    bias = recipe.model.head_bias_init
    if recipe.loss == "softmax":
        return math.log(classes)
    return classes * math.log1p(math.exp(bias)) - bias


def options(recipe):
    """Pairs of a field's name and its value; of a number only whether it is 0."""
    fields = dataclasses.asdict(small_recipe(recipe, "images"))
    kept = [(name, value) for name, value in fields.items() if name not in IN_WORDS]
    while kept:
        name, value = kept.pop()
        if isinstance(value, dict):
            kept += [(f"{name}.{inner}", each) for inner, each in value.items()]
        elif name.startswith("data.") and name != "data.source":
            continue  # test_splits.py and test_vtab.py
        elif isinstance(value, str):
            yield name, value.partition(":")[0]
        else:
            yield name, None if value is None else bool(value)


def test_the_trained_recipes_cover_every_pair_of_options():
    every = {
        each.name: set(options(each)) for each in every_recipe() if each.supervised
    }
    shared = set.intersection(*every.values())

    def pairs(names):
        return {
            pair
            for name in names
            for pair in itertools.combinations(sorted(every[name] - shared, key=str), 2)
        }

    missing = pairs(every) - pairs(f"{QUICK} {OTHERS}".split())
    assert not missing, f"train one more recipe with {sorted(missing, key=str)[0]}"


def slow(names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names.split()]


@pytest.mark.parametrize("name", [*QUICK.split(), *slow(OTHERS)])
@few_formats()
def test_a_recipe_takes_two_steps(name, folder, eagerly):
    reduced = small_recipe(recipe(name), folder)
    if reduced.augmentation.policy in ("randaugment", "autoaugment"):
        pytest.importorskip("official.vision.ops.augment")
    own = any(word in name for word in ("clevr", "kitti"))
    images = 200 if reduced.data.validation else 12  # shares and slices of 1 %
    with tfds.testing.mock_data(images, as_dataset_fn=objects if own else None):
        splits = load_splits(reduced.data, reduced.model.channels)
        keras.utils.set_random_seed(reduced.seed)
        model = build_model(reduced.model, splits.class_names, reduced.precision)
        batches = training_batches(
            splits.train, reduced, model.preprocessing, total_steps=2
        )
        before = [np.array(weight) for weight in model.trainable_weights]
        trainer = compile_trainer(model, reduced, reduced.steps, LONG / reduced.epochs)
        history = trainer.fit(batches, epochs=2, steps_per_epoch=1, verbose=0).history
    expected = loss_of_a_zero_classifier(reduced, len(splits.class_names))
    assert history["loss"][0] == pytest.approx(expected, rel=1e-4)
    assert np.isfinite(history["loss"][1])
    assert int(trainer.optimizer.iterations) == 2
    assert any(
        not np.array_equal(weight, old)
        for weight, old in zip(model.trainable_weights, before, strict=True)
    )


@pytest.mark.parametrize("name", [*PRETRAINING, *slow(OTHER_PRETRAINING)])
@few_formats()
def test_a_self_supervised_recipe_takes_two_steps(name, folder, eagerly):
    reduced = small_recipe(recipe(name), folder)
    with tfds.testing.mock_data(200):
        splits = load_splits(reduced.data, reduced.model.channels)
        keras.utils.set_random_seed(reduced.seed)
        encoder = build_model(reduced.model, None, reduced.precision)
        model = model_to_train(encoder, reduced)
        batches = training_batches(
            splits.train,
            reduced,
            encoder.preprocessing,
            total_steps=2,
            masking=Masking.of(model.encoder, reduced),
        )
        before = [np.array(weight) for weight in encoder.trainable_weights]
        trainer = compile_trainer(model, reduced, reduced.steps, LONG / reduced.epochs)
        history = trainer.fit(batches, epochs=2, steps_per_epoch=1, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    moved = [
        weight.path
        for weight, old in zip(encoder.trainable_weights, before, strict=True)
        if not np.array_equal(weight, old)
    ]
    assert any(path.startswith("embedding/") for path in moved)
    assert any(path.startswith("encoder_block_0/") for path in moved)


def test_every_self_supervised_recipe_is_trained():
    names = {each.name for each in every_recipe() if not each.supervised}
    assert names - {"masked_patches-B16-1M", "mae-L16", "mae-H14"} == {
        *PRETRAINING,
        *OTHER_PRETRAINING.split(),
    }
