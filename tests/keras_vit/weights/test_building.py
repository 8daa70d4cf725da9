"""Models built from a checkpoint, and existing models at another image size."""

import json
import logging

import numpy as np
import numpy_vit
import pytest
import scipy.ndimage
from foreign_files import (
    arrays_of,
    check_same_weights,
    google,
    hugging_face,
    timm,
    write_npz,
)
from foreign_weights import bit
from long_cases import long_after
from tiny_model import build_vit, numpy

import keras_vit
from keras_vit import specs
from keras_vit.applications import application
from keras_vit.commands import main
from keras_vit.resnet import ResNet

pytestmark = pytest.mark.backend

POSITIONS = "position_embedding/embedding"
SQUARE = {"image_size": (8, 8), "patch_size": 2}
SIZE = {"width": 15, "depth": 2, "mlp_dim": 23, "heads": 5}


@pytest.fixture
def viny(monkeypatch):
    """`keras_vit`'s constructor of a size as small as the tests' model."""
    monkeypatch.setitem(specs.SPECS, "Viny", keras_vit.ViTSpec(**SIZE))
    poolings = ("token", "avg", "map", None)
    return application(keras_vit.VisionTransformer, "Viny/2", "ViTViny2", poolings)


def test_a_constructor_takes_the_settings_of_the_file(viny, tiny_vit, tmp_path):
    source = tiny_vit(**SQUARE, gelu="exact", layer_scale=0.1, register_tokens=2)
    path = timm(source, tmp_path)
    model = viny(weights=path, classifier_activation=None)
    check_same_weights(model, source)
    assert (model.image_size, model.classes, model.gelu) == ((8, 8), 7, "exact")
    assert (model.register_tokens, model.pooling) == (2, "token")
    pixels = np.random.default_rng(1).uniform(-1, 1, (2, 8, 8, 3))
    numpy_vit.check_outputs(model, pixels, source, atol=2e-5)


def test_scores_are_probabilities_as_in_keras_applications(viny, tiny_vit, tmp_path):
    path = google(tiny_vit(**SQUARE), tmp_path)
    scores = numpy(viny(weights=str(path))(np.zeros((2, 8, 8, 3))))
    np.testing.assert_allclose(scores.sum(-1), 1, rtol=1e-5)


def test_other_classes_get_a_new_classifier(viny, tiny_vit, tmp_path, caplog):
    source = tiny_vit(**SQUARE, representation_size=9)
    path = google(source, tmp_path)
    with caplog.at_level(logging.WARNING, "keras_vit"):
        model = viny(weights=path, classes=4, input_shape=(12, 10, 3))
    assert model.representation_size is None
    assert model.output_shape == (None, 4)
    check_same_weights(model, source, POSITIONS, "head/kernel", "head/bias")
    assert not arrays_of(model)["head/kernel"].any()
    assert "grid (4, 4) to (6, 5), method 'google'" in caplog.text
    assert "dropped: " in caplog.text


def test_the_same_number_of_classes_keeps_the_classifier(viny, tiny_vit, tmp_path):
    source = tiny_vit(**SQUARE, representation_size=9)
    model = viny(weights=google(source, tmp_path), classes=7)
    assert model.representation_size == 9
    check_same_weights(model, source)


@pytest.mark.parametrize("pooling", [None, "avg", "token"])
def test_include_top_false_gives_features(pooling, viny, tiny_vit, tmp_path):
    source = tiny_vit(**SQUARE)
    path = google(source, tmp_path)
    model = viny(include_top=False, weights=path, pooling=pooling)
    check_same_weights(model, source)
    shape = (None, 17, 15) if pooling is None else (None, 15)
    assert model.output_shape == shape


def test_resample_and_channels_are_passed_on(viny, tiny_vit, tmp_path):
    source = tiny_vit(**SQUARE)
    path = google(source, tmp_path)
    models = {
        method: viny(weights=path, input_shape=(12, 12, 1), resample=method)
        for method in ("google", "timm")
    }
    for method, model in models.items():
        expected = keras_vit.weights.resample_positions(
            arrays_of(source)[POSITIONS], (4, 4), (6, 6), 1, method
        )
        np.testing.assert_array_equal(arrays_of(model)[POSITIONS], expected)
        assert model.channels == 1


def test_another_size_than_the_files_is_an_error(viny, tiny_vit, tmp_path):
    path = google(tiny_vit(**{**SQUARE, "depth": 3, "mlp_dim": 29}), tmp_path)
    match = r"of the size Viny/2.*depth=3 instead of 2, mlp_dim=29 instead of 23"
    with pytest.raises(keras_vit.weights.CheckpointError, match=match):
        viny(weights=path)


def test_a_file_determines_the_model(tiny_vit, images, tmp_path):
    kwargs = {"gelu": "tanh", "norm_epsilon": 1e-5}
    source = tiny_vit(**kwargs)
    config = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "image_size": [22, 14]}
    path = hugging_face(source, tmp_path, **config)
    model = keras_vit.VisionTransformer.from_preset(path)
    check_same_weights(model, source)
    numpy_vit.check_outputs(model, images(), source, atol=2e-5)


def test_a_bit_file_determines_the_model(tmp_path):
    source = ResNet(image_size=32, blocks=(1, 2), classes=7)
    path = write_npz(tmp_path / "bit.npz", bit(arrays_of(source)))
    model = ResNet.from_preset(path, image_size=64, classes=4)
    assert (model.blocks, model.image_size) == ((1, 2), (64, 64))
    check_same_weights(model, source, "head/kernel", "head/bias")


def test_info_describes_a_bit_file(tmp_path, capsys):
    source = ResNet(image_size=32, blocks=(1, 2), width_factor=3, classes=7)
    path = write_npz(tmp_path / "bit.npz", bit(arrays_of(source)))
    assert main(["info", str(path)]) == 0
    assert "BiT (1, 2)x3" in capsys.readouterr().out


def test_unknown_numbers_of_heads_must_be_given(tiny_vit, tmp_path):
    path = timm(tiny_vit(**SQUARE, gelu="exact"), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match="`heads` must be given"):
        keras_vit.VisionTransformer.from_preset(path)
    assert keras_vit.VisionTransformer.from_preset(path, heads=5).heads == 5


# with_image_size

FORMS = [
    {"position_placement": "every_layer"},
    {"depth": 1, "register_tokens": 4, "pooling": "avg"},
    {"depth": 1, "position_embedding": "learned_2d", "width": 20},
    {"depth": 1, "image_size": (64, 32), "resnet_blocks": (1,), "patch_size": 4},
    {},
    {"depth": 1, "prefix_positions": False},
    {"position_placement": "shared", "layer_scale": 0.1},
    {"depth": 1, "class_token": False, "pooling": "map"},
    {
        "depth": 1,
        "position_embedding": "learned_2d",
        "width": 20,
        "register_tokens": 2,
    },
    {"depth": 1, "position_embedding": "sincos2d", "width": 20},
    {"depth": 1, "position_embedding": "none"},
]


@pytest.mark.parametrize("kwargs", long_after(3, FORMS))
def test_the_same_size_gives_the_same_model(kwargs, tiny_vit):
    source = tiny_vit(**kwargs)
    model = keras_vit.with_image_size(source, source.image_size)
    assert model is not source
    check_same_weights(model, source)
    pixels = np.random.default_rng(0).uniform(-1, 1, (2, *source.image_size, 3))
    np.testing.assert_array_equal(numpy(model(pixels)), numpy(source(pixels)))


@pytest.mark.parametrize("kwargs", long_after(6, FORMS))
def test_another_image_size_resamples_only_the_positions(kwargs, tiny_vit):
    source = tiny_vit(**kwargs)
    size = (32, 64) if "resnet_blocks" in kwargs else (14, 26)
    model = keras_vit.with_image_size(source, size)
    assert model.image_size == size
    old, new = arrays_of(source), arrays_of(model)
    positions = [path for path in new if path.startswith("position_embedding")]
    check_same_weights(model, source, *positions)
    for path in positions:
        prefix = old[path].shape[1] - source.grid[0] * source.grid[1]
        expected = resampled(path, old[path], source.grid, model.grid, prefix)
        np.testing.assert_allclose(new[path], expected, atol=1e-6)
    pixels = np.random.default_rng(0).uniform(-1, 1, (2, *size, 3))
    assert np.isfinite(numpy(model(pixels))).all()


def resampled(path, array, old, new, prefix):
    """The official code's way, of a table or of its rows and columns."""
    if path.endswith("/prefix"):
        return array
    if path.endswith("/rows"):
        return scipy.ndimage.zoom(array, (1, new[0] / old[0], 1, 1), order=1)
    if path.endswith("/columns"):
        return scipy.ndimage.zoom(array, (1, 1, new[1] / old[1], 1), order=1)
    grid = array[:, prefix:].reshape(1, *old, -1)
    factors = (1, new[0] / old[0], new[1] / old[1], 1)
    grid = scipy.ndimage.zoom(grid, factors, order=1)
    return np.concatenate([array[:, :prefix], grid.reshape(1, new[0] * new[1], -1)], 1)


def test_preprocessing_class_names_and_frozen_layers_are_kept():
    preprocessing = keras_vit.ImagePreprocessing((22, 14))
    source = build_vit(preprocessing=preprocessing, class_names=list("abcdefg"))
    source.get_layer("encoder_block_0").trainable = False
    model = keras_vit.with_image_size(source, (14, 26))
    assert model.preprocessing.image_size == (14, 26)
    assert source.preprocessing.image_size == (22, 14)
    assert model.class_names == list("abcdefg")
    frozen = [layer.name for layer in model.layers if not layer.trainable]
    assert frozen == ["encoder_block_0"]


def test_the_new_model_shares_no_weights(tiny_vit):
    source = tiny_vit()
    before = arrays_of(source)
    model = keras_vit.with_image_size(source, source.image_size)
    for weight in model.weights:
        weight.assign(np.zeros(weight.shape))
    for path, weight in arrays_of(source).items():
        assert weight.tobytes() == before[path].tobytes()


def test_patches_of_another_size(tiny_vit):
    source = tiny_vit(image_size=(11, 7), patch_size=1)
    model = keras_vit.with_image_size(source, (22, 14), patch_size=2)
    check_same_weights(model, source, "embedding/kernel")
    pixels = np.random.default_rng(0).uniform(-1, 1, (2, 11, 7, 3))
    enlarged = pixels.repeat(2, axis=1).repeat(2, axis=2)
    expected = numpy_vit.forward(source, pixels)
    np.testing.assert_allclose(numpy(model(enlarged)), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda model, path: keras_vit.with_image_size(model, 44),
        lambda model, path: keras_vit.load_checkpoint(model, path / "in.npz"),
        lambda model, path: keras_vit.save_checkpoint(model, path / "out.npz"),
    ],
)
def test_a_classifier_around_a_model_is_refused(tiny_vit, tmp_path, call):
    keras_vit.save_checkpoint(tiny_vit(), tmp_path / "in.npz")
    model = keras_vit.ImageClassifier(backbone=tiny_vit(classes=None), classes=3)
    with pytest.raises(TypeError, match="`backbone` of an ImageClassifier"):
        call(model, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["in.npz"]


def test_an_invalid_image_size_is_an_error(tiny_vit):
    with pytest.raises(ValueError, match="multiple of `patch_size`"):
        keras_vit.with_image_size(tiny_vit(), (23, 14))
    relative = tiny_vit(position_embedding="relative")
    with pytest.raises(ValueError, match=r"\(11, 7\) instead of \(7, 7\)"):
        keras_vit.with_image_size(relative, (14, 14))
