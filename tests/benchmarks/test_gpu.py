"""`benchmarks.gpu`: its rows, and a run without a GPU and without TensorFlow."""

import json
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from benchmarks import gpu
from benchmarks.peer_models import Case

ROOT = pathlib.Path(__file__).parents[2]
CASE = Case(True, "B/16", 224, 4, "bfloat16", threads=0)


def test_the_best_batch_of_each_library_counts():
    first = {"device": "NVIDIA H100 80GB HBM3"}
    ours = [
        {"batch": 4, "seconds": 0.004, "peak_bytes": 2**30},
        {"batch": 8, "seconds": 0.004, "peak_bytes": 3 * 2**30},
        {"batch": 16, "seconds": 0.010, "peak_bytes": 5 * 2**30},
    ]
    peer = [{"batch": 4, "seconds": 0.004, "peak_bytes": None}]
    answers = {"keras-vit": [first, *ours], "timm": [first, *peer]}
    mine, other = gpu.rows_of(CASE, answers)
    assert (mine["batch"], mine["largest_batch"]) == (8, 16)
    assert mine["images_per_second"] == 2000
    assert mine["memory_mb"] == 3 * 1024
    assert (mine["time_to_ours"], other["time_to_ours"]) == (1, 2)
    n, d = 197, 768
    block = n * (4 * d * d + 2 * d * 4 * d) + 2 * n * n * d
    macs = 196 * 768 * d + 12 * block + 1000 * d  # patches, blocks, classifier
    wanted = 2000 * 3 * 2 * macs / 989.4e12
    assert mine["share_of_data_sheet"] == pytest.approx(wanted, rel=0.001)


class FullAbove(gpu.JaxLibrary):
    """A library whose memory is full with more than eight images."""

    def step(self, batch):
        def step():
            if batch > 8:
                raise RuntimeError(self.message)
            return batch

        return step


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
    monkeypatch.setitem(gpu.LIBRARIES, "full", FullAbove)
    monkeypatch.setattr(FullAbove, "message", message, raising=False)
    answers: list = []

    def measure():
        extent = gpu.Extent(4096, rounds=1, round_seconds=0)
        gpu.measure_here("full", CASE._replace(batch=2), extent, answers.append)

    if message == "a bug":
        with pytest.raises(RuntimeError, match="a bug"):
            measure()
    else:
        measure()
    assert [json.loads(answer)["batch"] for answer in answers[1:]] == [2, 4, 8]


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


@pytest.mark.slow
@pytest.mark.parity
def test_everything_runs_without_a_gpu(tmp_path):
    output = tmp_path / "gpu.json"
    words = ["-m", "benchmarks.gpu", "--tiny", "--output", output]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
    record = json.loads(output.read_text())
    rows = [(row["training"], row["library"]) for row in record["rows"]]
    training = list(gpu.LIBRARIES)
    forward = [n for n in training if "determ" not in n and "TensorFlow" not in n]
    assert rows == [(False, n) for n in forward] + [(True, n) for n in training]
    assert all(row["images_per_second"] > 0 for row in record["rows"])
    assert {row["device"] for row in record["rows"]} == {"cpu"}
