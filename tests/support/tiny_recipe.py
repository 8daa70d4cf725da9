"""The smallest recipe: one transformer block on digits of 8 x 8 pixels.

Tests vary it with `dataclasses.replace`. A module and no fixture, because scripts that
tests start as processes of their own import it too.
"""

from training.recipe import DataConfig, ModelConfig, Recipe

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
