"""The columns of a study's table: what is read, or computed, of a finished run.

report.json and history.csv of the run's folder have most; `measured.json` beside them
has what a study computes in addition. Accuracies are in percent, as papers print them.
"""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_vit.common.command_line import did_you_mean

from ..errors import RecipeError
from ..recipe import Recipe, load_recipe
from .estimates import images_seen, model_config_costs
from .study import Run, Study

MEASURED = "measured.json"


@dataclass(frozen=True)
class Result:
    """What a finished run's folder says.

    Args:
        run: The run.
        recipe: The recipe that it was trained with.
        report: The contents of report.json.
        measured: The contents of measured.json.
        history: One row for each epoch; empty where nothing was trained.
        before: The result of the run whose model this one began with, or None.
    """

    run: Run
    recipe: Recipe
    report: dict[str, Any]
    measured: dict[str, Any]
    history: list[dict[str, float]]
    before: "Result | None"


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        title: Its heading.
        form: The format of a value.
        value: Function from a result to its value, None where there is none.
    """

    title: str
    form: str
    value: Callable[[Result], float | None]


def _reported(key: str, factor: float = 1.0) -> Callable[[Result], float | None]:
    return lambda result: _times(result.report.get(key), factor)


def _measured(key: str, factor: float = 1.0) -> Callable[[Result], float | None]:
    return lambda result: _times(result.measured.get(key), factor)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _validation_accuracy(result: Result) -> float | None:
    """Of the last epoch, in percent."""
    return _times(result.history[-1].get("val_accuracy"), 100)


def _gigaflops(result: Result) -> float | None:
    costs = model_config_costs(result.recipe.model, _classes(result))
    return None if costs is None else costs.flops / 1e9


def _classes(result: Result) -> int | None:
    """Number of classes; None where no labels were learned."""
    return len(result.report.get("classes", ())) or None


def _pretraining(result: Result) -> Result:
    """Where a run begins with another, that one: papers count its compute."""
    return result if result.before is None else _pretraining(result.before)


def _exaflops(result: Result) -> float | None:
    """Of the training of this run and of its trials; see `_pretraining`."""
    result = _pretraining(result)
    trials = [candidate.trial for candidate in result.run.row.candidates.values()]
    images = result.report["training_images"]
    seen = sum(images_seen(recipe, images) or 0 for recipe in (*trials, result.recipe))
    costs = model_config_costs(result.recipe.model, _classes(result))
    return None if costs is None else 3 * costs.flops * seen / 1e18


def _core_hours(result: Result) -> float | None:
    """Hours of training at the last epoch's speed, times the cores or devices.

    Without validation and the first step's compilation; see `_pretraining`.
    """
    result = _pretraining(result)
    speed = result.report["images_per_second"]
    seen = images_seen(result.recipe, result.report["training_images"])
    if not speed or seen is None:
        return None
    on_cpu = result.report["device_name"] == "CPU"
    cores = result.report["cores" if on_cpu else "devices"]
    return cores * seen / speed / 3600


COLUMNS = {
    "accuracy": Column("accuracy, %", ".2f", _reported("accuracy", 100)),
    "macro_f1": Column("macro F1, %", ".2f", _reported("macro_f1", 100)),
    "accuracy_before": Column(
        "accuracy before, %", ".2f", _measured("accuracy_before", 100)
    ),
    "macro_f1_before": Column(
        "macro F1 before, %", ".2f", _measured("macro_f1_before", 100)
    ),
    "validation_accuracy": Column(
        "validation accuracy, %", ".2f", _validation_accuracy
    ),
    **{
        f"fewshot_{shots}": Column(
            f"{shots}-shot linear, %", ".2f", _measured(f"fewshot_{shots}", 100)
        )
        for shots in (1, 5, 10, 25)
    },
    "linear": Column("linear probe, %", ".2f", _measured("linear", 100)),
    "parameters": Column("million weights", ".4g", _reported("parameters", 1e-6)),
    "gigaflops": Column("GFLOPs", ".4g", _gigaflops),
    "exaflops": Column("exaFLOPs", ".3g", _exaflops),
    "core_hours": Column("core-hours", ".3g", _core_hours),
    "minutes": Column("minutes", ".2g", _reported("seconds", 1 / 60)),
    "images_per_second": Column(
        "training images/s", ",.0f", _reported("images_per_second")
    ),
    "forward_images_per_second": Column(
        "forward images/s", ",.1f", _reported("forward_images_per_second")
    ),
    "largest_batch": Column("largest batch", ",.0f", _reported("largest_batch")),
    "tokens": Column("tokens", ",.0f", _reported("tokens")),
}


# Those that no seed changes; their deviation is not worth a cell.
FIXED = ("parameters", "gigaflops", "exaflops", "tokens", "largest_batch")


def check_columns(study: Study) -> None:
    """Raise RecipeError for an unknown column in a study."""
    for name in (*study.columns, *study.published):
        if name not in COLUMNS:
            hint = did_you_mean(name, COLUMNS) or f" There are: {', '.join(COLUMNS)}"
            raise RecipeError(f"{study.name}: no column {name!r}.{hint}")


def shots_of(study: Study) -> tuple[int, ...]:
    """The shots of the study's few-shot columns."""
    matches = (re.fullmatch(r"fewshot_(\d+)", name) for name in study.columns)
    return tuple(int(match[1]) for match in matches if match)


def read_result(run: Run, folder: Path) -> Result | None:
    """Read a run's folder below the study's; None where the run is not finished."""
    path = folder / run.name
    if not (path / "report.json").exists():
        return None
    return Result(
        run,
        load_recipe(path / "recipe.yaml"),
        _json(path / "report.json"),
        _json(path / MEASURED),
        read_history(path),
        None if run.begins_with is None else read_result(run.begins_with, folder),
    )


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def read_history(path: Path) -> list[dict[str, float]]:
    """The rows of history.csv in a run's folder; none where nothing was trained."""
    file = path / "history.csv"
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as rows:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(rows)]
