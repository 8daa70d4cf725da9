"""The smallest recipes: one transformer block, or one convolution, on digits.

Tests vary them with `changed`. A module and no fixture, because scripts that tests
start as processes of their own import it too.
"""

import dataclasses

from training.recipe import DataConfig, ModelConfig, Recipe


def changed(recipe, **changes):
    """A recipe with other values; those of a group, such as `model`, by their names."""
    for name, value in changes.items():
        if isinstance(value, dict):
            changes[name] = dataclasses.replace(getattr(recipe, name), **value)
    return dataclasses.replace(recipe, **changes)


TINY_MODEL = ModelConfig(
    variant=None,
    patch_size=4,
    width=12,
    depth=1,
    mlp_dim=16,
    heads=3,
    image_size=8,
    channels=1,
)
TINY_RECIPE = Recipe(model=TINY_MODEL, data=DataConfig("digits"))

# A run takes half of the time, for what does not depend on the model.
CNN_MODEL = ModelConfig(
    architecture="cnn", variant=None, width=4, depth=1, image_size=8, channels=1
)
CNN_RECIPE = dataclasses.replace(TINY_RECIPE, model=CNN_MODEL)
