"""Rematerialized blocks: of every kind, with every other wrapper, as without."""

import keras
import numpy as np
import pytest
import python_process
import tensorflow as tf
from long_cases import long_after
from tiny_model import build_vit, with_random_weights

import keras_vit
from training.engine.lora import enable_lora
from training.engine.rematerialize import rematerialize_blocks

DROPPED = {"dropout": 0.3, "attention_dropout": 0.2, "stochastic_depth": 0.3}
PATCHES = {"class_token": False, "pooling": "avg"}
ONE = {"depth": 1}
BLOCKS = {
    "all_options": ONE
    | {"pooling": "avg", "swiglu": True, "qk_norm": True}
    | {"layer_scale": 0.5, "register_tokens": 2, "patch_dropout": 0.4},
    "class_token_alone": {},
    "positions_in_each": ONE | PATCHES | {"position_placement": "every_layer"},
    "relative": ONE | PATCHES | {"position_embedding": "relative"},
    "shared_relative": PATCHES
    | {"position_embedding": "relative", "position_placement": "shared"},
    "axial": ONE | PATCHES | {"attention": "axial"},
}
IMAGES = np.random.default_rng(3).uniform(-1, 1, (3, 22, 14, 3)).astype("float32")
LABELS = np.array([2, 0, 6])


def lora(model):
    enable_lora(model, 2, ("query", "out", "mlp"))


def wrapped(blocks, *wrappers, **kwargs):
    """A model with random weights; those of one kind draw the same masks."""
    model = build_vit(**{**DROPPED, **BLOCKS[blocks], **kwargs})
    for wrap in wrappers:
        wrap(model)
    return with_random_weights(model, 7)


def step(model):
    """Losses and gradients of a training step."""
    with tf.GradientTape() as tape:
        logits = model(IMAGES, training=True)
        losses = keras.losses.sparse_categorical_crossentropy(LABELS, logits, True)
    variables = [weight.value for weight in model.trainable_variables]
    return [losses, *tape.gradient(losses, variables)]


@pytest.mark.parametrize("blocks", long_after(1, BLOCKS))
def test_gradients_masks_and_readers_are_the_same_alone_and_with_lora(blocks):
    ours, theirs = wrapped(blocks, rematerialize_blocks), wrapped(blocks)
    check_gradients(ours, theirs)
    for model in (ours, theirs):
        lora(model)
        with_random_weights(model, 7)
    check_gradients(ours, theirs)
    check_readers(ours, theirs)


def check_gradients(ours, theirs):
    """Without a graph, too: there a mask that is drawn again can be the next step's."""
    found, expected = (
        [*step(model), model(IMAGES, training=True)] for model in (ours, theirs)
    )
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)


def check_readers(ours, theirs):
    readers = [
        lambda model: model.features_model([*range(model.depth)], prefix_tokens=True)
    ]
    if ours.attention == "full":
        readers += [
            keras_vit.VisionTransformer.attention_weights_model,
            keras_vit.VisionTransformer.attention_rollout_model,
        ]
    for reader in readers:
        found, expected = (
            keras.tree.flatten(reader(model)(IMAGES)) for model in (ours, theirs)
        )
        for value, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(value, wanted)


def graph(jit_compile=False, *wrappers, **kwargs):
    """`step` of a model as a graph, and the model."""
    model = wrapped("class_token_alone", *wrappers, **kwargs)
    function = tf.function(
        lambda: step(model), autograph=False, jit_compile=jit_compile
    )
    return function, model


@pytest.fixture(scope="module")
def both():
    """With and without."""
    return graph(False, rematerialize_blocks), graph()


def check_steps(ours, theirs):
    losses = []
    for _ in range(3):  # each step has another mask
        found, expected = ours(), theirs()
        losses.append(found[0].numpy().sum())
        for value, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)
    assert len(set(losses)) == 3


def test_graphs_have_the_same_gradients(both):
    (ours, _), (theirs, _) = both
    check_steps(ours, theirs)


@pytest.mark.slow
def test_compiled_graphs_have_the_same_gradients():
    (ours, _), (theirs, _) = graph(True, rematerialize_blocks), graph(True)
    check_steps(ours, theirs)


def test_activations_are_computed_twice(both):
    def softmaxes(step):
        nodes = step.get_concrete_function().graph.get_operations()
        return [node.type for node in nodes].count("Softmax")

    (ours, _), (theirs, _) = both
    assert (softmaxes(theirs), softmaxes(ours)) == (2, 4)


@pytest.mark.slow
def test_half_precision_stays_finite():
    ours, _ = graph(False, rematerialize_blocks, dtype="mixed_bfloat16")
    assert all(np.isfinite(value).all() for value in ours())


def test_the_file_does_not_change(both, tmp_path):
    (_, ours), (_, theirs) = both
    ours.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    config, expected = again.get_config(), theirs.get_config()
    assert config | {"name": ""} == expected | {"name": ""}
    np.testing.assert_array_equal(again(IMAGES), theirs(IMAGES))
    assert "call" not in vars(again.get_layer("encoder_block_0"))


JAX_STEPS = """
import json, sys, jax, keras, numpy as np
from training.architectures.recipe_model import build_model
from training.recipe import ModelConfig

def steps(rematerialize):
    keras.utils.set_random_seed(4)
    config = ModelConfig(
        variant=None, patch_size=4, width=12, depth=2, mlp_dim=16, heads=3,
        image_size=16, dropout=0.3, rematerialize=rematerialize,
        position_embedding="relative", position_placement="shared",
    )
    model = build_model(config, ("a", "b", "c"))
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(random.normal(scale=0.2, size=weight.shape))
    images = random.integers(0, 256, (6, 16, 16, 3)).astype("uint8")
    labels = np.eye(3)[[0, 1, 2, 0, 1, 2]]

    def loss(weights, seeds):
        logits, seeds = model.stateless_call(weights, seeds, images, training=True)
        return keras.losses.categorical_crossentropy(labels, logits, True).mean(), seeds

    weights = [v.value for v in model.trainable_variables]
    seeds = [v.value for v in model.non_trainable_variables]
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    for _ in range(2):
        (_, seeds), gradients = step(weights, seeds)
    return gradients, seeds, str(jax.make_jaxpr(step)(weights, seeds)).count("remat")

gradients, seeds, _ = steps(False)
ours, our_seeds, count = steps(True)
assert count >= 2
assert min(float(abs(g).max()) for g in gradients) > 0
for a, b in zip(gradients + seeds, ours + our_seeds, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
"""


@pytest.mark.slow
def test_gradients_are_the_same_on_jax():
    pytest.importorskip("jax")
    python_process.run("-c", JAX_STEPS, **python_process.on("jax"))
