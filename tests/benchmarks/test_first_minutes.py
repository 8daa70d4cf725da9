"""`benchmarks.first_minutes`: its rows, and a run without a GPU."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks import first_minutes
from benchmarks.first_minutes import Backend

ROOT = pathlib.Path(__file__).parents[2]


def test_one_bit_of_one_weight_changes_what_is_compared(tiny_vit, tmp_path):
    model, stored = tiny_vit(), []
    for number, offset in enumerate((0.0, 0.0, 2.0**-20)):
        weight = model.trainable_variables[-1]
        array = np.ones(weight.shape, "float32")
        array.flat[0] += offset
        weight.assign(array)
        model.save(tmp_path / f"{number}.keras")
        stored.append(first_minutes.stored_weights(tmp_path / f"{number}.keras"))
    assert stored[0] == stored[1] != stored[2]


def test_the_cores_are_those_of_the_training_that_was_measured():
    training = {
        "what": "B/16, 224 px, training, keras-vit",
        "images_per_second": 1500.0,
    }
    jpegs = {"what": "JPEGs on 4 cores", "images_per_second_and_core": 250.0}
    assert first_minutes.cores_needed([training, jpegs]) == 6.0
    assert first_minutes.cores_needed([jpegs]) is None
    assert first_minutes.cores_needed([training]) is None


def test_a_command_that_fails_leaves_its_last_line(monkeypatch, tmp_path):
    def check(backends, folder, tiny):
        yield "first", {"figure": 1}
        first_minutes.command("-c", "import sys; sys.exit('the GPU is on fire')")

    monkeypatch.setitem(first_minutes.CHECKS, "check", check)
    rows = list(first_minutes.measured("check", {}, tmp_path, True))
    failure = ("check", {"failed": "the GPU is on fire"})
    assert rows == [("first", {"figure": 1}), failure]


ON_CPU = Backend("cpu", {"version": "2.20.0", "device": "CPU"})
ON_TPU = Backend("tpu", {"version": "0.7.0", "device": "8 x TPU v5 lite"})


def test_on_a_tpu_vm_nothing_is_trained_or_exported_on_the_host(monkeypatch, tmp_path):
    """JAX sees the TPU there, TensorFlow does not."""

    def fail(*words, **variables):
        raise first_minutes.Failed("as it must")

    monkeypatch.setattr(first_minutes, "command", fail)
    monkeypatch.setattr(importlib.util, "find_spec", bool)  # all are installed
    backends = {"tensorflow": ON_CPU, "jax": ON_TPU}
    rows = dict(first_minutes.training_check(backends, tmp_path, False))
    assert {name.partition(",")[0] for name in rows} == {"jax"}
    assert {row["device"] for row in rows.values()} == {"8 x TPU v5 lite"}
    for check in (first_minutes.export_check, first_minutes.gpu_check):
        assert list(check(backends, tmp_path, False)) == []


@pytest.mark.parametrize(
    ("backends", "seen"),
    [
        (
            {"tensorflow": ON_CPU, "jax": Backend(None, {"failed": "no driver"})},
            "tensorflow 2.20.0 CPU; jax no driver",
        ),
        ({}, "neither TensorFlow nor JAX is installed"),
    ],
)
def test_without_an_accelerator_it_says_so_at_once(
    monkeypatch, capsys, tmp_path, backends, seen
):
    monkeypatch.setattr(first_minutes, "BACKENDS", backends)
    monkeypatch.setattr(first_minutes, "look", backends.get)
    output = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["first_minutes", "--output", str(output)])
    with pytest.raises(SystemExit) as end:
        first_minutes.main()
    assert end.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "a GPU or TPU is needed, or --tiny" in error
    assert error.endswith(f"Received: {seen}")
    assert not output.exists()


def test_a_backend_that_fails_leaves_its_reason(monkeypatch):
    monkeypatch.setitem(first_minutes.BACKENDS, "jax", "raise SystemExit('no driver')")
    assert first_minutes.look("jax") == (None, {"failed": "no driver"})


START_ANOTHER = """
import subprocess, sys, time
other = subprocess.Popen(["sleep", "600"])
open(sys.argv[1], "w").write(str(other.pid))
time.sleep(600)
"""


def test_a_command_that_hangs_is_ended_with_what_it_started(monkeypatch, tmp_path):
    file = tmp_path / "pid"
    monkeypatch.setattr(first_minutes, "SECONDS", 5.0)
    with pytest.raises(first_minutes.Failed, match=r"not finished after 5\.0 s"):
        first_minutes.command("-c", START_ANOTHER, str(file))
    status = pathlib.Path(f"/proc/{file.read_text()}/stat")
    for _ in range(100):  # a signal takes a moment
        # Gone, or a zombie that nobody in this container waits for.
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("what the command had started goes on")


@pytest.mark.slow
def test_every_check_runs_without_a_gpu(tmp_path):
    output = tmp_path / "figures.json"
    words = ["-m", "benchmarks.first_minutes", "--tiny", "--output", output]
    result = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    rows = json.loads(output.read_text("utf-8"))["rows"]
    assert [row for row in rows if "failed" in row] == []
    assert {row["device"].lower() for row in rows} == {"cpu"}
    checks = {row["check"] for row in rows}
    assert checks >= {"devices", "training", "export", "jpeg"}
    same = [row["same_bits_as_first"] for row in rows if row["check"] == "training"]
    assert len(same) == 6
    assert all(same)
    assert "JPEGs on" in result.stdout
