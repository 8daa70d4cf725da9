"""LoRA: what is trained, and that what is saved is an ordinary model."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from run_files import CopyAsKilled, weights
from tiny_model import with_random_weights
from tiny_recipe import TINY_MODEL, TINY_RECIPE, changed

from training.architectures.model_reading import read_classifier
from training.architectures.recipe_model import build_model
from training.engine.lora import enable_lora, merged
from training.errors import RecipeError
from training.fitting.fit import fit
from training.recipe import ModelConfig

pytestmark = pytest.mark.usefixtures("eagerly")
CLASSES = tuple("0123456789")
IMAGES = np.random.default_rng(0).uniform(0, 255, (3, 8, 8, 1)).astype("float32")
RECIPE = changed(
    TINY_RECIPE,
    model={"lora_rank": 2, "lora_layers": ("query", "mlp")},
    optimizer={"learning_rate": 0.1},
    epochs=2,
    batch_size=50,
    data={"train": "train[:150]", "test": "train[150:200]"},
)


def adapted_model(dtype="float32", **kwargs):
    """With random weights, the adapters among them."""
    config = dataclasses.replace(RECIPE.model, **kwargs)
    return with_random_weights(build_model(config, CLASSES, dtype), 1)


def arrays(model):
    return [np.asarray(w) for w in model.weights]


def test_only_adapters_and_classifier_are_trained():
    names = {w.path for w in adapted_model().trainable_weights}
    block = "encoder_block_0"
    layers = ("attention/query", "mlp/Dense_0", "mlp/Dense_1")
    adapters = {f"{block}/{name}/lora_kernel_{m}" for name in layers for m in "ab"}
    assert names == adapters | {"head/kernel", "head/bias"}


def test_every_block_of_the_default_is_adapted_in_six_layers():
    config = dataclasses.replace(TINY_MODEL, depth=3, lora_rank=4)
    model = build_model(config, CLASSES)
    adapted = [w.path for w in model.trainable_weights if "lora_kernel_a" in w.path]
    assert len(adapted) == 3 * 6


def test_a_new_adapter_changes_nothing():
    model = build_model(TINY_MODEL, CLASSES)
    before = model.predict(IMAGES, verbose=0)
    enable_lora(model, 2, ("query", "out"))
    np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), before)


def test_merged_kernels_are_the_equation_and_go_again():
    """Equation (3) of the paper with alpha = r: W + A B."""
    model = adapted_model()
    query = model.get_layer("encoder_block_0").attention.query
    a, b = np.asarray(query.lora_kernel_a), np.asarray(query.lora_kernel_b)
    before, wanted = arrays(model), np.asarray(query._kernel) + a @ b
    logits = np.asarray(model(IMAGES))
    with merged(model):
        np.testing.assert_allclose(query.kernel, wanted, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(model(IMAGES), logits, atol=1e-5)
    np.testing.assert_equal(arrays(model), before)
    np.testing.assert_array_equal(model(IMAGES), logits)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, with a copy of its folder as a kill would have left it."""
    folder = tmp_path_factory.mktemp("lora") / "run"
    copying = CopyAsKilled(folder, folder.with_name("killed"), batch=1)
    fit(RECIPE, folder, draw=False, callbacks=[copying])
    return folder


@pytest.mark.slow
def test_the_saved_model_is_an_ordinary_one(run):
    model = read_classifier(run / "last.keras")
    plain = build_model(TINY_MODEL, CLASSES)
    assert [w.path for w in model.weights] == [w.path for w in plain.weights]
    assert all(w.trainable for w in model.get_layer("head").weights)


@pytest.mark.slow
def test_what_is_not_adapted_is_frozen(run):
    keras.utils.set_random_seed(RECIPE.seed)
    initial = build_model(TINY_MODEL, CLASSES)
    trained = read_classifier(run / "last.keras")
    changed = {
        old.path
        for old, new in zip(initial.weights, trained.weights, strict=True)
        if not np.array_equal(old, new)
    }
    names = ("attention/query", "mlp/Dense_0", "mlp/Dense_1")
    kernels = {f"encoder_block_0/{name}/kernel" for name in names}
    assert changed == kernels | {"head/kernel", "head/bias"}


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_weights(run):
    killed = run.with_name("killed")
    fit(RECIPE, killed, resume=True, draw=False)
    np.testing.assert_equal(weights(killed), weights(run))


def test_mixed_precision_saves_the_sum_in_float32(tmp_path):
    """Keras by itself writes it rounded to bfloat16."""
    model = adapted_model("mixed_bfloat16")
    query = model.get_layer("encoder_block_0").attention.query
    a, b = np.asarray(query.lora_kernel_a), np.asarray(query.lora_kernel_b)
    wanted = np.asarray(query._kernel) + a @ b
    with merged(model):
        model.save(tmp_path / "model.keras")
    saved = read_classifier(tmp_path / "model.keras")
    kernel = saved.get_layer("encoder_block_0").attention.query.kernel
    np.testing.assert_allclose(kernel, wanted, rtol=0, atol=1e-6)


def test_rematerialized_blocks_train_their_adapters():
    model = adapted_model(rematerialize=True)
    with tf.GradientTape() as tape:
        logits = model(IMAGES, training=True)
    gradients = tape.gradient(logits, model.trainable_variables)
    plain = adapted_model()
    with tf.GradientTape() as tape:
        logits = plain(IMAGES, training=True)
    for ours, theirs in zip(
        gradients, tape.gradient(logits, plain.trainable_variables), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lora_rank": 0}, "`model.lora_rank` must be.* at least 1.*Received: 0"),
        ({"lora_rank": 2, "lora_layers": ()}, "`model.lora_layers`.*at least one of"),
    ],
)
def test_wrong_ranks_and_layers_are_refused(change, message):
    with pytest.raises(RecipeError, match=message):
        dataclasses.replace(TINY_MODEL, **change)


def test_other_architectures_have_no_lora():
    config = ModelConfig(architecture="bit", variant="R50x1", lora_rank=4)
    with pytest.raises(
        RecipeError, match=r"`model.lora_rank` must be left out for bit"
    ):
        build_model(config, CLASSES)


def test_self_supervision_has_no_lora():
    with pytest.raises(RecipeError, match="`model.lora_rank` must be null with"):
        changed(RECIPE, self_supervision={"task": "mae"})
