"""Head-only training on cached features, against a frozen model trained on images."""

import shutil

import numpy as np
import pytest
import python_process
from run_files import CopyAsKilled, history
from tiny_recipe import TINY_MODEL, TINY_RECIPE, changed

from training.__main__ import main
from training.architectures.model_reading import read_classifier
from training.data.splits import load_splits
from training.errors import RecipeError, RunError
from training.evaluation.evaluate import evaluate
from training.fitting.fit import fit
from training.probe.features import FeatureExtractor
from training.probe.head_only import with_features

# 1,293 training and 144 validation images; neither is a multiple of the batch.
RECIPE = changed(
    TINY_RECIPE,
    seed=5,
    epochs=3,
    batch_size=100,
    label_smoothing=0.1,
    accumulation=2,
    data={"validation": 0.1},
    augmentation={"repeats": 2},
    optimizer={"learning_rate": 0.1, "weight_decay": 0.1, "clip_norm": 0.5}
    | {"head_multiplier": 2.0, "ema": 0.9},
)
CACHED = changed(RECIPE, data={"cache_features": True})
FROZEN = changed(RECIPE, optimizer={"frozen": ("^(?!head/)",)})


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """The folder of the features of all tests of this module."""
    home = tmp_path_factory.mktemp("head_only")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_HOME", str(home))
        yield home / "keras_vit" / "features"


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache):
    """A finished run on cached features, and a copy of it, killed after a checkpoint.

    The checkpoint is inside the second epoch.
    """
    folder = tmp_path_factory.mktemp("cached") / "run"
    copying = CopyAsKilled(folder, folder.with_name("killed"), batch=7)
    fit(CACHED, folder, draw=False, checkpoint_every=6, callbacks=[copying])
    return folder


def weights(file):
    return {w.path: np.asarray(w) for w in read_classifier(file).weights}


def check_same_training(cached, folder, **changes):
    """Train on the images in a folder, and compare with the run on features."""
    fit(changed(FROZEN, **changes), folder, draw=False)
    for name in ("best.keras", "last.keras"):
        ours, theirs = weights(cached / name), weights(folder / name)
        assert ours.keys() == theirs.keys()
        for path, array in theirs.items():
            np.testing.assert_allclose(ours[path], array, rtol=0, atol=1e-5)
        assert np.abs(ours["head/kernel"]).max() > 0.1
    for ours, theirs in zip(history(cached), history(folder), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


@pytest.mark.slow
def test_training_is_that_of_a_frozen_model_on_the_images(run, tmp_path):
    check_same_training(run, tmp_path / "frozen")


DEVICES = """
import pathlib
import sys
import keras
import tensorflow as tf
if keras.backend.backend() == "tensorflow":
    [cpu] = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, logical)
from test_head_only import CACHED, check_same_training
from tiny_recipe import changed
from training.fitting.fit import fit
folder = pathlib.Path(sys.argv[1])
recipe = changed(CACHED, strategy="mirrored")
assert fit(recipe, folder / "cached", draw=False)["devices"] == 2
check_same_training(folder / "cached", folder / "frozen", strategy="mirrored")
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_two_devices_train_the_same_on_features_and_images(tmp_path, backend):
    variables = python_process.on(backend, 2)
    python_process.run("-c", DEVICES, tmp_path, beside=__file__, **variables)


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


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_weights_and_computes_no_feature_again(
    run, tmp_path, monkeypatch, cache
):
    before = set(cache.iterdir())

    def computed(*_):
        raise AssertionError("features are computed again")

    monkeypatch.setattr(FeatureExtractor, "batches", computed)
    resumed = shutil.copytree(run.with_name("killed"), tmp_path / "resumed")
    fit(CACHED, resumed, resume=True, draw=False)
    assert set(cache.iterdir()) == before
    np.testing.assert_equal(
        weights(resumed / "last.keras"), weights(run / "last.keras")
    )


def test_a_checkpoint_holds_the_classifier_alone(run):
    newest = max((run.with_name("killed") / "checkpoints").glob("*.npz"))
    with np.load(newest) as arrays:
        shapes = [arrays[n].shape for n in arrays.files if n.startswith("model_")]
    assert sorted(shapes) == [(10,), (12, 10)]


@pytest.mark.slow
def test_a_checkpoint_of_other_frozen_weights_is_refused(run, tmp_path, eager_test):
    own = str(tmp_path / "own.keras")
    short = {"train": "train[:300]"}
    begin = changed(CACHED, epochs=1, data=short, model={"weights": own})
    model = read_classifier(run / "last.keras")
    model.save(own)
    fit(begin, tmp_path / "run", draw=False)
    model.get_layer("embedding").kernel.assign_add(model.get_layer("embedding").kernel)
    model.save(own)
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
    with pytest.raises(RecipeError, match=r"flip false --augmentation\.erase 0\.0\."):
        changed(CACHED, augmentation={"flip": True, "erase": 0.1})


@pytest.mark.parametrize("strategy", ["multi_worker", "tpu"])
def test_several_machines_are_refused(strategy):
    with pytest.raises(RecipeError, match=r"`strategy` must be auto.*cache_features"):
        changed(CACHED, strategy=strategy)


def test_a_model_with_a_second_classifier_is_refused(tiny_vit):
    model = tiny_vit(distilled=True, register_tokens=1)
    with pytest.raises(RunError, match="second classifier.*distilled=True"):
        with_features(None, model, None)
