"""Rotary positions: tables, precision, other image sizes, changes in training."""

import functools

import keras
import numpy as np
import numpy_vit
import pytest
from tiny_model import numpy

import keras_vit
from keras_vit import layers
from keras_vit.layers import self_attention

pytestmark = pytest.mark.backend

WIDE = {"width": 24, "heads": 3}
CHANGES = {"rotary_shift": 0.5, "rotary_jitter": 1.5, "rotary_rescale": 2.0}
make = functools.partial(layers.RotaryPositions, (2, 3), 3, 2)


@pytest.fixture
def tokens():
    return np.zeros((5, 8, 24), "float32")


@pytest.mark.parametrize("kind", ["centered", "grid", "mixed"])
def test_tokens_before_the_patches_are_not_rotated(kind, tokens):
    table = numpy(make(rotary=kind)(tokens))
    assert table.shape == ((2, 2, 8, 3, 8) if kind == "mixed" else (1, 2, 8, 1, 8))
    np.testing.assert_array_equal(table[:, 0, :2], 1)
    np.testing.assert_array_equal(table[:, 1, :2], 0)
    assert np.abs(table[:, 1, 2:]).max() > 0.1


def test_mixed_frequencies_begin_as_perpendicular_directions(tokens):
    keras.utils.set_random_seed(3)
    layer = make(rotary="mixed", rotary_temperature=9.0)
    layer.build(tokens.shape)
    frequencies = numpy(layer.frequencies)
    lengths = np.linalg.norm(frequencies, axis=0)
    expected = np.broadcast_to([1, 1 / 3, 1, 1 / 3], lengths.shape)
    np.testing.assert_allclose(lengths, expected, rtol=1e-5)
    first, second = frequencies[..., :2], frequencies[..., 2:]
    np.testing.assert_allclose((first * second).sum(0), 0, atol=1e-6)
    assert len(np.unique(frequencies[0, ..., 0].round(4))) == 2 * 3


def test_tables_are_not_rounded_to_half_precision(tiny_vit, images, monkeypatch):
    seen = []

    def rotate(heads, table, pairing):
        seen.append((heads.dtype, table.dtype))
        return rotated(heads, table, pairing)

    rotated = self_attention.rotate
    monkeypatch.setattr(self_attention, "rotate", rotate)
    model = tiny_vit(**WIDE, rotary="mixed", dtype="mixed_bfloat16")
    model(images())
    model.attention_weights_model()(images())
    dtypes = {tuple(map(keras.backend.standardize_dtype, pair)) for pair in seen}
    assert dtypes == {("bfloat16", "float32")}


@pytest.mark.parametrize("kind", ["centered", "grid", "mixed"])
def test_another_image_size_has_its_own_tables(tiny_vit, kind):
    options = {"rotary": kind, "position_embedding": "none"}
    model = keras_vit.with_image_size(tiny_vit(**WIDE, **options), (8, 18))
    pixels = np.random.default_rng(6).uniform(-1, 1, (2, 8, 18, 3)).astype("float32")
    numpy_vit.check_outputs(model, pixels)


@pytest.mark.parametrize("kind", ["centered", "grid", "mixed"])
def test_coordinates_change_in_training_alone_by_one_draw(kind, tokens):
    keras.utils.set_random_seed(3)
    layer, usual = make(rotary=kind, **CHANGES), make(rotary=kind)
    for each in (layer, usual):
        each.build(tokens.shape)
    usual.set_weights(layer.get_weights())
    expected = numpy(usual(tokens))
    np.testing.assert_array_equal(numpy(layer(tokens)), expected)
    np.testing.assert_array_equal(numpy(usual(tokens, training=True)), expected)
    first, second = (numpy(layer(tokens, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 0.01
    np.testing.assert_array_equal(first[:, :, :2], expected[:, :, :2])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rotary_shift": 0.5}, lambda y, x: (y + 0.5 * 0.5, x - 0.5 * 0.5)),
        ({"rotary_jitter": 4.0}, lambda y, x: (y * 2, x / 2)),
        ({"rotary_rescale": 9.0}, lambda y, x: (y * 3, x * 3)),
        (
            {"rotary_shift": 0.5, "rotary_jitter": 4.0, "rotary_rescale": 9.0},
            lambda y, x: ((y + 0.25) * 6, (x - 0.25) * 1.5),
        ),
    ],
)
def test_a_shift_comes_before_the_scales_of_axes_and_that_of_both(
    changes, expected, tokens, monkeypatch
):
    """Draws three quarters of the way up for rows and both, one quarter for columns."""

    def uniform(shape, low, high, **kwargs):
        return np.array([0.75, 0.25][: shape[0]], "float32") * (high - low) + low

    monkeypatch.setattr(keras.random, "uniform", uniform)
    table = numpy(make(rotary="centered", **changes)(tokens, training=True))[0]
    places = [(y, x) for y in (-0.5, 0.5) for x in (-2 / 3, 0, 2 / 3)]
    changed = np.array([expected(*place) for place in places])
    for axis, wave in ((0, 0), (1, 2)):  # the first of each axis' frequencies
        angles = 2 * np.pi * changed[:, axis]
        np.testing.assert_allclose(table[0, 2:, 0, wave], np.cos(angles), atol=1e-5)
        np.testing.assert_allclose(table[1, 2:, 0, wave + 4], np.sin(angles), atol=1e-5)
