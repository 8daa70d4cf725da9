"""The recipes of this project by name: YAML files, and the variants in them.

A file `recipes/NAME.yaml` is the recipe NAME. Where it has `variants`, it is a family
of recipes instead: each variant is a recipe NAME-VARIANT, which has the file's values
except for those in the variant's row; NAME alone is its `default`, if it has one. A
reader of one recipe reads one page, and the rows are below each other as in the table
of the paper.
"""

import textwrap
from pathlib import Path
from typing import Any

import yaml

from keras_vit.common.similar_names import similar_names

from ..errors import RecipeError
from ..recipe import Recipe, parse_recipe

RECIPES = Path(__file__).parent


def recipe_files() -> list[Path]:
    """The files of all recipes of this project, sorted by name."""
    return sorted(RECIPES.glob("*.yaml"))


def recipes_of_file(path: Path) -> dict[str, dict[str, Any]]:
    """The recipes in one file, by name, as nested dictionaries of their values."""
    tree = yaml.safe_load(path.read_text("utf-8"))
    variants = tree.pop("variants", None)
    if variants is None:
        return {path.stem: tree}
    tree.pop("default", None)
    return {
        f"{path.stem}-{variant}": merged(tree, {"name": f"{path.stem}-{variant}"}, row)
        for variant, row in variants.items()
    }


def recipe_names() -> list[str]:
    """The names of all recipes of this project, file by file."""
    return [name for path in recipe_files() for name in recipes_of_file(path)]


def recipe_yaml(name: str) -> str:
    """A recipe of this project as YAML, without the values left at their defaults.

    Hyphens and underscores of a name count as the same: folder_small_gray is
    folder_small-gray.

    Raises:
        RecipeError: There is no such recipe; the message lists similar names.
    """
    for path in recipe_files():
        if _same(name).startswith(_same(path.stem)):
            recipes = {_same(n): recipe for n, recipe in recipes_of_file(path).items()}
            if _same(name) == _same(path.stem) and _same(name) not in recipes:
                default = yaml.safe_load(path.read_text("utf-8")).get("default")
                name = f"{path.stem}-{default}" if default else name
            if _same(name) in recipes:
                return yaml.safe_dump(recipes[_same(name)], sort_keys=False)
    if name.endswith((".yaml", ".yml")):
        raise RecipeError(f"--recipe takes a name, --config takes a file: {name}")
    raise RecipeError(
        f"`--recipe` must be one of {', '.join(_similar(name))}, or another that "
        f"`keras-vit recipes` lists. Received: {name!r}"
    )


def named_recipe(name: str) -> Recipe:
    """A recipe of this project.

    Raises:
        RecipeError: There is no such recipe, or its file is wrong.
    """
    return parse_recipe(recipe_yaml(name), name)


def print_recipes() -> None:
    """Print the name and the description of every recipe."""
    for path in recipe_files():
        recipes = recipes_of_file(path)
        print(f"{path.stem:<20} {next(iter(recipes.values()))['description']}")
        if list(recipes) != [path.stem]:
            endings = [name.removeprefix(path.stem) for name in recipes]
            line = textwrap.fill(" ".join(endings), 84, break_on_hyphens=False)
            print(textwrap.indent(line, "    "))
    print("A family's recipes are its name with one of the endings: study-ViTB16")


def _same(name: str) -> str:
    return name.replace("-", "_")


def _similar(name: str) -> list[str]:
    names = recipe_names()
    family = [other for other in names if other.startswith(f"{name}-")]
    return family[:5] or similar_names(name, names, 5) or names[:5]


def merged(*trees: dict[str, Any]) -> dict[str, Any]:
    """Merge nested dictionaries; the last one wins."""
    result: dict[str, Any] = {}
    for tree in trees:
        for key, value in tree.items():
            if isinstance(value, dict):
                value = merged(result.get(key, {}), value)
            result[key] = value
    return result
