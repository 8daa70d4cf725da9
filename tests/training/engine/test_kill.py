"""Runs that are killed at random moments end with the bits of one left in peace."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "support" / "kill_run.py"

KILLS = {"writing": 2, "training": 1, "any time": 1, "preempted": 1}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["one_device", "mirrored", "multi_worker"])
def test_killed_and_resumed_runs_end_with_the_same_bits(tmp_path, strategy):
    """A process of its own, where TensorFlow is loaded but was never used: it forks."""
    options = ["--strategy", strategy, "--kills", str(sum(KILLS.values()))]
    result = subprocess.run(
        [sys.executable, SCRIPT, *options, "--folder", tmp_path],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    counts = json.loads(result.stdout.splitlines()[-1])
    assert counts.pop("runs") >= 1
    assert counts == KILLS
