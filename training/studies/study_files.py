"""Reads studies: the runs that a YAML file describes, what is read of them and how.

A file `studies/NAME.yaml` is the study NAME; of your own, the path of such a file. A
row is one value of every axis, and a run is a row with a seed. docs/experiments/studies
describes the keys. In texts {AXIS} stands for the name of the axis's value;
`model.weights: "@ROW"` is the best model of an earlier row, with the same seed.
"""

import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from keras_vit.common.file_names import BEST_MODEL

from ..errors import RecipeError, require
from ..recipe import DataConfig, Recipe, parse_recipe, read_recipe_text
from ..recipes import merged, recipe_yaml
from .study import JOINT, Candidate, Study, StudyRow, check_name, selected

FOLDER = Path(__file__).parent
# What a file may say. Those of `small` replace the file's own with `--small`.
KEYS: dict[str, type] = {
    "title": str,
    "reference": str,  # paper, table and figure
    "recipe": str,  # its name, or its file, that all runs have in common
    "settings": dict,  # values of the recipe for all runs
    "axes": dict,  # values of the recipe by the name of the axis and of its value
    "seeds": list,
    "choose": dict,  # axes to choose from on validation images, before each run
    "columns": list,  # what is read of each run: `columns`
    "means": str,  # axis, or group, over whose values means are added to the table
    "fewshot": dict,  # a recipe's `data` for the few-shot columns, if not the run's
    "figure": list,  # panels: `study_figure`
    "published": dict,  # by column: values of rows; nested by axes, or not
    "table": dict,  # rows and columns of the Markdown table: two axes
    "measure": str,  # training (the default), or speed: of the untrained model
    "small": dict,  # the form that runs in minutes: any of the other keys
}
REQUIRED = ("title", "axes", "columns")
PAPER = "arXiv:2010.11929"
WORDS: dict[type, str] = {dict: "names and values", list: "a list", str: "text"}
# What an axis's value may have beside values of a recipe: another recipe; the lines of
# the figure that it is in; false for no choice among the candidates; numbers of images
# and classes for `--dry_run`, where the data is not at hand.
ROW_KEYS = ("recipe", "group", "choose", "images", "classes")
# Begins `model.weights` that another row of the study makes: `@ROW`, its best model.
OTHER_ROW = "@"
Tree = dict[str, Any]
Axes = Mapping[str, Mapping[Any, Tree | None]]


def study_files() -> list[Path]:
    """The files of the studies of this project, sorted by name."""
    return sorted(FOLDER.glob("*.yaml"))


class Summary(NamedTuple):
    """A study at a glance; `small_runs` is None where it has no small form."""

    title: str
    reference: str
    runs: int
    small_runs: int | None


def summary(path: Path) -> Summary:
    """The title and the number of runs of a study's file."""
    tree = _read(path)
    small = _count_runs(tree | tree["small"]) if "small" in tree else None
    return Summary(tree["title"], tree.get("reference", ""), _count_runs(tree), small)


def list_studies() -> None:
    """Print the name, the title and the number of runs of every study."""
    for path in study_files():
        title, reference, runs, small = summary(path)
        both = f"{runs} runs" + ("" if small is None else f", --small {small}")
        place = f", {reference.removeprefix(f'{PAPER}, ')}" if reference else ""
        print(f"{path.stem:<16} {title}{place} ({both})")


def _check_study(name: str) -> None:
    """Raise RecipeError where there is no such study, with the one that was meant."""
    number = re.fullmatch(r"(table|figure)[ _-]?(\d+)", name, re.IGNORECASE)
    if number is not None and not (FOLDER / f"{name}.yaml").exists():
        place = re.compile(rf"\b{number[1]}s? (\d+ and )?{number[2]}\b", re.IGNORECASE)
        for path in study_files():
            reference = summary(path).reference
            if reference.startswith(PAPER) and place.search(reference):
                raise RecipeError(f"no study {name!r}. It is {path.stem}")
    check_name(name, [path.stem for path in study_files()], "no study")


def _count_runs(tree: Tree) -> int:
    rows = math.prod(len(axis) for axis in tree["axes"].values())
    return rows * len(tree.get("seeds", (0,)))


def load_study(
    name: str,
    small: bool = False,
    flags: Mapping[str, str] | None = None,
    rows: Sequence[str] = (),
) -> Study:
    """Read a study and check every row.

    Args:
        name: The study's name, or the path of a file.
        small: Whether to read the small form.
        flags: Values of the recipe by their dotted paths, as typed, for every row.
        rows: Names of rows, or of an axis's values; all where empty.

    Raises:
        RecipeError: There is no such study, form or row; or the file is wrong.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        _check_study(name)
        path = FOLDER / f"{name}.yaml"
    tree = _read(path)
    if small:
        wanted = f"left out for {path.stem}, which has no small form"
        if "small" not in tree:
            raise RecipeError(f"`--small` must be {wanted}")
        tree |= tree["small"]
    tree = {key: value for key, value in tree.items() if value is not None}
    study = _parse(tree, path.stem, small, flags or {})
    return selected(study, rows) if rows else study


def _read(path: Path) -> Tree:
    """The tree of a file; RecipeError where its keys are not those of a study."""
    try:
        tree = yaml.safe_load(read_recipe_text(path))
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise RecipeError(f"{path}: must be a study, with {', '.join(REQUIRED)}")
    _check_keys(path, tree)
    if missing := [key for key in REQUIRED if key not in tree]:
        raise RecipeError(f"{path}: a study needs {', '.join(missing)}")
    _check_keys(path, tree.get("small", {}))
    return tree


def _check_keys(path: Path, tree: Tree) -> None:
    """Raise RecipeError for an unknown key, or a value of another kind than it has."""
    for key, value in tree.items():
        check_name(key, list(KEYS), f"{path}: a study has no")
        if not isinstance(value, KEYS[key]) and (value is not None or key in REQUIRED):
            wanted = WORDS[KEYS[key]]
            raise RecipeError(f"{path}: `{key}` must be {wanted}. Received: {value!r}")
    choose = tree.get("choose") or {"axes": {}}
    for key, axes in (("axes", tree.get("axes", {})), ("choose", choose.get("axes"))):
        values = axes.values() if isinstance(axes, dict) else [None]
        if not all(isinstance(value, dict) for value in values):
            raise RecipeError(
                f"{path}: `{key}` must have axes, each with names of values and their "
                f"settings. Received: {axes!r}"
            )


def _parse(tree: Tree, name: str, small: bool, flags: Mapping[str, str]) -> Study:
    base = merged({"recipe": tree.get("recipe")}, tree.get("settings", {}))
    typed = _nested({path: text for path, text in flags.items() if path != "seed"})
    rows: dict[str, StudyRow] = {}
    for labels, settings in combinations(tree["axes"]):
        row = _row(name, merged(base, settings, typed), labels, tree, typed, rows)
        rows[row.name] = row
    seeds = [flags["seed"]] if "seed" in flags else tree.get("seeds", (0,))
    published = tree.get("published", {})
    try:
        fewshot = DataConfig(**tree["fewshot"]) if "fewshot" in tree else None
    except TypeError:
        raise RecipeError(
            f"{name}: `fewshot` must have keys of a recipe's `data`. "
            f"Received: {tree['fewshot']}"
        ) from None
    return Study(
        name,
        small,
        tree["title"],
        tree.get("reference", ""),
        rows=tuple(rows.values()),
        axes=tuple(tree["axes"]),
        seeds=tuple(_seed(seed, name) for seed in seeds),
        columns=tuple(tree["columns"]),
        figure=tuple(tree.get("figure", ())),
        published={column: dict(_flat(rows)) for column, rows in published.items()},
        table=tree.get("table", {}),
        means=tree.get("means"),
        measure=tree.get("measure", "training"),
        fewshot=fewshot,
    )


def _seed(value: object, origin: str) -> int:
    text = str(value)
    whole = text.isdigit() and int(text) < 2**31
    require(whole, "seed", f"a whole number in [0, 2**31) in {origin}", value)
    return int(text)


def _flat(values: Mapping[Any, Any]) -> Iterator[tuple[str, float]]:
    """Values by the names of rows: {B16: {pets: 95.8}} is that of B16-pets."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}-{below}", each) for below, each in _flat(value))
        else:
            yield str(name), value


def combinations(
    axes: Axes, outer: Axes | None = None, given: Mapping[str, str] | None = None
) -> Iterator[tuple[dict[str, str], Tree]]:
    """Each combination of the axes' values: their names by axis, and their settings.

    A value may have further settings under the name of another axis's value, which
    are for their combination only.

    Args:
        axes: By axis and by the value's name: settings.
        outer: Other axes.
        given: Names of the values of `outer` in this combination.
    """
    every = [*axes.values(), *(outer or {}).values()]
    names = {str(name) for axis in every for name in axis}
    for values in itertools.product(*(axis.items() for axis in axes.values())):
        labels = dict(zip(axes, (str(name) for name, _ in values), strict=True))
        chosen = {*labels.values(), *(given or {}).values()}
        settings: Tree = {}
        for _, tree in values:
            own = {k: v for k, v in (tree or {}).items() if str(k) not in names}
            special = [v for k, v in (tree or {}).items() if str(k) in chosen]
            settings = merged(settings, own, *special)
        yield labels, settings


def _row(
    study: str,
    tree: Tree,
    labels: dict[str, str],
    file: Tree,
    typed: Tree,
    earlier: Mapping[str, StudyRow],
) -> StudyRow:
    """The row of one combination; `typed` values win over those of the candidates."""
    name = "-".join(labels.values())
    origin = f"{study}: {name}"
    tree = _filled(tree, labels)
    special = {key: tree.pop(key, None) for key in ROW_KEYS}
    if special["recipe"] is None:
        raise RecipeError(f"{origin}: needs a `recipe`")
    tree = merged(_recipe_tree(special["recipe"]), tree, {"name": name})
    weights = str(tree.get("model", {}).get("weights"))
    begins_with = None
    if weights.startswith(OTHER_ROW):
        begins_with = earlier.get(weights.removeprefix(OTHER_ROW))
        if begins_with is None:
            raise RecipeError(
                f"{origin}: `model.weights` must be {OTHER_ROW} and an earlier row. "
                f"Received: {weights!r}"
            )
        tree["model"]["weights"] = BEST_MODEL  # each run fills in its own file
    chooses = "choose" in file and special["choose"] is not False
    parse = functools.partial(_candidates, tree, labels, file, typed, origin)
    if group := special["group"]:
        groups = group if isinstance(group, list) else [group]
        labels = labels | {"group": JOINT.join(groups)}
    return StudyRow(
        name,
        labels,
        _recipe(tree, origin),
        special["images"],
        special["classes"],
        begins_with,
        parse if chooses else dict,
    )


def _filled(tree: Any, labels: Mapping[str, str]) -> Any:
    """A tree whose texts have {AXIS} replaced by the name of the axis's value."""
    if isinstance(tree, dict):
        return {key: _filled(value, labels) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_filled(value, labels) for value in tree]
    if isinstance(tree, str):
        for axis, name in labels.items():
            tree = tree.replace(f"{{{axis}}}", name)
    return tree


def _nested(flags: Mapping[str, str]) -> Tree:
    """Values by dotted paths as a tree; the recipe's parser checks their types."""
    tree: Tree = {}
    for path, text in flags.items():
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        for key in reversed(path.split(".")):
            value = {key: value}
        tree = merged(tree, value)
    return tree


@functools.cache
def _recipe_tree(name: str) -> Tree:
    """The values of a recipe, by its name or file."""
    own = name.endswith((".yaml", ".yml"))
    text = read_recipe_text(Path(name)) if own else recipe_yaml(name)
    tree: Tree = yaml.safe_load(text)
    return tree


def _recipe(tree: Tree, origin: str) -> Recipe:
    return parse_recipe(yaml.safe_dump(tree, sort_keys=False), origin)


def _candidates(
    tree: Tree, labels: Mapping[str, str], file: Tree, typed: Tree, origin: str
) -> dict[str, Candidate]:
    choose = file["choose"]
    trial = choose.get("settings", {})
    return {
        "-".join(names.values()): Candidate(
            _recipe(merged(tree, settings, trial, typed), origin),
            _recipe(merged(tree, settings, typed), origin),
        )
        for names, settings in combinations(choose["axes"], file["axes"], labels)
    }
