"""Convolutional baselines: keras.applications' ResNets, and a small CNN.

Both become a `keras_vit.ImageClassifier`, so that everything that works with a Vision
Transformer's file works with theirs. Big Transfer's ResNets are in `keras_vit`.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
from keras import layers

import keras_vit
from keras_vit import ImageClassifier
from keras_vit.typing import Config

from ..errors import RecipeError, require
from ..model_config import ModelConfig

RESNETS: dict[str, Callable[..., keras.Model]] = {
    "ResNet50": keras.applications.ResNet50,
    "ResNet101": keras.applications.ResNet101,
    "ResNet152": keras.applications.ResNet152,
}
# What keras.applications' "caffe" mode subtracts, here for red, green, blue.
CAFFE_MEAN = (123.68, 116.779, 103.939)


def build_resnet(config: ModelConfig, arguments: Config, dtype: str) -> ImageClassifier:
    """Build a ResNet of keras.applications (version 1, with BatchNormalization).

    Returns:
        The classifier. Its weights expect keras.applications' "caffe" preprocessing:
        blue, green, red, each minus its mean. The mean is in `preprocessing`, and the
        first kernel is flipped to red, green, blue, which is equivalent.

    Raises:
        RecipeError: There is no such ResNet, or its weights cannot be loaded.
    """
    variant = config.variant
    wanted = f"one of {', '.join(RESNETS)} for resnet"
    require(variant in RESNETS, "model.variant", wanted, variant)
    arguments["preprocessing"] = _with_caffe_mean(arguments["preprocessing"])
    with layer_defaults(dtype):
        backbone = _load_resnet(config, arguments["preprocessing"].image_size)
        return ImageClassifier(backbone=backbone, dtype=dtype, **arguments)


def _load_resnet(config: ModelConfig, size: tuple[int, int]) -> keras.Model:
    weights = config.weights
    if weights not in (None, "imagenet") and not Path(str(weights)).is_file():
        raise RecipeError(
            "`model.weights` must be imagenet or the path of a .weights.h5 file for "
            f"resnet. Received: {weights!r}"
        )
    require(
        weights is None or config.channels == 3,
        "model.channels",
        "3 with weights for resnet",
        config.channels,
    )
    try:
        backbone = RESNETS[str(config.variant)](
            include_top=False,
            weights=weights,
            input_shape=(*size, config.channels),
            pooling="avg",
            name="backbone",
        )
    except Exception as error:
        # keras.utils.get_file raises a plain Exception where it cannot download.
        raise RecipeError(
            f"`model.weights` must be a file that fits {config.variant}, or imagenet "
            f"where it can be downloaded. Received: {weights!r}: "
            f"{' '.join(str(error).split())}"
        ) from error
    if weights is not None:
        kernel = backbone.get_layer("conv1_conv").kernel
        kernel.assign(keras.ops.flip(kernel, axis=2))
    return backbone


def _with_caffe_mean(
    layer: keras_vit.ImagePreprocessing,
) -> keras_vit.ImagePreprocessing:
    mean = {"mean": CAFFE_MEAN, "std": 1.0}
    changed: keras_vit.ImagePreprocessing = type(layer).from_config(
        {**layer.get_config(), **mean}
    )
    return changed


def build_cnn(config: ModelConfig, arguments: Config, dtype: str) -> ImageClassifier:
    """Build a small convolutional network, a baseline for small images.

    It has `depth` stages of a 3x3 convolution, GroupNormalization and ReLU. Each but
    the first downsamples by 2 and doubles the channels; the first has `width`.

    Raises:
        RecipeError: Width or depth is missing, the image is too small for the number of
            stages, or weights are given, as there are no published ones.
    """
    weights = config.weights
    require(weights is None, "model.weights", "a run's .keras file for cnn", weights)
    for name in ("width", "depth"):
        value = getattr(config, name)
        require(value is not None, f"model.{name}", "given for cnn", value)
    size = arguments["preprocessing"].image_size
    stages = config.depth or 0
    wanted = f"small enough to halve images of {size[0]}x{size[1]} pixels {stages - 1}x"
    require(min(size) >= 2 ** (stages - 1), "model.depth", wanted, stages)
    with layer_defaults(dtype):
        images = keras.Input((*size, config.channels))
        x = images
        for stage in range(stages):
            if stage:
                x = layers.MaxPooling2D(name=f"pool_{stage}")(x)
            channels = (config.width or 0) * 2**stage
            x = layers.Conv2D(channels, 3, padding="same", name=f"conv_{stage}")(x)
            x = layers.GroupNormalization(groups=1, name=f"norm_{stage}")(x)
            x = layers.ReLU(name=f"relu_{stage}")(x)
        x = layers.GlobalAveragePooling2D(name="pooling")(x)
        x = layers.Dropout(config.dropout, name="dropout")(x)
        backbone = keras.Model(images, x, name="backbone")
        return ImageClassifier(backbone=backbone, dtype=dtype, **arguments)


@contextlib.contextmanager
def layer_defaults(dtype: str) -> Iterator[None]:
    """Context of a default policy in which a user's keras.json has no influence."""
    values = {
        "dtype_policy": dtype,
        "floatx": "float32",
        "image_data_format": "channels_last",
    }
    before = {name: getattr(keras.config, name)() for name in values}
    _set_defaults(values)
    try:
        yield
    finally:
        _set_defaults(before)


def _set_defaults(values: Config) -> None:
    for name, value in values.items():
        getattr(keras.config, f"set_{name}")(value)
