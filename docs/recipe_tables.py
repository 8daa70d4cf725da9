"""The list of recipes, from training/recipes/*.yaml."""

import pathlib

import yaml
from markdown_table import table

from training.recipes import recipe_files, recipes_of_file


def page() -> str:
    """An overview, then one section for each file with its header and variants."""
    files = recipe_files()
    recipes = {path: recipes_of_file(path) for path in files}
    count = sum(len(variants) for variants in recipes.values())
    overview = table(
        ["file", "what it trains", "recipes"],
        [
            [f"[{path.stem}](#{path.stem.replace('_', '-')})", first["description"], n]
            for path in files
            for n, first in [(len(recipes[path]), next(iter(recipes[path].values())))]
        ],
    )
    sections = [_section(path, recipes[path]) for path in files]
    return "\n\n".join([f"{count} recipes in {len(files)} files.", overview, *sections])


def _section(path: pathlib.Path, recipes: dict[str, dict]) -> str:
    text = path.read_text("utf-8")
    header = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        header.append(line.removeprefix("#").removeprefix(" "))
    tree = yaml.safe_load(text)
    parts = [f"({path.stem.replace('_', '-')})=", f"## {path.stem}"]
    parts += [tree["description"][0].upper() + tree["description"][1:] + "."]
    if reference := tree.get("reference"):
        parts += [f"Reference: {reference}."]
    parts += ["```text\n" + "\n".join(header).strip() + "\n```"]
    if len(recipes) > 1:
        rows = [_cells(name, recipe) for name, recipe in recipes.items()]
        parts += [table(["recipe", "model", "published accuracy"], rows)]
    return "\n\n".join(parts) + "\n"


def _cells(name: str, recipe: dict) -> list[str]:
    published = recipe.get("published_accuracy")
    return [
        f"`{name}`",
        recipe.get("model", {}).get("variant") or "",
        "" if published is None else f"{published:.4f}",
    ]
