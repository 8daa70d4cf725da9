"""Run a study: every run in its folder, reused where finished, resumed where not."""

import contextlib
import gc
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import keras
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from keras_vit.analysis import figures
from keras_vit.common.file_names import BEST_MODEL, RECIPE, REPORT

from .. import storage
from ..architectures.model_reading import read_model
from ..architectures.recipe_model import build_model
from ..data.splits import load_splits
from ..engine import run_folder
from ..engine.strategy import evaluation_strategy
from ..errors import Preempted, RunError
from ..evaluation.evaluate import evaluate
from ..evaluation.probe_command import FrozenModel, ProbeConfig, probe
from ..fitting.fit import fit
from ..probe.features import FeatureExtractor
from ..recipe import Recipe, load_recipe
from . import speed
from .columns import COLUMNS, MEASURED, read_history, read_json, read_result, shots_of
from .study import Run, Study

MARKER = "study.json"  # says whose folder it is
LOGS = "logs"  # what each run printed
CHOICES = "choices"  # folder of the candidates' runs


def run_study(study: Study, folder: Path, runs: Sequence[Run]) -> dict[str, str]:
    """Run what is not finished, one run after the other.

    A run that fails does not stop the others.

    Returns:
        The error of each run that failed, in one line, by its name.

    Raises:
        RunError: The folder is another study's, or has a run of another recipe.
        Preempted: Stopped by SIGTERM; the same command continues.
    """
    figures.figure(1, 1)  # report a missing extra before the training, not after
    check_folder(study, folder)
    for run in runs:
        _check_run(run, folder)
    (folder / LOGS).mkdir(parents=True, exist_ok=True)
    marker = {"study": study.name, "small": study.small}
    storage.write_text(folder / MARKER, json.dumps(marker) + "\n")
    failures: dict[str, str] = {}
    progress = Progress(
        *Progress.get_default_columns()[:2],
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr),
        redirect_stdout=False,  # the runs' own output goes to files
        redirect_stderr=False,
    )
    with _quiet_loggers(), progress:
        task = progress.add_task(study.name, total=len(runs))
        for run in runs:
            progress.update(task, description=run.name)
            try:
                line = _finish_run(study, run, folder)
            except Preempted:
                raise
            except Exception as error:  # whatever it is, the other runs go on  # noqa: BLE001
                kind = (
                    "" if isinstance(error, RunError) else type(error).__name__ + ": "
                )
                failures[run.name] = kind + " ".join(str(error).split())
                line = f"failed: {failures[run.name]}"
            progress.console.print(f"{run.name}: {line}", highlight=False)
            progress.advance(task)
    return failures


@contextlib.contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Only errors of TensorFlow and keras_vit.

    Each run traces its own functions, and many begin with another's weights: TensorFlow
    would warn of the first, keras_vit of the new classifier.
    """
    loggers = [logging.getLogger(name) for name in ("tensorflow", "keras_vit")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def check_folder(study: Study, folder: Path) -> None:
    """Raise RunError where a folder is not this study's, in this form, and not new."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    marker = folder / MARKER
    if not marker.exists():
        raise RunError(f"{folder}: exists and is not a study's; choose --output_dir")
    found = json.loads(marker.read_text("utf-8"))
    if found != {"study": study.name, "small": study.small}:
        form = " --small" if found["small"] else ""
        raise RunError(
            f"{folder}: has the runs of the study {found['study']}{form}; choose "
            "another --output_dir"
        )


def _check_run(run: Run, folder: Path) -> None:
    """Raise RunError where the run's folder has a run of another recipe."""
    path = folder / run.name
    if not _is_of(run, folder):
        raise RunError(
            f"{path}: contains a run of another recipe, such as one of other images; "
            "choose another --output_dir"
        )


def _is_of(run: Run, folder: Path) -> bool:
    """Whether the run's folder has its recipe, or none."""
    file = folder / run.name / RECIPE
    if not file.exists():
        return True
    found = load_recipe(file)
    finals = [candidate.final for candidate in run.row.candidates.values()]
    expected = [run.prepared(recipe, folder) for recipe in finals or [run.row.recipe]]
    return run.prepared(found, folder) in expected  # the folder may have been moved


def is_finished(run: Run, folder: Path) -> bool:
    """Whether a run in its folder below the study's is finished, and of its recipe."""
    return run_folder.is_finished(folder / run.name) and _is_of(run, folder)


def _finish_run(study: Study, run: Run, folder: Path) -> str:
    """Do what a run still lacks.

    Returns:
        What it did, in one line.
    """
    began = time.perf_counter()
    path = folder / run.name
    if _is_complete(study, path):
        return "finished before"
    log = folder / LOGS / f"{run.name}.log"
    with (
        log.open("a", encoding="utf-8") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        if study.measure == "speed":
            _measure_speed(run.prepared(run.row.recipe, folder), path)
        else:
            _train(study, run, folder)
    gc.collect()  # two large models at a time need not fit into memory
    result = read_result(run, folder)
    shown = "accuracy" if "accuracy" in study.columns else study.columns[0]
    column = COLUMNS[shown]
    value = None if result is None else column.value(result)
    figure = "" if value is None else f"{column.title} {value:{column.form}}, "
    return f"{figure}{time.perf_counter() - began:.0f} s"


def _is_complete(study: Study, path: Path) -> bool:
    """Whether a run is finished and has what the study computes in addition."""
    return run_folder.is_finished(path) and _measured_columns(study) <= set(
        read_json(path / MEASURED)
    )


def _measured_columns(study: Study) -> set[str]:
    """Those that `_train` computes after the training."""
    return {
        name
        for name in study.columns
        if name.startswith(("fewshot_", "linear")) or name.endswith("_before")
    }


def _measure_speed(recipe: Recipe, path: Path) -> None:
    report = speed.measure(recipe)
    path.mkdir(parents=True, exist_ok=True)
    storage.write_text(path / RECIPE, recipe.to_yaml())
    run_folder.write_report(path / REPORT, report)


def _train(study: Study, run: Run, folder: Path) -> None:
    """Choose among candidates, train, and compute what the columns need."""
    path = folder / run.name
    before = run.begins_with
    if before is not None and not run_folder.is_finished(folder / before.name):
        raise RunError(f"it begins with {before.name}, which is not finished")
    measured = read_json(path / MEASURED)
    recipe = run.row.recipe
    if run.row.candidates:
        measured.setdefault("choice", choose(run, folder))
        recipe = run.row.candidates[measured["choice"]].final
    recipe = run.prepared(recipe, folder)
    if not run_folder.is_finished(path):
        fit(recipe, path, resume=True, draw=not study.small)
    if any(name.endswith("_before") for name in study.columns):
        scores = untrained_scores(recipe)
        measured |= {f"{key}_before": value for key, value in scores.items()}
    measured |= _frozen(study, recipe, path)
    if measured:
        run_folder.write_report(path / MEASURED, measured)


def choose(run: Run, folder: Path) -> str:
    """Train every candidate; finished trials are reused.

    Returns:
        The name of the one with the best validation accuracy after the last epoch, of
        equal ones the first.
    """
    scores = {}
    for name, candidate in run.row.candidates.items():
        path = folder / CHOICES / f"{run.name}-{name}"
        if not run_folder.is_finished(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            fit(run.prepared(candidate.trial, folder), path, resume=True, draw=False)
            gc.collect()
        scores[name] = read_history(path)[-1]["val_accuracy"]
    return max(scores, key=lambda name: scores[name])


def untrained_scores(recipe: Recipe) -> dict[str, float]:
    """Test accuracy and macro F1 of a recipe's model before its training."""
    devices = evaluation_strategy(recipe.strategy, recipe.tpu, recipe.deterministic)
    splits = load_splits(recipe.data, recipe.model.channels)
    keras.utils.set_random_seed(recipe.seed)
    with devices.scope():
        model = build_model(recipe.model, splits.class_names, recipe.precision)
        summary = evaluate(model, splits.test).summary()
    return {key: summary[key] for key in ("accuracy", "macro_f1")}


def _frozen(study: Study, recipe: Recipe, path: Path) -> dict[str, float]:
    """Accuracies of the best model's frozen features, where asked for."""
    shots, linear = shots_of(study), "linear" in study.columns
    if not shots and not linear:
        return {}
    splits = load_splits(study.fewshot or recipe.data, recipe.model.channels)
    devices = evaluation_strategy(recipe.strategy, recipe.tpu, recipe.deterministic)
    with devices.scope():
        model = read_model(path / BEST_MODEL)
    frozen = FrozenModel(FeatureExtractor(model, devices), cache=None)
    found = {}
    if shots:
        rows = probe(frozen, splits, ProbeConfig("fewshot", shots))
        found = {f"fewshot_{row['shots']}": row["accuracy"] for row in rows}
    if linear:
        [row] = probe(frozen, splits, ProbeConfig("linear"))
        found["linear"] = row["accuracy"]
    return found
