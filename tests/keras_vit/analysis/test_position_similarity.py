"""Similarity of position embeddings, against NumPy."""

import numpy as np
import numpy_vit
import pytest
from long_cases import long_after

import keras_vit
from keras_vit.analysis import NotApplicableError, position_similarity

pytestmark = pytest.mark.backend

SINCOS = {"width": 20}  # a multiple of 4
CASES = [
    {"register_tokens": 3, "prefix_positions": False},
    {"position_embedding": "sincos2d_mae", **SINCOS, "position_placement": "shared"},
    {"dtype": "mixed_bfloat16"},
    {"resnet_blocks": (), "image_size": (40, 24), "patch_size": 2},
    {},
    {"position_embedding": "learned_2d", "width": 30},
    {"position_embedding": "sincos2d", **SINCOS},
    {"position_placement": "shared", "class_token": False, "pooling": "avg"},
]


def cosine(a, b):
    return a @ b / np.sqrt((a @ a) * (b @ b))


def expected_similarity(vectors, grid):
    """One pair of patches after the other."""
    cosines = [[cosine(a, b) for b in vectors] for a in vectors]
    return np.array(cosines).reshape(*grid, *grid)


@pytest.mark.parametrize("kwargs", long_after(4, CASES))
def test_it_is_the_cosine_of_what_is_added_to_the_patches(tiny_vit, kwargs):
    model = tiny_vit(**kwargs)
    w = numpy_vit.weights_of(model)
    vectors = numpy_vit.positions(model, w, "position_embedding")
    expected = expected_similarity(vectors[model.prefix_tokens :], model.grid)
    similarity = position_similarity(model)
    assert similarity.shape == (*model.grid, *model.grid)
    np.testing.assert_allclose(similarity, expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["learned_1d", "learned_2d", "sincos2d"])
def test_each_block_may_have_its_own(tiny_vit, kind):
    model = tiny_vit(
        position_embedding=kind, position_placement="every_layer", width=20
    )
    w = numpy_vit.weights_of(model)
    for block in (0, 1):
        vectors = numpy_vit.positions(model, w, f"position_embedding_{block}")
        expected = expected_similarity(vectors[1:], model.grid)
        np.testing.assert_allclose(
            position_similarity(model, block), expected, atol=1e-6
        )


@pytest.mark.parametrize("placement", ["every_layer", "shared"])
def test_relative_ones_are_compared_with_the_offset_zero(tiny_vit, placement):
    model = tiny_vit(
        position_embedding="relative",
        position_placement=placement,
        register_tokens=2,
    )
    names = {
        "every_layer": "encoder_block_1/attention/relative_embedding",
        "shared": "relative_position/embedding",
    }
    table = numpy_vit.weights_of(model)[names[placement]]
    tokens = 77 + 3
    assert len(table) == 2 * tokens - 1
    similarity = position_similarity(model, block=1).reshape(77, 77)
    for patch, other in ((0, 0), (0, 76), (76, 0), (13, 20), (50, 8)):
        expected = cosine(table[tokens - 1], table[tokens - 1 + other - patch])
        assert similarity[patch, other] == pytest.approx(expected)
    np.testing.assert_allclose(similarity.diagonal(), 1)


def test_positions_of_zeros_are_like_no_others(tiny_vit):
    model = tiny_vit()
    model.get_layer("position_embedding").embedding.assign(np.zeros((1, 78, 15)))
    assert not position_similarity(model).any()


def test_models_without_positions_are_refused(tiny_vit):
    with pytest.raises(NotApplicableError, match="position_embedding='none'"):
        position_similarity(tiny_vit(position_embedding="none"))
    resnet = keras_vit.ResNet(blocks=(1,), image_size=(22, 14), name="bit")
    with pytest.raises(NotApplicableError, match="Received: ResNet 'bit'"):
        position_similarity(resnet)
    for block in (2, -1):
        with pytest.raises(ValueError, match=f"Received: block={block}"):
            position_similarity(tiny_vit(), block)
