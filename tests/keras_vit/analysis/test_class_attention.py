"""Attention of the output by head and by rollout, against NumPy."""

import gc
import weakref

import numpy as np
import numpy_vit
import pytest
from long_cases import long_after
from tiny_model import build_vit

import keras_vit
from keras_vit.analysis import NotApplicableError, attention_rollout, class_attention

pytestmark = pytest.mark.backend


def check(attention, expected):
    assert attention.shape == (2, 5, 11, 7)
    np.testing.assert_allclose(attention.reshape(2, 5, 77), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "kwargs",
    long_after(2, [{"register_tokens": 3}, {"pooling": None}, {}, {"qk_norm": True}]),
)
def test_it_is_the_class_tokens(tiny_vit, images, kwargs):
    model = tiny_vit(**kwargs)
    weights = numpy_vit.block_weights(model, images())
    for block in (0, -1):
        expected = weights[block][:, :, 0, model.prefix_tokens :]
        check(class_attention(model, images(), block, batch_size=1), expected)


@pytest.mark.parametrize("kwargs", [{"class_token": False}, {"register_tokens": 2}])
def test_of_a_mean_it_is_the_mean_of_the_patches(tiny_vit, images, kwargs):
    model = tiny_vit(pooling="avg", depth=1, **kwargs)
    weights = numpy_vit.block_weights(model, images())[-1]
    patches = weights[:, :, model.prefix_tokens :, model.prefix_tokens :]
    check(class_attention(model, images()), patches.mean(axis=2))


@pytest.mark.parametrize(
    "kwargs",
    long_after(
        2,
        [
            {},
            {"pooling": "query"},
            {"class_token": False},
            {"register_tokens": 2},
        ],
    ),
)
def test_of_attention_pooling_it_is_the_probes(tiny_vit, images, kwargs):
    model = tiny_vit(**{"pooling": "map", "depth": 1, **kwargs})
    weights = numpy_vit.pooling_weights(model, images())
    expected = weights[:, :, 0, int(model.class_token) :]
    check(class_attention(model, images()), expected)


@pytest.mark.parametrize(
    "kwargs", long_after(1, [{}, {"class_token": False, "pooling": "avg"}])
)
def test_rollout_multiplies_what_the_paper_multiplies(tiny_vit, images, kwargs):
    model = tiny_vit(**kwargs, depth=3)
    expected = numpy_vit.rollout(model, images())
    rollout = attention_rollout(model, images())
    np.testing.assert_allclose(rollout, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
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
    with pytest.raises(ValueError, match="pooling='query'.*Received: block=0"):
        class_attention(tiny_vit(pooling="query"), images(), block=0)
