"""The recipes of this project by their names: the files, and the variants in them.

A file `recipes/NAME.yaml` is the recipe NAME. Where it ends with `variants`, it is a
family instead: each variant is a recipe NAME-VARIANT, which has the file's values but
for those in the variant's row. Whoever reads one recipe reads one page, and the rows
stand below each other as in the table of the paper.
"""

import difflib
from pathlib import Path
from typing import Any

import yaml

from ..errors import RecipeError
from ..recipe import Recipe, parse_recipe

RECIPES = Path(__file__).parent


def recipe_files() -> list[Path]:
    """The files of all recipes of this project, sorted by name."""
    return sorted(RECIPES.glob("*.yaml"))


def recipes_of_file(path: Path) -> dict[str, dict[str, Any]]:
    """The recipes in one file, by their names, as trees of what they say."""
    tree = yaml.safe_load(path.read_text("utf-8"))
    variants = tree.pop("variants", None)
    if variants is None:
        return {path.stem: tree}
    return {
        f"{path.stem}-{variant}": _merged(tree, {"name": f"{path.stem}-{variant}"}, row)
        for variant, row in variants.items()
    }


def recipe_names() -> list[str]:
    """The names of all recipes of this project, file by file."""
    return [name for path in recipe_files() for name in recipes_of_file(path)]


def recipe_yaml(name: str) -> str:
    """What a recipe of this project says, as YAML.

    Raises:
        RecipeError: There is none of this name; the message has names like it.
    """
    for path in recipe_files():
        if name.startswith(path.stem):
            recipes = recipes_of_file(path)
            if name in recipes:
                return yaml.safe_dump(recipes[name], sort_keys=False)
    raise RecipeError(
        f"`--recipe` must be one of {', '.join(_similar(name))}, or another that "
        f"`python -m training recipes` lists. Received: {name!r}"
    )


def named_recipe(name: str) -> Recipe:
    """A recipe of this project.

    Raises:
        RecipeError: There is none of this name, or its file is wrong.
    """
    return parse_recipe(recipe_yaml(name), name)


def _similar(name: str) -> list[str]:
    names = recipe_names()
    family = [other for other in names if other.startswith(f"{name}-")]
    return family or difflib.get_close_matches(name, names, n=5, cutoff=0)


def _merged(*trees: dict[str, Any]) -> dict[str, Any]:
    """One tree; where several say something, the last one wins."""
    result: dict[str, Any] = {}
    for tree in trees:
        for key, value in tree.items():
            if isinstance(value, dict):
                value = _merged(result.get(key, {}), value)
            result[key] = value
    return result
