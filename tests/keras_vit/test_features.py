"""Features and attention weights, by models that leave the Vision Transformer as is."""

import io

import keras
import numpy as np
import numpy_vit
import pytest
from long_cases import long_after
from tiny_model import TINY, numpy

pytestmark = pytest.mark.backend


def summary(model):
    text = io.StringIO()
    model.summary(print_fn=lambda line: text.write(line + "\n"))
    return text.getvalue()


AXIAL = {"attention": "axial", "class_token": False, "pooling": "avg"}
FORMS = [
    {"register_tokens": 4, "position_embedding": "relative"},
    {},
    {"position_embedding": "relative", "position_placement": "shared"},
    {"position_placement": "shared", "qk_norm": True, "depth": 3},
    AXIAL,
]


@pytest.mark.parametrize("kwargs", [*long_after(2, FORMS[:-1]), AXIAL])
def test_features_are_the_blocks_outputs(tiny_vit, images, kwargs):
    model = tiny_vit(**kwargs)
    states = numpy_vit.encoder(model, images())
    outputs = model.features_model(range(model.depth), prefix_tokens=True)(images())
    for output, (_, expected) in zip(outputs, states, strict=True):
        np.testing.assert_allclose(numpy(output), expected, rtol=0, atol=2e-5)


def test_features_are_patches_of_the_last_block_by_default(tiny_vit, images):
    model = tiny_vit(register_tokens=4)
    everything = model.features_model(1, prefix_tokens=True)(images())
    patches = model.features_model()(images())
    assert patches.shape == (2, 77, 15)
    np.testing.assert_array_equal(numpy(patches), numpy(everything)[:, 5:])


def test_a_map_has_each_patch_at_its_place(tiny_vit, images):
    model = tiny_vit(depth=3)
    tokens = model.features_model((0, -2))(images())
    maps = model.features_model((0, -2), layout="map")(images())
    for patches, feature_map in zip(tokens, maps, strict=True):
        assert feature_map.shape == (2, 11, 7, 15)
        for y, x in ((0, 0), (10, 6), (3, 5)):
            np.testing.assert_array_equal(feature_map[:, y, x], patches[:, y * 7 + x])


@pytest.mark.parametrize("kwargs", long_after(2, FORMS[:-1]))
def test_attention_weights_equal_the_equation(tiny_vit, images, kwargs):
    model = tiny_vit(**kwargs)
    weights = numpy_vit.block_weights(model, images())
    outputs = model.attention_weights_model()(images())
    assert len(outputs) == model.depth
    for output, expected in zip(outputs, weights, strict=True):
        np.testing.assert_allclose(numpy(output), expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(numpy(output).sum(-1), 1, rtol=0, atol=1e-5)


def test_attention_weights_of_one_block_need_no_later_block(tiny_vit, images):
    model = tiny_vit(depth=3)
    middle = model.attention_weights_model(-2)
    np.testing.assert_array_equal(
        numpy(middle(images())), numpy(model.attention_weights_model()(images())[1])
    )
    names = {layer.name for layer in middle.layers}
    assert "encoder_block_0" in names
    assert not names & {"encoder_block_1", "encoder_block_2", "encoder_norm", "head"}


def test_the_model_stays_as_it_is(tiny_vit, images, tmp_path):
    model = tiny_vit(dropout=0.1)
    before = summary(model), model.get_config(), [w.path for w in model.weights]
    weights, expected = model.get_weights(), numpy(model(images()))
    parts = [
        model.features_model((0, 1), layout="map"),
        model.features_model(),
        model.attention_weights_model(),
    ]
    for part in parts:
        part(images())
        assert {id(w) for w in part.weights} <= {id(w) for w in model.weights}
    after = summary(model), model.get_config(), [w.path for w in model.weights]
    assert after == before
    for array, weight in zip(weights, model.weights, strict=True):
        np.testing.assert_array_equal(array, numpy(weight))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numpy(loaded(images())), expected)


def test_features_follow_the_models_weights(tiny_vit, images):
    model = tiny_vit()
    features, weights = model.features_model(), model.attention_weights_model(0)
    before = numpy(features(images())), numpy(weights(images()))
    noise = np.random.default_rng(1).normal(size=(2, 2, 3, 15))
    model.get_layer("embedding").kernel.assign_add(noise)
    after = numpy(features(images())), numpy(weights(images()))
    assert all(np.abs(a - b).max() > 0.01 for a, b in zip(before, after, strict=True))


@pytest.mark.slow
def test_models_of_features_and_attention_can_be_saved(tiny_vit, images, tmp_path):
    model = tiny_vit(position_embedding="relative", position_placement="shared")
    for part in (model.features_model((0, 1)), model.attention_weights_model((0, 1))):
        part.save(tmp_path / "part.keras")
        loaded = keras.models.load_model(tmp_path / "part.keras", safe_mode=True)
        assert loaded.count_params() == part.count_params()
        for output, expected in zip(loaded(images()), part(images()), strict=True):
            np.testing.assert_array_equal(numpy(output), numpy(expected))


def test_half_precision_gives_features_in_it_and_attention_in_float32(tiny_vit, images):
    model = tiny_vit(dtype="mixed_bfloat16")
    features = model.features_model()(images())
    weights = model.attention_weights_model(1)(images())
    assert keras.backend.standardize_dtype(features.dtype) == "bfloat16"
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    np.testing.assert_allclose(numpy(weights).sum(-1), 1, rtol=0, atol=1e-5)
    expected = tiny_vit().attention_weights_model(1)(images())
    np.testing.assert_allclose(numpy(weights), numpy(expected), rtol=0, atol=0.02)


@pytest.mark.slow
def test_features_train_a_new_top(tiny_vit, images):
    model = tiny_vit(depth=1)
    features = model.features_model(layout="map")
    scores = keras.layers.Conv2D(3, 1)(features.output)
    segmenter = keras.Model(features.input, scores)
    segmenter.compile("sgd", "mse")
    before = numpy(model.get_layer("embedding").kernel)
    segmenter.fit(images(), np.zeros((2, 11, 7, 3)), verbose=0)
    assert np.abs(numpy(model.get_layer("embedding").kernel) - before).max() > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: m.features_model(2), "2 encoder blocks, from -2 to 1.*blocks=2"),
        (lambda m: m.features_model((0, -3)), r"from -2 to 1.*blocks=\(0, -3\)"),
        (lambda m: m.attention_weights_model(5), "from -2 to 1.*blocks=5"),
        (lambda m: m.features_model(layout="grid"), "`layout` must be one of.*'grid'"),
        (
            lambda m: m.features_model(prefix_tokens=True, layout="map"),
            "no place on a map.*prefix_tokens=True",
        ),
        (
            lambda m: type(m)(**TINY, **AXIAL).attention_weights_model(),
            "need `attention='full'`.*'axial'",
        ),
    ],
)
def test_an_error_names_the_argument_and_what_came(tiny_vit, make, message):
    with pytest.raises(ValueError, match=message):
        make(tiny_vit())
