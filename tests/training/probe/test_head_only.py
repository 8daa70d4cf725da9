"""Head-only training on cached features, against a frozen model trained on images."""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from tiny_recipe import TINY_MODEL, TINY_RECIPE

from training.__main__ import main
from training.architectures.model_reading import read_classifier
from training.data.splits import load_splits
from training.errors import RecipeError, RunError
from training.evaluation.evaluate import evaluate
from training.fitting.fit import Recorder, fit
from training.probe.features import FeatureExtractor
from training.recipe import AugmentationConfig, DataConfig, OptimizerConfig

ROOT = pathlib.Path(__file__).parents[3]
# 1,293 training and 144 validation images; neither is a multiple of the batch.
RECIPE = dataclasses.replace(
    TINY_RECIPE,
    seed=5,
    epochs=3,
    batch_size=100,
    label_smoothing=0.1,
    accumulation=2,
    data=DataConfig("digits", validation=0.1),
    augmentation=AugmentationConfig(repeats=2),
    optimizer=OptimizerConfig(
        learning_rate=0.1, weight_decay=0.1, clip_norm=0.5, head_multiplier=2.0, ema=0.9
    ),
)
CACHED = dataclasses.replace(
    RECIPE, data=dataclasses.replace(RECIPE.data, cache_features=True)
)
FROZEN = dataclasses.replace(
    RECIPE, optimizer=dataclasses.replace(RECIPE.optimizer, frozen=("^(?!head/)",))
)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """The folder of the features of all tests of this module."""
    home = tmp_path_factory.mktemp("head_only")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_HOME", str(home))
        yield home / "keras_vit" / "features"


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache):
    """A finished run on cached features."""
    folder = tmp_path_factory.mktemp("cached") / "run"
    fit(CACHED, folder)
    return folder


def weights(file):
    return {w.path: np.asarray(w) for w in read_classifier(file).weights}


def figures(folder):
    rows = (folder / "history.csv").read_text("utf-8").splitlines()
    columns = rows[0].split(",")
    kept = [n for n, name in enumerate(columns) if "second" not in name]
    return np.array([[float(row.split(",")[n]) for n in kept] for row in rows[1:]])


def check_same_training(cached, folder, **changes):
    """Train on the images in a folder, and compare with the run on features."""
    fit(dataclasses.replace(FROZEN, **changes), folder, draw=False)
    for name in ("best.keras", "last.keras"):
        ours, theirs = weights(cached / name), weights(folder / name)
        assert ours.keys() == theirs.keys()
        for path, array in theirs.items():
            np.testing.assert_allclose(ours[path], array, rtol=0, atol=1e-5)
        assert np.abs(ours["head/kernel"]).max() > 0.1
    np.testing.assert_allclose(figures(cached), figures(folder), rtol=1e-3, atol=1e-5)


def test_training_is_that_of_a_frozen_model_on_the_images(run, tmp_path):
    check_same_training(run, tmp_path / "frozen")


DEVICES = """
import dataclasses
import pathlib
import sys
import keras
import tensorflow as tf
if keras.backend.backend() == "tensorflow":
    [cpu] = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, logical)
from test_head_only import CACHED, check_same_training
from training.fitting.fit import fit
folder = pathlib.Path(sys.argv[1])
recipe = dataclasses.replace(CACHED, strategy="mirrored")
assert fit(recipe, folder / "cached", draw=False)["devices"] == 2
check_same_training(folder / "cached", folder / "frozen", strategy="mirrored")
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_two_devices_train_the_same_on_features_and_images(tmp_path, backend):
    here = pathlib.Path(__file__).parent
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests/support", here))),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    command = [sys.executable, "-c", DEVICES, tmp_path]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def test_several_workers_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("training.fitting.fit.worker_count", lambda strategy: 2)
    with pytest.raises(RecipeError, match="false with several workers"):
        fit(CACHED, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_saved_model_is_a_whole_one_with_the_same_accuracy(run):
    model = read_classifier(run / "best.keras")
    best = max(row["val_accuracy"] for row in history(run))
    splits = load_splits(RECIPE.data, TINY_MODEL.channels)
    assert evaluate(model, splits.validation).accuracy == pytest.approx(best)
    assert best > 0.5


def history(folder):
    lines = (folder / "history.csv").read_text("utf-8").splitlines()
    names = lines[0].split(",")
    return [
        dict(zip(names, map(float, line.split(",")), strict=True)) for line in lines[1:]
    ]


@pytest.fixture(scope="module")
def stopped(run, tmp_path_factory):
    """A run that was stopped inside its second epoch."""

    class Stop(Exception):
        pass

    def stop(recorder, batch, logs=None):
        if len(recorder.history) == 1 and batch == 5:
            recorder.save()
            raise Stop

    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "on_train_batch_end", stop)
        with pytest.raises(Stop):
            fit(CACHED, folder, draw=False)
    return folder


def test_a_resumed_run_ends_with_the_same_weights_and_computes_no_feature_again(
    run, stopped, tmp_path, monkeypatch, cache
):
    before = set(cache.iterdir())

    def computed(*_):
        raise AssertionError("features are computed again")

    monkeypatch.setattr(FeatureExtractor, "batches", computed)
    resumed = shutil.copytree(stopped, tmp_path / "resumed")
    fit(CACHED, resumed, resume=True, draw=False)
    assert set(cache.iterdir()) == before
    ours, theirs = weights(resumed / "last.keras"), weights(run / "last.keras")
    for path, array in theirs.items():
        np.testing.assert_array_equal(ours[path], array)


def test_a_checkpoint_holds_the_classifier_alone(stopped):
    newest = max((stopped / "checkpoints").glob("*.npz"))
    with np.load(newest) as arrays:
        shapes = [arrays[n].shape for n in arrays.files if n.startswith("model_")]
    assert sorted(shapes) == [(10,), (12, 10)]


def test_a_checkpoint_of_other_frozen_weights_is_refused(run, tmp_path):
    begin = dataclasses.replace(
        CACHED,
        epochs=1,
        model=dataclasses.replace(TINY_MODEL, weights=str(tmp_path / "own.keras")),
    )
    model = read_classifier(run / "last.keras")
    model.save(tmp_path / "own.keras")
    fit(begin, tmp_path / "run", draw=False)
    model.get_layer("embedding").kernel.assign_add(model.get_layer("embedding").kernel)
    model.save(tmp_path / "own.keras")
    (tmp_path / "run" / "report.json").unlink()
    with pytest.raises(RunError, match="other frozen weights.*`model.weights`"):
        fit(begin, tmp_path / "run", resume=True, draw=False)


WITH_FLAGS = {
    "augmentation.flip true": "--augmentation.flip false",
    "augmentation.crop_min_area 0.5": "--augmentation.crop_min_area 1.0",
    "augmentation.mixup 0.2": "--augmentation.mixup 0.0",
    "augmentation.policy randaugment": "--augmentation.policy none",
    "model.patch_dropout 0.1": "--model.patch_dropout 0.0",
    "model.lora_rank 2": "--model.lora_rank null",
    "model.representation_size 7": "--model.representation_size null",
    "optimizer.frozen [head]": "--optimizer.frozen []",
    "optimizer.head_first 0.1": "--optimizer.head_first 0.0",
    "self_supervision.task mae": "--self_supervision.task none",
}


@pytest.mark.parametrize("flag", WITH_FLAGS)
def test_what_a_fixed_feature_would_ignore_is_refused(flag, tmp_path, capsys):
    name, value = flag.split()
    command = ["fit", "--data.source", "digits", "--data.cache_features", "true"]
    command += [f"--{name}", value, "--output_dir", str(tmp_path / "runs")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "`data.cache_features` must be false" in error
    assert WITH_FLAGS[flag] in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_all_flags_are_named_at_once():
    changed = AugmentationConfig(flip=True, erase=0.1)
    with pytest.raises(RecipeError, match=r"flip false --augmentation\.erase 0\.0\."):
        dataclasses.replace(CACHED, augmentation=changed)


@pytest.mark.parametrize("strategy", ["multi_worker", "tpu"])
def test_several_machines_are_refused(strategy):
    with pytest.raises(RecipeError, match=r"`strategy` must be auto.*cache_features"):
        dataclasses.replace(CACHED, strategy=strategy)
