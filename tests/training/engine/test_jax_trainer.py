"""Training on JAX: TensorFlow's numbers, one device and two, resuming."""

import csv
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from tiny_recipe import TINY_RECIPE

from training.architectures.recipe_model import build_model
from training.engine.jax_strategy import make_jax_strategy
from training.errors import RecipeError
from training.fitting.fit import fit
from training.recipe import (
    AugmentationConfig,
    DataConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    load_recipe,
)

ROOT = pathlib.Path(__file__).parents[3]
SUPPORT = ROOT / "tests" / "support"

# Everything at once but dropout, whose random numbers differ between the backends. The
# 144 validation images do not fill a batch.
RECIPE = dataclasses.replace(
    TINY_RECIPE,
    epochs=2,
    batch_size=240,
    accumulation=2,
    steps_per_execution=2,
    label_smoothing=0.1,
    data=DataConfig("digits", validation=0.1),
    augmentation=AugmentationConfig(mixup=0.2),
    optimizer=OptimizerConfig(
        learning_rate=0.003, weight_decay=0.1, clip_norm=0.1, ema=0.9, layer_decay=0.8
    ),
    schedule=ScheduleConfig(warmup_epochs=1),
)

COMPARED = ("loss", "val_loss", "gradient_norm", "learning_rate")
# Rounding decides images between two classes; an epoch has 1200.
ACCURACIES, FEW_IMAGES = ("accuracy", "val_accuracy"), 0.01

# One run is interrupted after its ninth step of ten and resumed from the seventh, in
# the middle of the second epoch; the other is not interrupted.
RESUME = """
import keras, pathlib, sys
from without_pictures import leave_out_pictures
from training.fitting.fit import fit
from training.recipe import load_recipe

class Crash(keras.callbacks.Callback):
    calls = 0
    def on_train_batch_end(self, batch, logs=None):
        self.calls += 1  # of two steps, the third of an epoch of one
        if self.calls == 5:
            raise KeyboardInterrupt

leave_out_pictures()
folder = pathlib.Path(sys.argv[1])
recipe = load_recipe(folder / "dropout.yaml")
try:
    fit(recipe, folder / "resumed", checkpoint_every=7, callbacks=[Crash()])
except KeyboardInterrupt:
    pass
print(sorted(p.name for p in (folder / "resumed" / "checkpoints").iterdir()))
fit(recipe, folder / "resumed", resume=True, checkpoint_every=7)
fit(recipe, folder / "straight")
"""


def recipe_text(**model):
    """The recipe as YAML, with other options of the model."""
    changed = dataclasses.replace(RECIPE.model, **model)
    return dataclasses.replace(RECIPE, model=changed).to_yaml()


def start(*arguments, devices=1):
    """Start a process on JAX: Keras chooses its backend once, at import."""
    environment = os.environ | {
        "PYTHONPATH": str(SUPPORT),
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process):
    out, error = process.communicate()
    assert process.returncode == 0, error
    return out


def history(folder):
    """The metrics of each epoch, without its times."""
    with (folder / "history.csv").open() as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    left_out = ("seconds", "images_per_second")
    return [{k: row[k] for k in row if k not in left_out} for row in rows]


def compare(ours, theirs, atol):
    """Check that two histories are equal up to rounding."""
    for mine, other in zip(ours, theirs, strict=True):
        for name in COMPARED:
            assert mine[name] == pytest.approx(other[name], abs=atol, rel=0), name
        for name in ACCURACIES:
            assert mine[name] == pytest.approx(other[name], abs=FEW_IMAGES), name


def state(folder):
    """The arrays of the last checkpoint."""
    newest = sorted((folder / "checkpoints").glob("*.npz"))[-1]
    arrays = dict(np.load(newest))
    del arrays["__meta__"]
    return arrays


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of the runs of one recipe from the same initial weights."""
    folder = tmp_path_factory.mktemp("jax")
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe_text(weights=str(folder / "start.keras")))
    model = build_model(RECIPE.model, tuple("0123456789"))
    model.save(folder / "start.keras")
    fit(load_recipe(recipe), folder / "tensorflow", draw=False)
    words = (SUPPORT / "without_pictures.py", "fit", "--config", recipe, "--output_dir")
    processes = [
        start(*words, folder / name, devices=devices)
        for name, devices in (("one", 1), ("two", 2))
    ]
    for process in processes:
        output(process)
    return folder


@pytest.mark.slow
def test_the_losses_are_those_of_tensorflow(runs):
    ours, theirs = history(runs / "one"), history(runs / "tensorflow")
    assert ours[0].keys() == theirs[0].keys()
    assert len(ours) == len(theirs) == 2
    compare(ours, theirs, atol=1e-4)


@pytest.mark.slow
def test_two_devices_compute_what_one_computes(runs):
    compare(history(runs / "one"), history(runs / "two"), atol=1e-5)


@pytest.mark.slow
def test_a_checkpoint_records_the_number_of_devices(runs):
    newest = sorted((runs / "two" / "checkpoints").glob("*.npz"))[-1]
    owner = json.loads(str(np.load(newest)["__meta__"]))["owner"]
    assert (owner["workers"], owner["replicas"]) == (1, 2)


@pytest.mark.slow
def test_a_resumed_run_ends_as_the_uninterrupted_one(tmp_path, monkeypatch):
    (tmp_path / "dropout.yaml").write_text(recipe_text(dropout=0.1))
    # The three runs compile the same functions.
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    out = output(start("-c", RESUME, tmp_path, devices=2))
    assert "'00000007.npz']" in out  # the newest one
    resumed, straight = state(tmp_path / "resumed"), state(tmp_path / "straight")
    assert resumed.keys() == straight.keys()
    for name in straight:
        np.testing.assert_array_equal(resumed[name], straight[name], err_msg=name)
    assert history(tmp_path / "resumed") == history(tmp_path / "straight")


@pytest.mark.parametrize(
    "change",
    [
        {"strategy": "tpu"},
        {"precision": "mixed_float16"},
        {"jit_compile": "off"},
        {"communication": "ring"},
    ],
)
def test_options_that_only_tensorflow_has_are_refused(change):
    recipe = Recipe(data=DataConfig("digits"), **change)
    (name, value) = next(iter(change.items()))
    with pytest.raises(RecipeError, match=f"`{name}` .*jax.* Received: '{value}'"):
        make_jax_strategy(recipe)


@pytest.mark.parametrize("strategy", ["auto", "multi_worker", "fsdp"])
def test_a_malformed_tf_config_is_an_error(monkeypatch, strategy):
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(RecipeError, match="TF_CONFIG must be JSON"):
        make_jax_strategy(Recipe(data=DataConfig("digits"), strategy=strategy))


def test_workers_that_nobody_names_are_an_error(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(RecipeError, match="must name .*Received: TF_CONFIG=None"):
        make_jax_strategy(Recipe(data=DataConfig("digits"), strategy="multi_worker"))
