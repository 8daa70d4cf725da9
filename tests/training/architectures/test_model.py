"""`build_model`: architectures, weights, precision, mistakes."""

import dataclasses

import keras
import numpy as np
import pytest
import scipy.ndimage
import scipy.signal
import tensorflow as tf
from keras_settings import other_settings
from small_classifiers import (
    CNN,
    CONFIGS,
    NAMES,
    TINY,
    built,
    pixels,
    randomize,
    scores_of,
)
from tiny_model import small

import keras_vit
from keras_vit.nested_layers import all_layers
from keras_vit.weights import presets
from training.architectures import convnets, model_reading
from training.architectures.model_reading import read_classifier
from training.architectures.recipe_model import build_model
from training.errors import RecipeError, RunError
from training.evaluation.predict import predict
from training.recipe import ModelConfig
from training.recipes import named_recipe


def test_a_convolutional_network_predicts(tmp_path):
    built("cnn").save(tmp_path / "best.keras")
    model = read_classifier(tmp_path / "best.keras")
    (image,) = pixels(model, count=1)
    tf.io.write_file(str(tmp_path / "image.png"), tf.io.encode_png(image))
    [prediction] = predict(model, [tmp_path / "image.png"], top=3)
    (scores,) = scores_of(model, image[np.newaxis])
    assert prediction.classes[0][0] == NAMES[scores.argmax()]


@pytest.fixture(scope="module")
def new_models():
    """A new model of each architecture, in half precision."""
    return {
        name: build_model(
            dataclasses.replace(config, head_bias_init=-4.0), NAMES, "mixed_bfloat16"
        )
        for name, config in CONFIGS.items()
    }


def test_models_have_layers_of_keras_and_the_library_only(new_models):
    """So that their files open where this package is missing."""
    for name, model in new_models.items():
        packages = {type(o).__module__.split(".")[0] for o in all_layers(model)}
        assert packages <= {"keras", "keras_vit"}, name


def test_a_new_model_has_a_zero_classifier_in_float32(new_models):
    for name, model in new_models.items():
        logits = scores_of(model, pixels(model))
        assert (logits.dtype, logits.shape) == ("float32", (2, 3)), name
        assert (logits == -4).all(), name
        assert model.dtype_policy.compute_dtype == "bfloat16"
        computed = {layer.compute_dtype for layer in all_layers(model)}
        assert "bfloat16" in computed, name
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(
            architecture="bit",
            variant=None,
            resnet_blocks=(1, 2),
            image_size=8,
            channels=1,
        ),
        dataclasses.replace(TINY, width=48),
    ],
)
def test_a_new_classifier_is_random_where_the_recipe_says_so(config):
    config = dataclasses.replace(config, head_stddev=0.5, head_bias_init=-2.0)
    keras.utils.set_random_seed(3)
    head = build_model(config, tuple("abcdefghij")).get_layer("head")
    kernel, bias = (keras.ops.convert_to_numpy(w) for w in head.weights)
    # Mean and deviation of 480 or 5,120 numbers, to 4 standard errors.
    error = 0.5 / np.sqrt(kernel.size)
    assert abs(kernel.mean()) < 4 * error
    assert abs(kernel.std() - 0.5) < 4 * error / np.sqrt(2)
    assert (bias == -2).all()


def test_the_cnn_matches_numpy():
    """Convolution, GroupNormalization, ReLU, pooling in SciPy and NumPy, float64.

    No default of Keras is what it was: recipes do not depend on a keras.json.
    """
    with other_settings("float16"):
        model = randomize(build_model(CNN, NAMES))
    images = pixels(model)
    weight = {w.path: np.array(w, "float64") for w in model.weights}
    expected = []
    for x in (images.astype("float64") - 127.5) / 127.5:
        for stage in range(3):
            if stage:
                h, w, c = x.shape
                x = x.reshape(h // 2, 2, w // 2, 2, c).max(axis=(1, 3))
            kernel = weight[f"conv_{stage}/kernel"]
            x = np.stack(
                [
                    sum(
                        scipy.signal.correlate2d(x[..., i], kernel[..., i, o], "same")
                        for i in range(x.shape[-1])
                    )
                    for o in range(kernel.shape[-1])
                ],
                axis=-1,
            )
            x += weight[f"conv_{stage}/bias"]
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-3)
            x = x * weight[f"norm_{stage}/gamma"] + weight[f"norm_{stage}/beta"]
            x = np.maximum(x, 0)
        features = x.mean(axis=(0, 1))
        expected.append(features @ weight["head/kernel"] + weight["head/bias"])
    logits = scores_of(model, images)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_resnet_matches_keras_applications_preprocessing(tmp_path):
    """Weights as they are published: for blue, green, red, each less its mean."""
    theirs = randomize(
        keras.applications.ResNet50(
            include_top=False, weights=None, input_shape=(32, 32, 3), pooling="avg"
        )
    )
    path = tmp_path / "resnet.weights.h5"
    theirs.save_weights(path)
    config = dataclasses.replace(CONFIGS["resnet"], weights=str(path))
    ours = build_model(config, NAMES)
    kernel = np.random.default_rng(3).normal(size=(2048, 3))
    ours.get_layer("head").kernel.assign(kernel)
    images = pixels(ours)
    prepared = keras.applications.resnet.preprocess_input(images.astype("float32"))
    expected = scores_of(theirs, prepared) @ kernel
    logits = scores_of(ours, images)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A pre-trained model for square images and 7 classes, as a file of Google's."""
    sizes = {"patch_size": 4, "width": 12, "mlp_dim": 16, "heads": 3}
    model = randomize(small(image_size=16, **sizes, representation_size=12))
    path = tmp_path_factory.mktemp("weights") / "pretrained.npz"
    keras_vit.save_checkpoint(model, path)
    return model, path


def test_weights_are_adapted_as_the_paper_has_it(checkpoint):
    """Section 3.2: a zero classifier in place of the head, positions interpolated."""
    theirs, path = checkpoint
    config = dataclasses.replace(TINY, weights=str(path), image_size=(24, 32))
    ours = build_model(config, NAMES)
    values = {weight.path: np.array(weight) for weight in ours.weights}
    assert not values["head/kernel"].any()
    assert "pre_logits/kernel" not in values
    for weight in theirs.weights:
        if weight.path.startswith("encoder_block_1/"):
            np.testing.assert_array_equal(values[weight.path], weight)
    old = np.array(theirs.get_layer("position_embedding").embedding)[0]
    grid = scipy.ndimage.zoom(old[1:].reshape(4, 4, 12), (6 / 4, 8 / 4, 1), order=1)
    new = np.concatenate([old[:1], grid.reshape(48, 12)])
    np.testing.assert_allclose(
        values["position_embedding/embedding"][0], new, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_size": 30}, ["image_size", "multiple of `patch_size`", "30"]),
        ({"gelu": "exact"}, ["model.gelu", "tanh", "exact"]),
        ({"layer_scale": 0.1}, ["model.layer_scale", "None", "0.1"]),
        ({"class_token": False}, ["model.class_token", "True", "False"]),
        ({"width": 15}, ["width"]),
    ],
)
def test_weights_of_another_structure_are_one_line(checkpoint, changes, words):
    config = dataclasses.replace(TINY, image_size=16, weights=str(checkpoint[1]))
    assert_refused(dataclasses.replace(config, **changes), words)


def test_a_models_pixels_are_normalized_by_channel(tmp_path):
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    config = dataclasses.replace(TINY, pixel_mean=mean, pixel_std=std)
    model = randomize(build_model(config, NAMES))
    model.save(tmp_path / "m.keras")
    images = pixels(model)
    bare = keras_vit.VisionTransformer.from_config(
        {**model.get_config(), "include_preprocessing": False}
    )
    bare.set_weights(model.get_weights())
    expected = bare(((images / 255 - mean) / std).astype("float32"))
    np.testing.assert_allclose(
        read_classifier(tmp_path / "m.keras")(images), expected, atol=1e-5
    )
    bare.save(tmp_path / "bare.keras")
    loaded = read_classifier(tmp_path / "bare.keras")
    np.testing.assert_allclose(loaded(images), expected, atol=1e-5)


RESNET50 = ModelConfig(architecture="resnet", variant="ResNet50")
R50X1 = ModelConfig(architecture="bit", variant="R50x1")
B16 = ModelConfig(variant="B/16")


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (RESNET50, {"dropout": 0.1}, ["model.dropout", "resnet"]),
        (RESNET50, {"pixel_std": 1.0}, ["model.pixel_std"]),
        (R50X1, {"heads": 3}, ["model.heads", "bit"]),
        (RESNET50, {"variant": "S/16"}, ["model.variant", "ResNet152", "S/16"]),
        (R50X1, {"variant": "R51x1"}, ["variant", "R51x1"]),
        (CNN, {"depth": None}, ["model.depth", "None"]),
        (CNN, {"depth": 5}, ["model.depth", "8x8"]),
        (RESNET50, {"weights": "jft"}, ["imagenet", "jft"]),
        (RESNET50, {"weights": "imagenet", "channels": 1}, ["model.channels", "3"]),
        (TINY, {"weights": "none.keras"}, ["none.keras"]),
        (TINY, {"weights": "none.npz"}, ["none.npz"]),
        (B16, {"weights": "in22k"}, ["orig_in21k", "in22k"]),
        (B16, {"variant": "X/16"}, ["X/16"]),
        (B16, {"image_size": 225}, ["image_size", "225"]),
    ],
)
def test_a_mistake_is_one_line(config, changes, words):
    assert_refused(dataclasses.replace(config, **changes), words)


def assert_refused(config, words):
    """The model of this recipe is refused in one line, with all these words."""
    with pytest.raises(RecipeError) as error:
        build_model(config, NAMES)
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_download_that_fails_is_one_line(monkeypatch):
    def fail(**kwargs):
        raise Exception("URL fetch failure on https://x:\n no network")

    monkeypatch.setitem(convnets.RESNETS, "ResNet50", fail)
    config = dataclasses.replace(CONFIGS["resnet"], weights="imagenet")
    with pytest.raises(RecipeError, match=r"imagenet.*downloaded.*no network") as error:
        build_model(config, NAMES)
    assert "\n" not in str(error.value)


def test_without_published_weights_the_error_names_another_way(monkeypatch):
    def fail(*arguments):
        raise OSError("no network")

    monkeypatch.setattr(presets, "_download", fail)
    config = named_recipe("finetune_folder").model
    assert_refused(config, ["no network", "--model.weights", "folder_small"])


def test_a_keras_model_without_names_is_refused(tmp_path):
    images = keras.Input((8, 8, 1))
    keras.Model(images, keras.layers.Flatten()(images)).save(tmp_path / "other.keras")
    with pytest.raises(RunError, match="not a model of keras_vit"):
        read_classifier(tmp_path / "other.keras")


@pytest.mark.parametrize("name", ["hf://owner/name", "https://nowhere/x.keras"])
def test_a_repository_is_downloaded_and_no_file_in_a_bucket(name, monkeypatch):
    monkeypatch.setattr(keras_vit, "open_model", lambda asked: asked)
    assert model_reading.read_model(name) == name
