"""`fit` on a tiny model: reproducibility, resuming, and the written files."""

import contextlib
import dataclasses
import datetime
import io
import json
import re
import shutil
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from run_files import CopyAsKilled, history, weights
from sklearn.metrics import accuracy_score, f1_score
from tiny_recipe import TINY_RECIPE, changed

from training.architectures.compiling import compiles
from training.architectures.model_reading import read_classifier
from training.architectures.recipe_model import build_model
from training.data.splits import load_splits
from training.errors import RecipeError, RunError
from training.evaluation.evaluate import Evaluation, evaluate
from training.fitting.fit import fit
from training.reporting.progress_line import EpochLines

# Everything that draws random numbers is on.
RECIPE = changed(
    TINY_RECIPE,
    seed=3,
    epochs=2,
    batch_size=100,
    label_smoothing=0.1,
    model={"dropout": 0.2, "stochastic_depth": 0.2},
    data={"validation": 0.1},
    augmentation={"shift": 1, "flip": True},
    optimizer={"learning_rate": 3e-3, "weight_decay": 0.01},
    schedule={"name": "cosine", "warmup_epochs": 0.5},
)


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self):
        return True


@pytest.fixture(scope="module")
def undrawn_board():
    """Here TensorBoard gets its pictures."""


@pytest.fixture(scope="module")
def terminal():
    """Output of a run on a terminal; after `run`."""
    return Terminal()


@pytest.fixture(scope="module")
def run(tmp_path_factory, terminal):
    """A finished run, with a copy of its folder as a kill would have left it."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    copying = CopyAsKilled(folder, folder.with_name("killed"))
    with contextlib.redirect_stdout(terminal):
        fit(RECIPE, folder, callbacks=[copying])
    return folder


def epoch_lines(printed):
    """The lines below the heading of the epochs, as they finally look."""
    lines = [line.rpartition("\r")[2] for line in printed.split("\n")]
    first = next(n for n, line in enumerate(lines) if line.startswith("    epoch"))
    return [line for line in lines[first + 1 :] if re.match(r" *\d+/\d+ ", line)]


def test_each_epoch_prints_a_line_of_at_most_80_columns(run, terminal):
    printed = terminal.getvalue()
    figures = [line.split() for line in epoch_lines(printed)]
    rows = history(run)
    assert [f[0] for f in figures] == [f"{n + 1}/{len(rows)}" for n in range(len(rows))]
    names = ("loss", "accuracy", "val_loss", "val_accuracy")
    for ours, row in zip(figures, rows, strict=True):
        expected = [row[name] for name in names]
        assert list(map(float, ours[1:5])) == pytest.approx(expected, rel=1e-3)
    before = printed.partition("Test images")[0]
    assert before.count("\n") <= 2 + len(rows)
    assert max(map(len, re.split("[\r\n]", before))) <= 80


@pytest.mark.parametrize("terminal", [False, True])
def test_the_largest_figures_fit_80_columns_too(monkeypatch, capsys, terminal):
    names = ("loss", "accuracy", "val_loss", "val_accuracy", "images_per_second")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    lines = EpochLines()
    lines.set_params({"epochs": 1000, "steps": 1_281_167})
    lines.on_epoch_begin(999)
    monkeypatch.setattr(lines, "began", lines.began - 123_456.7)
    lines.on_train_batch_end(1_281_166)
    lines.on_epoch_end(999, dict.fromkeys(names, 1.23456789e-7))
    accuracies = {"accuracy": 1.0, "val_accuracy": 1.0}
    lines.on_epoch_end(999, dict.fromkeys(names, 123456.789) | accuracies)
    printed = capsys.readouterr().out
    assert ("\r" in printed) == terminal
    assert ("step 1281167/1281167" in printed) == terminal
    assert max(map(len, re.split("[\r\n]", printed))) <= 80
    assert printed.count("\n") == 3


@pytest.mark.parametrize("terminal", [False, True])
def test_the_best_epoch_so_far_is_marked(monkeypatch, capsys, terminal):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    rows = [{"val_accuracy": a, "val_loss": b} for a, b in ((0.5, 2.0), (0.5, 1.0))]
    rows += [
        {"val_accuracy": 0.4, "val_loss": 0.5},
        {"val_accuracy": 0.6, "val_loss": 3},
    ]
    seen = []  # the first two epochs were before the run was resumed
    lines = EpochLines(seen)
    lines.set_params({"epochs": 4, "steps": 1})
    for epoch, row in enumerate(rows):
        if epoch >= 2:
            lines.on_epoch_begin(epoch)
            lines.on_epoch_end(epoch, row)
        seen.append(row)
    printed = epoch_lines(capsys.readouterr().out)
    assert [line.split()[-1] == "best" for line in printed] == [False, True]
    assert all(line == line.rstrip() for line in printed) != terminal


def test_a_terminal_shows_the_time_left(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = EpochLines()
    lines.set_params({"epochs": 10, "steps": 100})
    lines.on_epoch_begin(2)  # a resumed run
    for step in range(3):
        now[0] += 60 if step == 0 else 5  # the first step compiles
        lines.on_train_batch_end(step)
    shown = [text.strip() for text in capsys.readouterr().out.split("\r")]
    left = datetime.timedelta(seconds=5 * (1000 - 203))
    assert shown[1] == "3/10  step 1/100"
    assert shown[-1] == f"3/10  step 3/100, ETA {left}"


@pytest.mark.slow
def test_a_run_shorter_than_its_warmup_shortens_the_warmup(tmp_path, capsys):
    recipe = changed(RECIPE, epochs=1, schedule={"warmup_epochs": 8})
    fit(recipe, tmp_path / "short")
    note = r"warm-up takes (\d+) of the run's (\d+) steps instead of the recipe's (\d+)"
    steps, length, stated = map(int, re.search(note, capsys.readouterr().out).groups())
    assert (steps, stated) == (length // 10, 8 * length)
    assert len(history(tmp_path / "short")) == 1


@pytest.fixture(scope="module")
def resumed(run):
    """A killed run, resumed without pictures: its folder and report."""
    folder = run.with_name("killed")
    assert len(history(folder)) == 1
    keras.utils.set_random_seed(99)
    return folder, fit(RECIPE, folder, resume=True, draw=False)


def test_a_resumed_run_ends_with_the_same_weights(run, resumed):
    folder, _ = resumed
    for name in ("best", "last"):
        np.testing.assert_equal(weights(folder, name), weights(run, name))
    assert history(folder) == history(run)


def test_a_run_does_not_resume_with_other_images(run, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / "report.json").unlink()

    def one_fewer(config, channels):
        splits = load_splits(config, channels)
        return dataclasses.replace(
            splits, train=splits.train.subset(np.arange(1, len(splits.train)))
        )

    monkeypatch.setattr("training.fitting.fit.load_splits", one_fewer)
    with pytest.raises(RunError, match="checkpoint of other images"):
        fit(RECIPE, tmp_path / "copy", resume=True)


@pytest.mark.slow
def test_a_run_stopped_before_its_report_can_be_finished(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    for name in ("report.json", "last.keras"):
        (tmp_path / "copy" / name).unlink()
    fit(RECIPE, tmp_path / "copy", resume=True, draw=False)
    np.testing.assert_equal(weights(tmp_path / "copy"), weights(run))


def test_a_run_writes_all_its_files(run):
    files = """
        .lock best.keras checkpoints confusion_matrix.png curves.png examples.png
        history.csv last.keras misclassified.png recipe.yaml reliability.png
        report.html report.json tensorboard
    """
    assert sorted(path.name for path in run.iterdir()) == files.split()
    assert [row["epoch"] for row in history(run)] == [1, 2]


def test_a_run_that_draws_nothing_has_the_same_results(run, resumed):
    folder, report = resumed
    drawn = json.loads((run / "report.json").read_text())
    assert report["accuracy"] == drawn["accuracy"]
    assert report["best_epoch"]["val_loss"] == drawn["best_epoch"]["val_loss"]
    names = {path.name for path in folder.iterdir()}
    assert not [name for name in names if name.endswith((".png", ".html"))]
    assert {"best.keras", "report.json", "history.csv", "tensorboard"} <= names


def test_the_report_matches_the_best_model(run):
    report = json.loads((run / "report.json").read_text())
    splits = load_splits(RECIPE.data, channels=1)
    model = read_classifier(run / "best.keras")
    images = np.stack([splits.test.read(tf.constant(i)).numpy() for i in range(360)])
    predicted = model.predict(images, verbose=0).argmax(axis=1)
    labels = splits.test.labels
    assert report["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert report["macro_f1"] == pytest.approx(
        f1_score(labels, predicted, average="macro")
    )
    assert report["parameters"] == model.count_params()
    assert report["classes"]["7"]["support"] == 36


def test_the_best_epoch_has_the_highest_validation_accuracy(run):
    report = json.loads((run / "report.json").read_text())
    validation = load_splits(RECIPE.data, channels=1).validation
    accuracy = evaluate(read_classifier(run / "best.keras"), validation).accuracy
    highest = max(row["val_accuracy"] for row in history(run))
    assert accuracy == pytest.approx(highest)
    assert report["best_epoch"]["val_accuracy"] == pytest.approx(highest)


def test_sizes_that_do_not_fit_are_a_one_line_error(tmp_path):
    with pytest.raises(RecipeError, match="multiple of `patch_size`"):
        fit(changed(RECIPE, model={"patch_size": 3}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, False), ({"jit_compile": "on"}, True), ({"strategy": "tpu"}, True)],
)
def test_xla_is_off_on_a_cpu_by_default(changes, expected):
    model = build_model(RECIPE.model, None)
    assert compiles(changed(RECIPE, **changes), model) == expected


def test_initial_position_embeddings_have_the_recipes_size():
    config = dataclasses.replace(RECIPE.model, position_stddev=3.0, patch_size=1)
    positions = build_model(config, ("a", "b")).get_layer("position_embedding")
    assert np.std(positions.embedding) == pytest.approx(3.0, rel=0.1)


def test_scores_match_those_computed_by_hand():
    labels = np.array([0, 1, 2, 3, 4, 5, 0])
    probabilities = np.eye(6, dtype="float32")[[0, 1, 2, 3, 4, 0, 1]]
    probabilities[5] = [0.3, 0.25, 0.2, 0.15, 0.1, 0.0]  # the true class comes last
    evaluation = Evaluation(tuple("abcdef"), labels, probabilities)
    summary = evaluation.summary()
    assert summary["accuracy"] == pytest.approx(5 / 7)
    assert summary["top_5"] == pytest.approx(6 / 7)
    assert summary["macro_f1"] == pytest.approx((1 / 2 + 2 / 3 + 1 + 1 + 1 + 0) / 6)
    assert summary["classes"]["a"]["recall"] == 0.5
    assert evaluation.confusion()[5, 0] == 1
    assert evaluation.confusion()[0, 1] == 1
