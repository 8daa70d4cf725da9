"""A killed and resumed run ends with the bits of an uninterrupted one."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "support" / "kill_run.py"

# test_checkpoint.py enumerates the states of the disk that a kill can leave; here each
# strategy resumes from its own.
KILLS = {
    "one_device": ["writing"],
    "mirrored": ["preempted"],
    "multi_worker": ["training"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "task"),
    [
        *((strategy, "none") for strategy in KILLS),
        ("one_device", "masked_patches"),
        ("mirrored", "mae"),
    ],
)
def test_killed_and_resumed_runs_end_with_the_same_bits(tmp_path, strategy, task):
    """A process of its own, where TensorFlow is loaded but not used yet: it forks."""
    kills = KILLS[strategy]
    options = ["--strategy", strategy, "--task", task, "--kills", *kills]
    result = subprocess.run(
        [sys.executable, SCRIPT, *options, "--folder", tmp_path],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(result.stdout.splitlines()) == len(kills)
