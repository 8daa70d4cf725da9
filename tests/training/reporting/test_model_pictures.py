"""Pictures of a model in TensorBoard while it trains: in stock Keras and in runs."""

import types

import keras
import numpy as np
import pytest
import python_process
import tensorflow as tf
from board_events import read_events
from run_files import weights
from tiny_model import build_vit, small
from tiny_recipe import TINY_RECIPE, changed
from without_pictures import leave_out_pictures

import keras_vit
from keras_vit import analysis
from keras_vit.analysis import figures
from training.architectures.compiling import trainer_class
from training.data.splits import load_splits
from training.engine.optimizer import make_optimizer
from training.fitting import callbacks
from training.fitting.fit import fit
from training.recipe import OptimizerConfig
from training.reporting import model_pictures
from training.reporting.model_pictures import ModelPictures

pytestmark = [pytest.mark.backend, pytest.mark.usefixtures("eagerly")]

NAMES = {"filters", "positions", "distance", "class attention", "rollout"}
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 22, 14, 3), "uint8")
LABELS = np.array([0, 6, 3])


def read(folder):
    """Read tag -> {step: PNG}."""
    return {
        tag: {step: image[2] for step, image in steps.items()}
        for tag, steps in read_events(folder).items()
    }


def model(**kwargs):
    made = build_vit(preprocessing=keras_vit.ImagePreprocessing((22, 14)), **kwargs)
    made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def train(vit, callback, **kwargs):
    vit.fit(IMAGES, LABELS, callbacks=[callback], verbose=0, **kwargs)


def test_pictures_show_the_model_as_it_is(tmp_path):
    vit = model()
    train(vit, ModelPictures(tmp_path, IMAGES, every=2), epochs=3)
    pictures = read(tmp_path)
    assert set(pictures) == NAMES
    assert all(set(steps) == {2, 3} for steps in pictures.values()), "the last, too"
    drawn = figures.draw_distances(
        analysis.attention_distance(vit, IMAGES),
        analysis.distance.patch_distances((11, 7), (22, 14)).mean(),
    )
    shown = tf.io.decode_png(pictures["distance"][3]).numpy()
    np.testing.assert_array_equal(shown, figures.pixels(drawn))
    assert pictures["filters"][2] != pictures["filters"][3]


FEW_PICTURES = {"attention": "axial", "class_token": False, "pooling": "avg"}


@pytest.mark.slow
def test_a_continued_training_replaces_later_pictures(tmp_path):
    vit = model(**FEW_PICTURES)
    train(vit, ModelPictures(tmp_path, IMAGES), epochs=2)
    before = read(tmp_path)["filters"]
    train(vit, ModelPictures(tmp_path, IMAGES), epochs=3, initial_epoch=1)
    after = read(tmp_path)["filters"]
    assert set(after) == {1, 2, 3}
    assert after[1] == before[1]
    assert after[2] != before[2]


@pytest.mark.slow
def test_what_does_not_apply_is_left_out(tmp_path):
    vit = model(**FEW_PICTURES)
    train(vit, ModelPictures(tmp_path, IMAGES), epochs=1)
    assert set(read(tmp_path)) == {"filters", "positions"}


@pytest.mark.slow
def test_a_trainers_averages_are_shown(tmp_path, monkeypatch):
    """And by the chief only."""
    plain = model()
    config = OptimizerConfig("sgd", learning_rate=0.1, ema=0.9)
    trainer = trainer_class()(plain)
    trainer.compile(make_optimizer(config, 0.1, plain))
    seen = []

    def inspect_model(shown, images):
        assert images is IMAGES
        seen.append((shown, np.asarray(keras.ops.copy(plain.weights[-1].value))))
        return analysis.inspection.Inspection({}, {}, {})

    monkeypatch.setattr(model_pictures, "inspect_model", inspect_model)
    labels = np.eye(7, dtype="float32")[LABELS]
    callbacks = [
        ModelPictures(tmp_path / "a", IMAGES),
        ModelPictures(tmp_path / "b", IMAGES, chief=False),
    ]
    trainer.fit(IMAGES, labels, epochs=2, callbacks=callbacks, verbose=0)
    assert len(seen) == 2
    assert all(shown is plain for shown, _ in seen)
    with trainer.averaged_weights():
        averages = keras.ops.convert_to_numpy(plain.weights[-1].value)
    np.testing.assert_array_equal(seen[-1][1], averages)
    assert not np.array_equal(averages, keras.ops.convert_to_numpy(plain.weights[-1]))
    assert not (tmp_path / "b").exists()


RECIPE = changed(
    TINY_RECIPE,
    epochs=3,
    batch_size=16,
    data={"train": "train[:32]", "test": "train[80:95]", "validation": 0},
    report={"attention_every": 2},
)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A function that trains in a folder of this name."""
    leave_out_pictures(monkeypatch.setattr)
    monkeypatch.setattr(callbacks, "PICTURED_IMAGES", 5)

    def train(name, **changes):
        fit(changed(RECIPE, **changes), tmp_path / name, draw=False)
        return tmp_path / name

    return train


def assert_pictured(run):
    """In the second and the last epoch."""
    pictures = read(run / "tensorboard" / "model")
    assert {name: set(steps) for name, steps in pictures.items()} == {
        name: {2, 3} for name in NAMES
    }


@pytest.mark.parametrize("part", ["validation", "train"])
def test_they_are_of_the_first_validation_images_or_else_training_images(
    tmp_path, monkeypatch, part
):
    monkeypatch.setattr(callbacks, "PICTURED_IMAGES", 5)
    pixels = keras_vit.ImagePreprocessing(8)
    model = small(image_size=8, channels=1, preprocessing=pixels)
    strategy = tf.distribute.get_strategy()
    trainer = types.SimpleNamespace(model=model, distribute_strategy=strategy)
    recorder = types.SimpleNamespace(folder=tmp_path, trainer=trainer)
    data = {"validation": "train[95:107]" if part == "validation" else 0}
    recipe = changed(RECIPE, data=data)
    splits = load_splits(recipe.data, 1)
    [callback] = callbacks.model_pictures(recipe, splits, recorder)
    images = [getattr(splits, part).read(tf.constant(n)) for n in range(5)]
    np.testing.assert_array_equal(callback.images, images)


@pytest.mark.slow
def test_a_run_has_them_of_its_training_images_and_is_not_changed(trained):
    pictured, plain = (
        trained("pictured"),
        trained("plain", report={"attention_every": 0}),
    )
    assert_pictured(pictured)
    assert not (plain / "tensorboard" / "model").exists()
    np.testing.assert_equal(weights(pictured), weights(plain))


MIRRORED = """
import sys
from replica_runs import make_replicas
strategy = make_replicas(2)
from test_model_pictures import RECIPE
from training.fitting import fit
fit.make_strategy = lambda recipe: strategy
fit.fit(RECIPE, sys.argv[1])
"""


@pytest.mark.slow
def test_two_replicas_have_one_set_of_pictures(tmp_path):
    python_process.run("-c", MIRRORED, tmp_path / "run", beside=__file__)
    assert_pictured(tmp_path / "run")
