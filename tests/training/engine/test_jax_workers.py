"""JAX on several processes and with divided weights: the numbers of one device."""

import csv
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from tiny_recipe import TINY_RECIPE

import keras_vit  # noqa: F401  registers its layers
from training.recipe import (
    AugmentationConfig,
    DataConfig,
    OptimizerConfig,
    ReportConfig,
)

ROOT = pathlib.Path(__file__).parents[3]

# What needs the others' parts (norm, metrics, averages), what only worker 0 does
# (pictures, report) and what all do with whole weights (few-shot accuracy). The 144
# validation images do not fill a batch.
RECIPE = dataclasses.replace(
    TINY_RECIPE,
    epochs=2,
    batch_size=240,
    accumulation=2,
    model=dataclasses.replace(TINY_RECIPE.model, dropout=0.1),
    data=DataConfig("digits", validation=0.1),
    augmentation=AugmentationConfig(mixup=0.2),
    optimizer=OptimizerConfig(
        learning_rate=0.003, weight_decay=0.1, clip_norm=0.1, ema=0.9
    ),
    report=ReportConfig(attention_every=2, fewshot_every=2),
)
# Devices of each process, and the arguments before and after the recipe's.
RUNS = {
    "one": (1, [], []),
    "a Slurm step": (2, [], []),
    "fsdp": (4, [], ["--strategy", "fsdp"]),
    "fsdp on two workers": (
        2,
        ["launch", "--workers", "2", "--"],
        ["--strategy", "fsdp"],
    ),
}


# A process of `fit`, and on which devices it computed few-shot features and, in the
# end, predictions.
SPIED_FIT = """
import collections, json, pathlib, sys
from device_spy import spy_on_jax
from training.__main__ import main
spy_on_jax(seen := collections.Counter())
status = main(sys.argv[2:])
pathlib.Path(sys.argv[1]).write_text(json.dumps(seen))
sys.exit(status)
"""


def environment(devices):
    return os.environ | {
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}",
    }


def on_jax(devices, *words):
    """Run Python in a process of its own: Keras chooses its backend at import."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment(devices),
        capture_output=True,
        text=True,
    )


def in_a_slurm_step(devices, folder, *words):
    """Run `SPIED_FIT` as two processes that find each other as srun's do."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SPIED_FIT, folder / f"{process}.json", *words],
            cwd=ROOT,
            env=environment(devices)
            | {
                "SLURM_JOB_ID": str(os.getpid()),  # which chooses the port
                "SLURM_NTASKS": "2",
                "SLURM_STEP_NODELIST": "localhost",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_STEP_TASKS_PER_NODE": "2",
                "SLURM_PROCID": str(process),
                "SLURM_LOCALID": str(process),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]
    for process in processes:
        _, error = process.communicate()
        assert process.returncode == 0, error


def train(folder, name):
    devices, before, after = RUNS[name]
    words = [*before, "fit", "--config", folder / "recipe.yaml", *after]
    words += ["--output_dir", folder / name]
    if name == "a Slurm step":
        in_a_slurm_step(devices, folder, *words)
        return
    result = on_jax(devices, "-m", "training", *words)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of the runs."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "recipe.yaml").write_text(RECIPE.to_yaml())
    for name in RUNS:
        train(folder, name)
    return folder


def history(folder):
    with (folder / "history.csv").open() as file:
        return [
            {k: float(v) for k, v in row.items() if v and "second" not in k}
            for row in csv.DictReader(file)
        ]


def checkpoint(folder):
    """The arrays of the last checkpoint, and its run."""
    arrays = dict(np.load(sorted((folder / "checkpoints").glob("*.npz"))[-1]))
    return arrays, json.loads(str(arrays.pop("__meta__")))["owner"]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(RUNS)[1:])
def test_all_compute_what_one_device_computes(runs, name):
    rows = history(runs / "one")
    assert "val_fewshot_5" in rows[-1]
    for row, reference in zip(history(runs / name), rows, strict=True):
        assert row == pytest.approx(reference, abs=1e-5)
    arrays, _ = checkpoint(runs / name)
    for key, reference in checkpoint(runs / "one")[0].items():
        np.testing.assert_allclose(arrays[key], reference, atol=1e-4, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "workers", "devices"),
    [("a Slurm step", 2, 2), ("fsdp", 1, 4), ("fsdp on two workers", 2, 2)],
)
def test_a_checkpoint_records_workers_and_devices(runs, name, workers, devices):
    _, owner = checkpoint(runs / name)
    assert (owner["workers"], owner["replicas"]) == (workers, devices)


@pytest.mark.slow
def test_each_worker_uses_all_its_devices_for_what_it_computes_alone(runs):
    seen = [json.loads((runs / f"{process}.json").read_text()) for process in range(2)]
    assert [len(devices) for devices in seen] == [2, 2]
    assert seen[0].keys().isdisjoint(seen[1])
    chief, other = (set(devices.values()) for devices in seen)
    assert len(chief) == len(other) == 1  # as many batches on each device
    assert chief.pop() > other.pop() > 0  # the chief alone predicts the test images


@pytest.mark.slow
@pytest.mark.parametrize("name", list(RUNS)[1:])
def test_the_saved_model_and_the_pictures_are_those_of_one_process(runs, name):
    def files(run):
        return {path.name for path in (runs / run).iterdir()}

    assert files(name) == files("one")
    model, reference = (
        keras.models.load_model(runs / run / "best.keras") for run in (name, "one")
    )
    for ours, theirs in zip(model.weights, reference.weights, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-4)
    events = list((runs / name / "tensorboard" / "model").iterdir())
    assert len(events) == 1  # only worker 0 writes


# Lowers nothing and computes nothing: the layouts of a model's weights and slots.
DEPTH = 2
LAYOUTS = """
import keras, math, sys
import keras_vit
from training.engine.fully_sharded import FullySharded
from training.errors import RecipeError
devices = FullySharded()
try:
    with devices.scope():
        model = keras_vit.VisionTransformer.from_variant(
            "Ti/16", classes=10, image_size=32, width=int(sys.argv[1]),
            depth=int(sys.argv[2]),
        )
        optimizer = keras.optimizers.AdamW()
        optimizer.build(model.trainable_variables)
except RecipeError as error:
    sys.exit(str(error))
for variable in [*model.variables, *optimizer.variables]:
    parts = [part.data.nbytes for part in variable.value.addressable_shards]
    assert len(set(parts)) == 1 and len(parts) == devices.num_model_replicas
    print(variable.path, parts[0], variable.value.nbytes)
"""


def layouts(devices, width):
    return on_jax(devices, "-c", LAYOUTS, str(width), str(DEPTH))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [4, 8])
def test_each_device_holds_its_part_of_every_large_weight_and_its_slots(devices):
    lines = [line.split() for line in layouts(devices, 192).stdout.splitlines()]
    sizes = {path: (int(part), int(whole)) for path, part, whole in lines}
    assert len(sizes) > 3 * 16 * DEPTH
    for path, (part, whole) in sizes.items():
        matrix = "kernel" in path or "position_embedding" in path
        assert part == (whole // devices if matrix else whole), path
    # Weights and Adam's two slots, in closed form: D = 192, M = 768, 5 tokens, 10
    # classes.
    vectors = DEPTH * ((4 + 4 + 1) * 192 + 768) + (1 + 1 + 2) * 192 + 10
    matrices = DEPTH * 12 * 192**2 + 16 * 16 * 3 * 192 + 5 * 192 + 192 * 10
    scalars = 2 * 4  # the step and the learning rate
    assert sum(whole for _, whole in sizes.values()) - scalars == (
        12 * (vectors + matrices)
    )
    assert sum(part for part, _ in sizes.values()) - scalars == (
        12 * (vectors + matrices // devices)
    )


@pytest.mark.slow
def test_a_width_that_the_devices_cannot_divide_is_an_error():
    error = layouts(8, 12).stderr.splitlines()[-1]
    assert "width is a multiple of the number of devices" in error
    assert "embedding/kernel of shape (16, 16, 3, 12), 8 devices" in error
