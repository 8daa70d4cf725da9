"""JAX on several processes and with divided weights: the numbers of one device."""

import json
import os

import numpy as np
import pytest
import python_process
from run_files import checkpoint, history, weights
from tiny_recipe import TINY_RECIPE, changed

# What needs the others' parts (norm, metrics, averages), what only worker 0 does
# (pictures, report) and what all do with whole weights (few-shot accuracy). The 144
# validation images do not fill a batch.
RECIPE = changed(
    TINY_RECIPE,
    epochs=2,
    batch_size=240,
    accumulation=2,
    model={"dropout": 0.1},
    data={"validation": 0.1},
    augmentation={"mixup": 0.2},
    optimizer={"learning_rate": 0.003, "weight_decay": 0.1, "clip_norm": 0.1}
    | {"ema": 0.9},
    report={"attention_every": 2, "fewshot_every": 2},
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


def in_a_slurm_step(folder, *words, **variables):
    """Run `SPIED_FIT` as two processes that find each other as srun's do."""
    variables |= {
        "SLURM_JOB_ID": str(os.getpid()),  # which chooses the port
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
    }
    processes = []
    for number in "01":
        own = {"SLURM_PROCID": number, "SLURM_LOCALID": number}
        command = ("-c", SPIED_FIT, folder / f"{number}.json", *words)
        processes.append(python_process.start(*command, **variables, **own))
    for process in processes:
        python_process.printed(process)


def train(folder, name):
    devices, before, after = RUNS[name]
    words = [*before, "fit", "--config", folder / "recipe.yaml", *after]
    words += ["--output_dir", folder / name]
    variables = python_process.on("jax", devices)
    if name == "a Slurm step":
        in_a_slurm_step(folder, *words, **variables)
    else:
        python_process.run("-m", "training", *words, **variables)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of the runs."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "recipe.yaml").write_text(RECIPE.to_yaml())
    for name in RUNS:
        train(folder, name)
    return folder


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
    owner = json.loads(checkpoint(runs / name)[1])["owner"]
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
    ours, reference = (weights(runs / run, "best") for run in (name, "one"))
    assert ours.keys() == reference.keys()
    for place, expected in reference.items():
        np.testing.assert_allclose(ours[place], expected, atol=1e-4)
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
    """What `LAYOUTS` prints, and its errors."""
    variables = python_process.on("jax", devices)
    return python_process.start("-c", LAYOUTS, width, DEPTH, **variables).communicate()


@pytest.mark.slow
@pytest.mark.parametrize("devices", [4, 8])
def test_each_device_holds_its_part_of_every_large_weight_and_its_slots(devices):
    lines = [line.split() for line in layouts(devices, 192)[0].splitlines()]
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
    error = layouts(8, 12)[1].splitlines()[-1]
    assert "width is a multiple of the number of devices" in error
    assert "embedding/kernel of shape (16, 16, 3, 12), 8 devices" in error
