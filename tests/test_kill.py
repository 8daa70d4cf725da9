"""Runs that are killed at random moments end with the bits of one left in peace."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent / "kill_run.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "kills"), [("one_device", 8), ("mirrored", 6), ("multi_worker", 6)]
)
def test_killed_and_resumed_runs_end_with_the_same_bits(tmp_path, strategy, kills):
    """A process of its own, where TensorFlow is loaded but was never used: it forks."""
    options = ["--strategy", strategy, "--kills", str(kills), "--folder", tmp_path]
    result = subprocess.run(
        [sys.executable, SCRIPT, *options], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    counts = json.loads(result.stdout.splitlines()[-1])
    runs = counts.pop("runs")
    assert runs >= 1
    assert sum(counts.values()) == kills
    assert counts.keys() == {"writing", "training", "any time", "preempted"}
