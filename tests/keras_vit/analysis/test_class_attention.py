"""Attention of the output by head and by rollout, against NumPy."""

import gc
import weakref

import numpy as np
import numpy_vit
import pytest
from tiny_model import build_vit

import keras_vit
from keras_vit.analysis import NotApplicableError, attention_rollout, class_attention

pytestmark = pytest.mark.backend


def block_weights(model, pixels):
    """Attention weights [B, A, N, N] of every block, and the last one's tokens."""
    w = numpy_vit.weights_of(model)
    states = numpy_vit.encoder(model, pixels)
    weights = []
    for index, (tokens, _) in enumerate(states):
        block = f"encoder_block_{index}"
        norm = numpy_vit.layer_norm(tokens, w, f"{block}/norm1")
        name = f"{block}/attention"
        weights.append(numpy_vit.attention_weights(norm, w, name, model))
    return weights, states[-1][1]


def check(attention, expected):
    assert attention.shape == (2, 5, 11, 7)
    np.testing.assert_allclose(attention.reshape(2, 5, 77), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "kwargs", [{}, {"register_tokens": 3}, {"pooling": None}, {"qk_norm": True}]
)
@pytest.mark.parametrize("block", [0, -1])
def test_it_is_the_class_tokens(tiny_vit, images, kwargs, block):
    model = tiny_vit(**kwargs)
    weights, _ = block_weights(model, images())
    expected = weights[block][:, :, 0, model.prefix_tokens :]
    check(class_attention(model, images(), block, batch_size=1), expected)


@pytest.mark.parametrize("kwargs", [{"class_token": False}, {"register_tokens": 2}])
def test_of_a_mean_it_is_the_mean_of_the_patches(tiny_vit, images, kwargs):
    model = tiny_vit(pooling="avg", **kwargs)
    weights, _ = block_weights(model, images())
    patches = weights[-1][:, :, model.prefix_tokens :, model.prefix_tokens :]
    check(class_attention(model, images()), patches.mean(axis=2))


@pytest.mark.parametrize("kwargs", [{}, {"class_token": False}, {"register_tokens": 2}])
def test_of_attention_pooling_it_is_the_probes(tiny_vit, images, kwargs):
    model = tiny_vit(pooling="map", **kwargs)
    w = numpy_vit.weights_of(model)
    z = block_weights(model, images())[1]
    z = numpy_vit.layer_norm(z, w, "encoder_norm")
    z = np.concatenate([z[:, : int(model.class_token)], z[:, model.prefix_tokens :]], 1)
    probe = np.broadcast_to(w["attention_pooling/probe"], (2, 1, 15))
    weights = numpy_vit.attention_weights(
        z, w, "attention_pooling/attention", model, probe
    )
    expected = weights[:, :, 0, int(model.class_token) :]
    check(class_attention(model, images()), expected)


@pytest.mark.parametrize("kwargs", [{}, {"class_token": False, "pooling": "avg"}])
def test_rollout_multiplies_what_the_paper_multiplies(tiny_vit, images, kwargs):
    model = tiny_vit(**kwargs, depth=3)
    product = np.eye(77 + model.prefix_tokens)
    for weights in block_weights(model, images())[0]:
        residual = 0.5 * (weights.mean(axis=1) + np.eye(weights.shape[-1]))
        product = residual @ product
    prefix = model.prefix_tokens
    rows = product[:, 0] if model.class_token else product.mean(axis=1)
    expected = rows[:, prefix:] / rows[:, prefix:].sum(-1, keepdims=True)
    rollout = attention_rollout(model, images())
    np.testing.assert_allclose(rollout.reshape(2, 77), expected, rtol=0, atol=1e-6)


def test_parts_are_made_once_and_go_with_the_model(images):
    """Keras would keep every one of them as a branch of the model's graph."""
    model = build_vit()
    norm = model.get_layer("encoder_block_1").norm1
    for _ in range(3):
        class_attention(model, images())
        attention_rollout(model, images())
    branches = len(model.get_layer("encoder_block_0")._outbound_nodes)
    # The next block, for all tokens and for the class token alone, and that token.
    assert branches == 3 + 2, "and one of each analysis"
    before = class_attention(model, images())
    norm.gamma.assign(3 * norm.gamma)
    assert np.abs(class_attention(model, images()) - before).max() > 0.01
    model = weakref.ref(model)
    gc.collect()
    assert model() is None


def test_models_without_what_is_shown_are_refused(tiny_vit, images):
    axial = tiny_vit(attention="axial", class_token=False, pooling="avg")
    no_output = tiny_vit(class_token=False, pooling=None)
    resnet = keras_vit.ResNet(blocks=(1,), image_size=(22, 14), name="bit")
    for analysis in (class_attention, attention_rollout):
        with pytest.raises(NotApplicableError, match="Received: attention='axial'"):
            analysis(axial, images())
        with pytest.raises(NotApplicableError, match="Received: ResNet 'bit'"):
            analysis(resnet, images())
        with pytest.raises(NotApplicableError, match="Received: pooling=None"):
            analysis(no_output, images())


def test_blocks_that_are_not_there_are_refused(tiny_vit, images):
    with pytest.raises(ValueError, match="Received: blocks="):
        class_attention(tiny_vit(), images(), block=2)
    with pytest.raises(ValueError, match="Received: block=0"):
        class_attention(tiny_vit(pooling="map"), images(), block=0)
