"""Small models of each architecture with random weights, and their answers."""

import dataclasses
import functools

import keras
import numpy as np
from tiny_recipe import CNN_MODEL, TINY_MODEL

from training.architectures.recipe_model import build_model
from training.recipe import ModelConfig

NAMES = ("ant", "bee", "cat")
TINY = dataclasses.replace(TINY_MODEL, depth=2, image_size=(16, 20), channels=3)
CNN = dataclasses.replace(CNN_MODEL, width=5, depth=3)
CONFIGS = {
    "vit": TINY,
    "bit": ModelConfig(architecture="bit", variant="R26x1", image_size=32),
    "resnet": ModelConfig(architecture="resnet", variant="ResNet50", image_size=32),
    "cnn": CNN,
}


def randomize(model, seed=5):
    """Random weights in every place; variances positive."""
    random = np.random.default_rng(seed)
    for weight in model.weights:
        value = random.normal(scale=0.1, size=weight.shape)
        weight.assign(abs(value) + 0.5 if "variance" in weight.path else value)
    return model


def pixels(model, count=2, seed=6):
    shape = (count, *model.input_shape[1:])
    return np.random.default_rng(seed).integers(0, 256, shape).astype("uint8")


@functools.cache
def built(name):
    """A model of an architecture."""
    return randomize(build_model(CONFIGS[name], NAMES))


def features_of(model, images):
    """What the classifier reads, or would."""
    if any(layer.name == "head" for layer in model.layers):
        model = keras.Model(model.input, model.get_layer("head").input)
    return scores_of(model, images)


def scores_of(model, images):
    """Without `predict`, whose functions take longer to build than to run."""
    return keras.ops.convert_to_numpy(model(images))
