"""Class names and preprocessing for models that were saved without them."""

import keras
import numpy as np
import pytest
from tiny_model import numpy

import keras_vit
from keras_vit.classifier_metadata import (
    complete_classifier,
    read_class_names,
    reading_raw_pixels,
)

NAMES = "a,b,c,d,e,f,g"
DEIT = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}


def pictures(size=(22, 14)):
    return np.random.default_rng(0).integers(0, 256, (3, *size, 3)).astype("uint8")


def around(backbone, **kwargs):
    return keras_vit.ImageClassifier(
        backbone=backbone, classes=4, class_names=[*"abcd"], **kwargs
    )


def convolutional(*first):
    layers = [*first, keras.layers.Conv2D(5, 3, data_format="channels_last")]
    return keras.Sequential([keras.Input((10, 14, 3)), *layers])


def randomized(model):
    random = np.random.default_rng(1)
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    return model


def test_names_come_from_a_file_or_from_the_text(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("ant\n bee, wild \n\ncat\n", "utf-8")
    assert read_class_names(str(path)) == ["ant", "bee, wild", "cat"]
    assert read_class_names("ant, bee") == ["ant", "bee"]


@pytest.mark.parametrize("text", ["missing.txt", "ant,,bee", ""])
def test_what_is_neither_file_nor_names_is_refused(text):
    with pytest.raises(ValueError, match=r"`class_names` must be a text file"):
        read_class_names(text)


@pytest.mark.parametrize("outside", [False, True])
def test_preprocessing_outside_the_graph_comes_into_it(tiny_vit, outside):
    policy = keras_vit.ImagePreprocessing((22, 14), **DEIT)
    given = {"preprocessing": policy, "include_preprocessing": False}
    model = tiny_vit(**given if outside else {})
    preprocess = policy if outside else keras_vit.preprocess_input
    expected = numpy(model(preprocess(pictures())))
    complete = complete_classifier(model, NAMES)
    assert complete.reads_raw_pixels
    assert complete.class_names == NAMES.split(",")
    answer = numpy(complete(pictures()))
    np.testing.assert_allclose(answer, expected, atol=1e-5)


def test_pixels_are_never_normalized_twice(tiny_vit):
    model = tiny_vit(preprocessing=keras_vit.ImagePreprocessing((22, 14)))
    assert reading_raw_pixels(model) is model
    with pytest.raises(ValueError, match="the model has preprocessing"):
        reading_raw_pixels(model, "normalized")


@pytest.mark.parametrize(
    ("first", "pixels", "scale"),
    [
        ([keras.layers.Rescaling(1 / 255)], None, (0.0, 1.0)),
        ([], "raw", (0.0, 1.0)),
        ([], "normalized", (127.5, 127.5)),
    ],
)
def test_a_backbone_gets_the_pixels_that_it_reads(first, pixels, scale):
    model = randomized(around(convolutional(*first)))
    mean, std = scale
    images = pictures((10, 14))
    expected = numpy(model((images - mean) / std))
    complete = reading_raw_pixels(model, pixels)
    answer = numpy(complete(images))
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-4)


def test_a_backbone_of_an_unknown_range_is_asked_about():
    with pytest.raises(ValueError, match="say --pixels raw"):
        reading_raw_pixels(around(convolutional()))


def test_what_is_missing_is_said(tiny_vit):
    with pytest.raises(ValueError, match="no names for its 7 classes.*--class_names"):
        complete_classifier(tiny_vit())
    with pytest.raises(ValueError, match="7 names.* Received: 2 names"):
        complete_classifier(tiny_vit(), "a,b")
    with pytest.raises(ValueError, match="Sequential of Keras.*ImageClassifier"):
        complete_classifier(convolutional())
    with pytest.raises(ValueError, match="classes=None"):
        complete_classifier(tiny_vit(classes=None))


def test_a_thousand_classes_are_those_of_imagenet(tiny_vit):
    model = complete_classifier(tiny_vit(classes=1000))
    assert model.class_names[0] == "tench, Tinca tinca"


def test_probabilities_are_those_of_the_activation(tiny_vit):
    images = np.random.default_rng(0).uniform(-1, 1, (2, 22, 14, 3))
    logits, softmax = tiny_vit(), tiny_vit(classifier_activation="softmax")
    expected = numpy(softmax(images))
    for model in (logits, softmax):
        found = model.probabilities(numpy(model(images)))
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_summary_ends_with_what_the_model_reads(tiny_vit):
    policy = keras_vit.ImagePreprocessing((22, 14), **DEIT)
    kinds = {
        "pixels in [-1, 1]": {},
        "pixels from 0 to 255": {"preprocessing": policy},
        "pixels normalized by mean=(123.675, ": {
            "preprocessing": policy,
            "include_preprocessing": False,
        },
    }
    for words, arguments in kinds.items():
        lines: list[str] = []
        tiny_vit(**arguments).summary(print_fn=lines.append)
        assert f"Input: images [B, 22, 14, 3], {words}" in lines[-1]
