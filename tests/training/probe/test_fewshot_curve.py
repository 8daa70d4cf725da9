"""The few-shot curve of a run: history, TensorBoard, terminal, resume."""

import contextlib
import dataclasses
import io
import shutil

import keras
import numpy as np
import pytest
from board_events import read_events
from fewshot_reference import fewshot_accuracy
from run_files import history, weights
from tiny_model import small
from tiny_recipe import CNN_RECIPE, changed
from without_pictures import leave_out_pictures

import keras_vit
from training.architectures.model_reading import read_classifier
from training.data.splits import load_splits
from training.errors import RecipeError
from training.fitting.fit import fit
from training.fitting.resume import resume
from training.probe.fewshot_curve import FewShotCurve

pytestmark = pytest.mark.usefixtures("eagerly")
RECIPE = changed(
    CNN_RECIPE,
    epochs=4,
    batch_size=70,
    data={"train": "train[:200]", "validation": 0.3, "test": "train[200:250]"},
    optimizer={"ema": 0.9},
    report={"fewshot_every": 2},
)
NAMES = ["val_fewshot_1", "val_fewshot_5", "val_fewshot_10"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        leave_out_pictures(patch.setattr)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            fit(RECIPE, folder)
    return folder, printed.getvalue()


@pytest.mark.slow
def test_every_second_epoch_has_the_accuracies_of_the_averaged_weights(run):
    folder, _ = run
    rows = history(folder)
    assert ["val_fewshot_5" in row for row in rows] == [False, True, False, True]
    assert [name for name in rows[1] if "fewshot" in name] == NAMES
    splits = load_splits(RECIPE.data, 1)
    as_test = dataclasses.replace(splits, validation=None, test=splits.validation)
    expected = fewshot_accuracy(read_classifier(folder / "last.keras"), as_test)
    for name, accuracies in zip(NAMES, expected.values(), strict=True):
        assert rows[-1][name] == pytest.approx(np.mean(accuracies), abs=1e-9)


@pytest.mark.slow
def test_tensorboard_has_them_against_the_epoch(run):
    folder, _ = run
    found = read_events(folder / "tensorboard" / "validation")["epoch_fewshot_5"]
    rows = history(folder)
    expected = {n: rows[n - 1]["val_fewshot_5"] for n in (2, 4)}
    assert found == pytest.approx(expected)


@pytest.mark.slow
def test_a_line_below_the_epochs_says_them(run):
    folder, printed = run
    rows = history(folder)
    lines = [line for line in printed.splitlines() if "frozen features" in line]
    assert len(lines) == 2
    figures = (f"{n}-shot {rows[1][f'val_fewshot_{n}']:.4f}" for n in (1, 5, 10))
    assert lines[0].split(": ")[1] == ", ".join(figures)
    assert max(map(len, lines)) <= 80


@pytest.mark.slow
def test_they_do_not_change_the_training(run, tmp_path, monkeypatch):
    leave_out_pictures(monkeypatch.setattr)
    folder, _ = run
    fit(changed(RECIPE, report={"fewshot_every": 0}), tmp_path / "plain")
    assert not [name for name in history(tmp_path / "plain")[1] if "fewshot" in name]
    np.testing.assert_equal(weights(folder), weights(tmp_path / "plain"))


@pytest.mark.slow
def test_a_resumed_run_has_the_same_figures(run, tmp_path, monkeypatch):
    leave_out_pictures(monkeypatch.setattr)
    folder, _ = run
    shutil.copytree(folder, tmp_path / "copy")
    checkpoints = sorted((tmp_path / "copy" / "checkpoints").iterdir())
    (tmp_path / "copy" / "report.json").unlink()
    assert len(checkpoints) == 2 * 3
    for path in checkpoints[2:]:  # what is left is of the second epoch
        path.unlink()
    resume(str(tmp_path / "copy"))
    assert history(tmp_path / "copy") == history(folder)


def test_it_needs_validation_images(tmp_path):
    with pytest.raises(RecipeError, match="`report.fewshot_every` must be 0"):
        fit(changed(RECIPE, data={"validation": 0}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_model_can_be_an_encoder_without_classes():
    """As in self-supervised training, whose own model is another one."""
    splits = load_splits(RECIPE.data, 1)
    pixels = keras_vit.ImagePreprocessing(8)
    encoder = small(image_size=8, channels=1, classes=None, preprocessing=pixels)
    curve = FewShotCurve(encoder, splits, 3, contextlib.nullcontext, None)
    trained = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    trained.compile("sgd", "mse")
    x = np.ones((2, 1))
    logs = trained.fit(x, x, epochs=4, verbose=0, callbacks=[curve]).history
    assert [len(logs[name]) for name in NAMES] == [2, 2, 2]
