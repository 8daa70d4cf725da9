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
from typing import NamedTuple

from keras_vit.common.file_names import HISTORY, RECIPE, REPORT

from ..engine import run_folder
from ..engine.progress import Logs
from ..engine.run_folder import Report
from ..evaluation.metrics import METRICS
from ..recipe import Recipe, load_recipe
from .estimates import images_seen, model_config_costs
from .study import Run, Study, check_name

MEASURED = "measured.json"


@dataclass(frozen=True)
class Result:
    """What a finished run's folder says."""

    run: Run
    recipe: Recipe  # that it was trained with
    report: Report
    measured: Report  # measured.json
    history: list[Logs]  # a row for each epoch; none without training
    before: "Result | None"  # of the run whose model this one began with

    @property
    def pretraining(self) -> "Result":
        """The run at which a chain of runs begins: papers count its compute."""
        return self if self.before is None else self.before.pretraining

    @property
    def flops(self) -> int | None:
        """FLOPs of a forward pass of one image."""
        classes = len(self.report.get("classes", ())) or None
        costs = model_config_costs(self.recipe.model, classes)
        return None if costs is None else costs.flops


class Column(NamedTuple):
    """One column."""

    title: str
    form: str  # the format of a value
    value: Callable[[Result], float | None]


def _reported(title: str, form: str, key: str, factor: float = 1.0) -> Column:
    return Column(title, form, lambda result: _times(result.report.get(key), factor))


def _measured(title: str, key: str) -> Column:
    return Column(title, ".2f", lambda result: _times(result.measured.get(key), 100))


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _exaflops(result: Result) -> float | None:
    """Training compute of this run (or of its pre-training), with its trials'."""
    result = result.pretraining
    trials = [candidate.trial for candidate in result.run.row.candidates.values()]
    images = result.report["training_images"]
    seen = sum(images_seen(recipe, images) or 0 for recipe in (*trials, result.recipe))
    return _times(result.flops, 3 * seen / 1e18)


def _core_hours(result: Result) -> float | None:
    """Hours of training at the last epoch's speed, times the cores or devices.

    Without validation and the first step's compilation; that of its pre-training.
    """
    result = result.pretraining
    speed = result.report["images_per_second"]
    seen = images_seen(result.recipe, result.report["training_images"])
    if not speed or seen is None:
        return None
    on_cpu = result.report["device_name"] == "CPU"
    devices: int = result.report["cores" if on_cpu else "devices"]
    return devices * seen / float(speed) / 3600


COLUMNS = {
    **{
        name: _reported(f"{metric.title}, %", ".2f", name, 100)
        for name, metric in METRICS.items()
    },
    "accuracy_before": _measured("accuracy before, %", "accuracy_before"),
    "macro_f1_before": _measured("macro F1 before, %", "macro_f1_before"),
    "validation_accuracy": Column(
        "validation accuracy, %",
        ".2f",
        lambda result: _times(result.history[-1].get("val_accuracy"), 100),
    ),
    **{
        f"fewshot_{n}": _measured(f"{n}-shot linear, %", f"fewshot_{n}")
        for n in (1, 5, 10, 25)
    },
    "linear": _measured("linear probe, %", "linear"),
    "parameters": _reported("million weights", ".4g", "parameters", 1e-6),
    "gigaflops": Column("GFLOPs", ".4g", lambda result: _times(result.flops, 1e-9)),
    "exaflops": Column("exaFLOPs", ".3g", _exaflops),
    "core_hours": Column("core-hours", ".3g", _core_hours),
    "minutes": _reported("minutes", ".2g", "seconds", 1 / 60),
    "images_per_second": _reported("training images/s", ",.0f", "images_per_second"),
    "forward_images_per_second": _reported(
        "forward images/s", ",.1f", "forward_images_per_second"
    ),
    "largest_batch": _reported("largest batch", ",.0f", "largest_batch"),
    "tokens": _reported("tokens", ",.0f", "tokens"),
}
# Those that no seed changes; their deviation is not worth a cell.
FIXED = ("parameters", "gigaflops", "exaflops", "tokens", "largest_batch")


def check_columns(study: Study) -> None:
    """Raise RecipeError for an unknown column in a study."""
    for name in (*study.columns, *study.published):
        check_name(name, list(COLUMNS), f"{study.name}: no column")


def shots_of(study: Study) -> tuple[int, ...]:
    """The shots of the study's few-shot columns."""
    matches = (re.fullmatch(r"fewshot_(\d+)", name) for name in study.columns)
    return tuple(int(match[1]) for match in matches if match)


def read_result(run: Run, folder: Path) -> Result | None:
    """Read a run's folder below the study's; None where the run is not finished."""
    path = folder / run.name
    if not run_folder.is_finished(path):
        return None
    return Result(
        run,
        load_recipe(path / RECIPE),
        read_json(path / REPORT),
        read_json(path / MEASURED),
        read_history(path),
        None if run.begins_with is None else read_result(run.begins_with, folder),
    )


def read_json(path: Path) -> Report:
    """The contents of a JSON file; nothing where it is missing."""
    contents: Report = {}
    if path.exists():
        contents = json.loads(path.read_text("utf-8"))
    return contents


def read_history(path: Path) -> list[Logs]:
    """The rows of history.csv in a run's folder; none where nothing was trained."""
    file = path / HISTORY
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as rows:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(rows)]
