"""Reads studies: the runs that a YAML file describes, what is read of them and how.

A file `studies/NAME.yaml` is the study NAME; of your own, the path of such a file. One
of one axis, as short as it can be:

    title: How many epochs do the digits need?
    recipe: digits
    axes:
      epochs:
        10: {epochs: 10}
        40: {epochs: 40}
    seeds: [0, 1, 2]
    columns: [accuracy]
    figure:
      - {kind: lines, x: epochs, y: accuracy}

A row is one value of every axis, and a run is a row with a seed. `KEYS` has every key
of a file, `ROW_KEYS` what an axis's value may have beside values of a recipe. In texts
{AXIS} stands for the name of the axis's value; `model.weights: "@ROW"` is the best
model of an earlier row, with the same seed.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from keras_vit.common.command_line import did_you_mean

from ..errors import RecipeError
from ..recipe import DataConfig, Recipe, parse_recipe, read_recipe_text, require
from ..recipes import merged, recipe_yaml
from .study import JOINT, Candidate, Row, Study, selected

STUDIES = Path(__file__).parent
# What a file may say. Those of `small` replace the file's own with `--small`.
KEYS = {
    "title": "one line",
    "reference": "paper, table and figure",
    "recipe": "name of the recipe, or its file, that all runs have in common",
    "settings": "values of the recipe for all runs",
    "axes": "values of the recipe by the name of the axis and of its value",
    "seeds": "seeds of each row",
    "choose": "axes to choose from on validation images, before each run",
    "columns": "what is read of each run; see `columns`",
    "means": "axis, or group, over whose values means are added to the table",
    "fewshot": "a recipe's `data` for the few-shot columns; the run's own without",
    "figure": "panels; see `study_figure`",
    "published": "by column: the published value of each row; nested by axes, or not",
    "table": "rows and columns of the Markdown table: two axes",
    "measure": "training (the default), or speed: of the untrained model",
    "small": "the form that runs in minutes: any of the other keys",
}
REQUIRED = ("title", "axes", "columns")
# What a key's value is, where it is not text.
KINDS: dict[str, type] = {
    **dict.fromkeys(("settings", "axes", "choose", "fewshot", "published"), dict),
    **dict.fromkeys(("table", "small"), dict),
    **dict.fromkeys(("seeds", "columns", "figure"), list),
}
ROW_KEYS = {
    "recipe": "another recipe than the study's",
    "group": "what the figure draws as one line, or a list of such lines",
    "choose": "false: without choosing among the study's candidates",
    "images": "number of training images, for `--dry_run` where they are not at hand",
    "classes": "number of classes, likewise",
}
IN_WORDS: dict[type, str] = {dict: "names and values", list: "a list", str: "text"}
# Begins `model.weights` that another row of the study makes: `@ROW`, its best model.
OTHER_ROW = "@"


def study_files() -> list[Path]:
    """The files of the studies of this project, sorted by name."""
    return sorted(STUDIES.glob("*.yaml"))


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
    path = _find(name)
    tree = _read(path)
    if small:
        require(
            "small" in tree,
            "--small",
            f"left out for {path.stem}, which has no small form",
            True,
        )
        tree |= tree["small"]
    study = _parse(tree, path.stem, small, flags or {})
    return selected(study, rows) if rows else study


class Summary(NamedTuple):
    """A study at a glance; `small_runs` is None where it has no small form."""

    title: str
    reference: str
    runs: int
    small_runs: int | None


def summary(path: Path) -> Summary:
    """The title and the number of runs of a study's file."""
    tree = _read(path)
    small = tree | tree["small"] if "small" in tree else None
    return Summary(
        tree["title"],
        tree.get("reference", ""),
        _count_runs(tree),
        None if small is None else _count_runs(small),
    )


def list_studies() -> None:
    """Print the name, the title and the number of runs of every study."""
    for path in study_files():
        study = summary(path)
        small = study.small_runs
        runs = f"{study.runs} runs" + ("" if small is None else f", --small {small}")
        print(f"{path.stem:<16} {study.title} ({runs})")


def _count_runs(tree: dict[str, Any]) -> int:
    rows = math.prod(len(axis) for axis in tree["axes"].values())
    return rows * len(tree.get("seeds", (0,)))


def _find(name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    names = [path.stem for path in study_files()]
    if name not in names:
        hint = did_you_mean(name, names) or f" There are: {', '.join(names)}"
        raise RecipeError(f"no study {name!r}.{hint}")
    return STUDIES / f"{name}.yaml"


def _read(path: Path) -> dict[str, Any]:
    """The tree of a file; RecipeError where its keys are not those of a study."""
    text = read_recipe_text(path)
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise RecipeError(f"{path}: must be a study, with {', '.join(REQUIRED)}")
    for part in (tree, tree.get("small", {})):
        for key in part:
            hint = did_you_mean(key, KEYS) or f" There are: {', '.join(KEYS)}"
            if key not in KEYS:
                raise RecipeError(f"{path}: a study has no {key!r}.{hint}")
    missing = [key for key in REQUIRED if key not in tree]
    if missing:
        raise RecipeError(f"{path}: a study needs {', '.join(missing)}")
    for part in (tree, tree.get("small", {})):
        _check_types(path, part)
    return tree


def _check_types(path: Path, tree: dict[str, Any]) -> None:
    """Raise RecipeError where a key has a value of another kind than it needs."""
    for key, value in tree.items():
        kind = KINDS.get(key, str)
        optional = value is None and key not in REQUIRED
        if not (isinstance(value, kind) or optional):
            raise RecipeError(
                f"{path}: `{key}` must be {IN_WORDS[kind]}. Received: {value!r}"
            )
    choose = tree.get("choose") or {"axes": {}}
    for key, axes in (("axes", tree.get("axes", {})), ("choose", choose.get("axes"))):
        values = axes.values() if isinstance(axes, dict) else [None]
        if not all(isinstance(value, dict) for value in values):
            raise RecipeError(
                f"{path}: `{key}` must have axes, each with names of values and their "
                f"settings. Received: {axes!r}"
            )


def _parse(
    tree: dict[str, Any], name: str, small: bool, flags: Mapping[str, str]
) -> Study:
    tree = {key: value for key, value in tree.items() if value is not None}
    base = merged({"recipe": tree.get("recipe")}, tree.get("settings", {}))
    typed = _nested({path: text for path, text in flags.items() if path != "seed"})
    seeds = [flags["seed"]] if "seed" in flags else tree.get("seeds", (0,))
    rows: dict[str, Row] = {}
    for labels, settings in combinations(tree["axes"]):
        values = merged(base, settings, typed)
        row = _row(
            f"{name}: {'-'.join(labels.values())}", values, labels, tree, typed, rows
        )
        rows[row.name] = row
    return Study(
        name,
        small,
        tree["title"],
        tree.get("reference", ""),
        tuple(rows.values()),
        tuple(tree["axes"]),
        tuple(_seed(seed, name) for seed in seeds),
        tuple(tree["columns"]),
        tuple(tree.get("figure", ())),
        {
            column: dict(_flat_names(values))
            for column, values in tree.get("published", {}).items()
        },
        tree.get("table", {}),
        tree.get("means"),
        tree.get("measure", "training"),
        _fewshot_data(tree.get("fewshot"), name),
    )


def _seed(value: Any, origin: str) -> int:
    whole = str(value).isdigit() and int(value) < 2**31
    require(whole, "seed", f"a whole number in [0, 2**31) in {origin}", value)
    return int(value)


def _fewshot_data(values: dict[str, Any] | None, origin: str) -> DataConfig | None:
    try:
        return None if values is None else DataConfig(**values)
    except TypeError:
        raise RecipeError(
            f"{origin}: `fewshot` must have keys of a recipe's `data`. "
            f"Received: {values}"
        ) from None


def _flat_names(values: Mapping[Any, Any]) -> Iterator[tuple[str, float]]:
    """Values by the names of rows: {B16: {pets: 95.8}} is that of B16-pets."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            for below, number in _flat_names(value):
                yield f"{name}-{below}", number
        else:
            yield str(name), value


Axes = Mapping[str, Mapping[Any, "dict[str, Any] | None"]]


def combinations(
    axes: Axes, outer: Axes | None = None, given: Mapping[str, str] | None = None
) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
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
        settings: dict[str, Any] = {}
        for _, tree in values:
            own = {k: v for k, v in (tree or {}).items() if str(k) not in names}
            special = [v for k, v in (tree or {}).items() if str(k) in chosen]
            settings = merged(settings, own, *special)
        yield labels, settings


def _row(
    origin: str,
    tree: dict[str, Any],
    labels: dict[str, str],
    file: dict[str, Any],
    typed: dict[str, Any],
    earlier: Mapping[str, Row],
) -> Row:
    """The row of one combination of the axes' values.

    Args:
        origin: For messages.
        tree: Values of the recipe, and `ROW_KEYS`.
        labels: The name of the value of each axis.
        file: The study's tree.
        typed: Values from the command line, which the candidates do not replace.
        earlier: The rows before this one.
    """
    tree = _filled(tree, labels)
    special = {key: tree.pop(key, None) for key in ROW_KEYS}
    if special["recipe"] is None:
        raise RecipeError(f"{origin}: needs a `recipe`")
    tree = merged(_recipe_tree(special["recipe"]), tree)
    tree["name"] = "-".join(labels.values())
    begins_with = _other_row(tree, earlier, origin)
    chooses = "choose" in file and special["choose"] is not False
    parse = functools.partial(_candidates, tree, labels, file, typed, origin)
    if group := special["group"]:
        groups = group if isinstance(group, list) else [group]
        labels = labels | {"group": JOINT.join(groups)}
    return Row(
        tree["name"],
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


def _nested(flags: Mapping[str, str]) -> dict[str, Any]:
    """Values by dotted paths as a tree; the recipe's parser checks their types."""
    tree: dict[str, Any] = {}
    for path, text in flags.items():
        *parents, last = path.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        try:
            branch[last] = yaml.safe_load(text)
        except yaml.YAMLError:
            branch[last] = text
    return tree


@functools.cache
def _recipe_tree(name: str) -> dict[str, Any]:
    """The values of a recipe, by its name or file."""
    own = name.endswith((".yaml", ".yml"))
    return yaml.safe_load(read_recipe_text(Path(name)) if own else recipe_yaml(name))


def _recipe(tree: dict[str, Any], origin: str) -> Recipe:
    return parse_recipe(yaml.safe_dump(tree, sort_keys=False), origin)


def _other_row(
    tree: dict[str, Any], earlier: Mapping[str, Row], origin: str
) -> Row | None:
    """The row whose model the weights are; each run then fills in its own file."""
    weights = str(tree.get("model", {}).get("weights"))
    if not weights.startswith(OTHER_ROW):
        return None
    tree["model"]["weights"] = "best.keras"
    name = weights.removeprefix(OTHER_ROW)
    if name not in earlier:
        raise RecipeError(
            f"{origin}: `model.weights` must be {OTHER_ROW} and an earlier row. "
            f"Received: {weights!r}"
        )
    return earlier[name]


def _candidates(
    tree: dict[str, Any],
    labels: Mapping[str, str],
    file: dict[str, Any],
    typed: dict[str, Any],
    origin: str,
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
