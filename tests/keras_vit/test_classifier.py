"""`ImageClassifier`: what surrounds a backbone, its config, mistakes."""

import keras
import numpy as np
import pytest
from tiny_model import numpy

import keras_vit


def backbone(size=(10, 14), channels=3, features=5):
    images = keras.Input((*size, channels))
    x = keras.layers.Conv2D(features, 3, name="conv")(images)
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(x), name="net")


def classifier(**kwargs):
    arguments = {"backbone": backbone(), "classes": 4, **kwargs}
    return keras_vit.ImageClassifier(**arguments)


def test_logits_are_a_linear_function_of_the_features():
    random = np.random.default_rng(0)
    model = classifier(preprocessing=keras_vit.ImagePreprocessing((10, 14)))
    head = model.get_layer("head")
    kernel, bias = random.normal(size=(5, 4)), random.normal(size=4)
    head.kernel.assign(kernel)
    head.bias.assign(bias)
    pixels = random.integers(0, 256, (3, 10, 14, 3)).astype("uint8")
    features = numpy(model.backbone((pixels - 127.5) / 127.5))
    np.testing.assert_allclose(
        numpy(model(pixels)), features @ kernel + bias, rtol=1e-4, atol=1e-5
    )


def test_a_new_classifier_is_zero_but_for_its_bias():
    model = classifier(head_bias_init=-10.0, classifier_activation="sigmoid")
    scores = numpy(model(np.ones((2, 10, 14, 3))))
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(10.0)), rtol=1e-5)


def test_the_config_rebuilds_the_model(tmp_path):
    model = classifier(
        preprocessing=keras_vit.ImagePreprocessing((10, 14), mean=(1, 2, 3), std=2.0),
        class_names=["a", "b", "c", "d"],
        dtype="mixed_bfloat16",
    )
    model.get_layer("net").trainable = False
    again = keras_vit.ImageClassifier.from_config(model.get_config())
    assert again.class_names == ["a", "b", "c", "d"]
    assert again.preprocessing.mean == (1, 2, 3)
    assert again.dtype_policy.name == "mixed_bfloat16"
    assert (again.image_size, again.channels, again.classes) == ((10, 14), 3, 4)
    assert not again.get_layer("net").trainable
    again.set_weights(model.get_weights())
    again.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"class_names": ["a"]}, ["class_names", "1 names", "classes=4"]),
        (
            {"preprocessing": keras_vit.ImagePreprocessing(8)},
            ["preprocessing", "(8, 8)", "(10, 14)"],
        ),
        ({"backbone": backbone((None, 14))}, ["backbone", "None"]),
        ({"backbone": keras.layers.Flatten()}, ["backbone", "Flatten"]),
        ({"backbone": keras.Sequential([])}, ["backbone", "Sequential"]),
    ],
)
def test_a_mistake_names_the_argument(arguments, words):
    with pytest.raises(ValueError) as error:
        classifier(**arguments)
    assert all(word in str(error.value) for word in words), error.value


def test_maps_of_a_sequential_backbone_are_averaged(tmp_path):
    convolution = keras.layers.Conv2D(5, 3, data_format="channels_last")
    net = keras.Sequential([keras.Input((10, 14, 3)), convolution])
    model = classifier(backbone=net, classifier_activation="softmax")
    random = np.random.default_rng(0)
    images = random.normal(size=(6, 10, 14, 3))
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(images, random.integers(0, 4, 6), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    features = numpy(net(images)).mean(axis=(1, 2))
    logits = features @ np.asarray(model.get_layer("head").kernel)
    logits += np.asarray(model.get_layer("head").bias)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(numpy(loaded(images)), expected, atol=1e-5)


def test_a_network_of_keras_applications_is_a_backbone():
    net = keras.applications.MobileNetV3Small(
        include_top=False, weights=None, input_shape=(32, 48, 3)
    )
    model = classifier(backbone=net)
    assert (model.pixels, model.output_shape) == ("raw", (None, 4))
