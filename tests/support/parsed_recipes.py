"""The project's recipes, each parsed once, and their files read once."""

import functools
from unittest import mock

from training import recipes

recipes_of_file = functools.cache(recipes.recipes_of_file)


def once():
    """A context in which a file that was read is not read again for each recipe."""
    return mock.patch.object(recipes, "recipes_of_file", recipes_of_file)


@functools.cache
@once()
def recipe(name):
    """A recipe of the project."""
    return recipes.named_recipe(name)


@once()
def every_recipe():
    """All recipes of the project, in the order of their files."""
    return [recipe(name) for name in recipes.recipe_names()]
