"""Models that are given a dtype, under other global settings of Keras."""

import functools

import keras
import numpy as np
import pytest
from keras_settings import FLOATX, other_settings
from tiny_model import build_vit, numpy, with_random_weights

import keras_vit
from keras_vit.analysis.distance import attention_distance_model

pytestmark = pytest.mark.backend

VITS = {
    "token": {"preprocessing": keras_vit.ImagePreprocessing((22, 14))},
    "avg": {"pooling": "avg", "position_embedding": "relative"},
    "map": {"pooling": "map", "register_tokens": 2, "swiglu": True},
    "tokens": {"pooling": None, "layer_scale": 0.3, "qk_norm": True},
    "fc_norm": {"pooling": "avg", "fc_norm": True, "representation_size": 9},
    "axial": {"pooling": "avg", "attention": "axial", "class_token": False},
    "hybrid": {"pooling": "avg", "resnet_blocks": (1,), "patch_size": 1}
    | {"image_size": (24, 16)},
}


def resnet(**kwargs):
    model = keras_vit.ResNet(
        image_size=(33, 26), blocks=(1, 2), classes=7, dtype="float32", **kwargs
    )
    return with_random_weights(model, 3)


def classifier():
    images = keras.Input((22, 14, 3), dtype="float32")
    features = keras.layers.Conv2D(8, 3, data_format="channels_last", dtype="float32")(
        images
    )
    backbone = keras.Model(images, features)
    model = keras_vit.ImageClassifier(backbone=backbone, classes=5, dtype="float32")
    return with_random_weights(model, 3)


def part(make):
    """A model of what is inside a ViT, for images as the whole model reads them."""
    return lambda: make(build_vit(dtype="float32"))


MODELS = {
    **{
        name: functools.partial(build_vit, dtype="float32", depth=1, **arguments)
        for name, arguments in VITS.items()
    },
    "resnet": resnet,
    "feature_map": functools.partial(resnet, pooling=None),
    "classifier": classifier,
    "rollout": part(keras_vit.VisionTransformer.attention_rollout_model),
    "distance": part(attention_distance_model),
    "features": part(lambda model: model.features_model(layout="map")),
}
# Models whose layers are in others too: `make test-all` takes them.
LONG = {"avg", "tokens", "fc_norm", "feature_map", "rollout"}


@functools.cache
def expected(name):
    return outputs(name)


def outputs(name):
    model = MODELS[name]()
    # Integers below 255 and their fractions: neither half precision holds them.
    images = np.random.default_rng(5).uniform(0, 255, (2, *model.input_shape[1:]))
    answers = keras.tree.flatten(model(images.astype("float32")))
    return [numpy(answer) for answer in answers]


@pytest.mark.filterwarnings("ignore:.*pixels")
@pytest.mark.parametrize(
    "floatx",
    [
        pytest.param(floatx, marks=() if floatx == "float16" else pytest.mark.slow)
        for floatx in FLOATX
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
        for name in MODELS
    ],
)
def test_a_model_with_a_dtype_depends_on_no_global_setting(name, floatx):
    reference = expected(name)
    with other_settings(floatx):
        found = outputs(name)
    for output, answer in zip(found, reference, strict=True):
        assert output.dtype == answer.dtype
        np.testing.assert_array_equal(output, answer)
