"""The project's recipes, each parsed once."""

import functools

from training.recipes import named_recipe, recipe_names

recipe = functools.cache(named_recipe)


def every_recipe():
    """All recipes of the project, in the order of their files."""
    return [recipe(name) for name in recipe_names()]
