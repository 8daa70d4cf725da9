"""`benchmarks.gpu`: its rows, and a run without a GPU and without TensorFlow."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from benchmarks import gpu, gpu_models
from benchmarks.gpu_models import Extent
from benchmarks.peer_models import Case

ROOT = pathlib.Path(__file__).parents[2]
CASE = Case(True, "B/16", 224, 4, "bfloat16", threads=0)
# Keras's import finds no TensorFlow in this process and in those that it starts.
WITHOUT_TENSORFLOW = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest, **named: (
    None if name == "tensorflow" else find(name, *rest, **named)
)
"""


def test_the_best_batch_of_each_library_counts():
    first = {"device": "NVIDIA H100 80GB HBM3", "matmul_flops": 700e12}
    ours = [
        {"batch": 4, "seconds": 0.004, "peak_bytes": 2**30},
        {"batch": 8, "seconds": 0.004, "peak_bytes": 3 * 2**30},
        {"batch": 16, "seconds": 0.010, "peak_bytes": 5 * 2**30},
    ]
    peer = [{"batch": 4, "seconds": 0.004, "peak_bytes": None}]
    answers = {"keras-vit": [first, *ours], "timm": [first, *peer]}
    mine, other = gpu.rows_of(CASE, answers, matmul_flops=700e12)
    assert (mine["batch"], mine["largest_batch"]) == (8, 16)
    assert mine["images_per_second"] == 2000
    assert mine["memory_mb"] == 3 * 1024
    assert (mine["time_to_ours"], other["time_to_ours"]) == (1, 2)
    n, d = 197, 768
    block = n * (4 * d * d + 2 * d * 4 * d) + 2 * n * n * d
    macs = 196 * 768 * d + 12 * block + 1000 * d  # patches, blocks, classifier
    wanted = 2000 * 3 * 2 * macs / 700e12
    assert mine["share_of_matmul"] == pytest.approx(wanted, rel=0.001)
    ratio = mine["share_of_matmul"] / mine["share_of_data_sheet"]
    assert ratio == pytest.approx(989 / 700, rel=0.01)


@pytest.mark.parametrize(
    "message",
    [
        "RESOURCE_EXHAUSTED: 3 GiB",
        "CUDA out of memory. Tried",
        "OOM when allocating tensor",
        "a bug",
    ],
)
def test_batches_double_until_memory_is_full(monkeypatch, message):
    def make_step(device, case):
        def step():
            if case.batch > 8:
                raise RuntimeError(message)
            return case.batch

        return step

    full = gpu_models.Library(gpu_models.Jax, make_step, {})
    monkeypatch.setitem(gpu_models.LIBRARIES, "full", full)
    extent = Extent(4096, rounds=1, round_seconds=0, matrix=8)
    answers = gpu_models.measure("full", CASE._replace(batch=2), extent)
    next(answers)
    assert [next(answers)["batch"] for _ in range(3)] == [2, 4, 8]
    if message == "a bug":
        with pytest.raises(RuntimeError, match="a bug"):
            next(answers)
    else:
        assert next(answers, None) is None


@pytest.mark.parametrize("sees_gpu", [False, True])
def test_determinism_is_measured_in_training_on_both_backends(monkeypatch, sees_gpu):
    seen = ["GPU"] if sees_gpu else []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: seen)
    names = gpu.libraries_of(CASE, tiny=False)
    assert names[0] == "keras-vit"
    assert "keras-vit, deterministic" in names
    both = {"keras-vit, TensorFlow", "keras-vit, TensorFlow, deterministic"}
    assert both.issubset(names) == sees_gpu
    assert both.issubset(gpu.libraries_of(CASE, tiny=True))
    forward = gpu.libraries_of(CASE._replace(training=False), tiny=True)
    assert not any("determin" in name or "TensorFlow" in name for name in forward)


SWITCHES = """
import json, os, sys
from benchmarks import gpu_models
gpu_models.LIBRARIES[sys.argv[1]].framework()
on = "--xla_gpu_deterministic_ops=true" in os.environ.get("XLA_FLAGS", "")
if "tensorflow" in sys.modules:
    from tensorflow.python.framework import config
    on = on or config.is_op_determinism_enabled()
print(json.dumps(on))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in gpu_models.LIBRARIES if "keras-vit" in n])
def test_only_the_deterministic_rows_are(name):
    environment = os.environ | gpu_models.LIBRARIES[name].environment
    answer = subprocess.run(
        [sys.executable, "-c", SWITCHES, name],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        check=True,
    )
    assert json.loads(answer.stdout) == ("deterministic" in name)


@pytest.mark.slow
def test_the_step_of_tensorflow_is_measured():
    case = Case(True, "Ti/16", 32, 2, "bfloat16", threads=0)
    name = "keras-vit, TensorFlow, deterministic"
    first, batch = gpu.measure(name, case, gpu.SMALL)
    assert first["device"] == "cpu"
    assert batch["batch"] == 2
    assert batch["seconds"] > 0


@pytest.mark.slow
@pytest.mark.parity
def test_everything_runs_without_a_gpu_and_without_tensorflow(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TENSORFLOW)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    output = tmp_path / "gpu.json"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--output", output],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        check=True,
    )
    record = json.loads(output.read_text())
    rows = [(row["training"], row["library"]) for row in record["rows"]]
    forward = ["keras-vit", "flax", "flax, cuDNN", "timm, torch.compile"]
    training = ["keras-vit", "keras-vit, deterministic", *forward[1:]]
    assert rows == [(False, n) for n in forward] + [(True, n) for n in training]
    assert all(row["images_per_second"] > 0 for row in record["rows"])
    assert record["machine"]["device"] == "cpu"
