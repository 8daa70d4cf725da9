"""Start-up: each forward pass is traced once, whatever the replicas."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "support" / "count_traces.py"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "case",  # replicas, whether XLA compiles, micro-batches
    [(1, False, 1), (4, False, 1), (8, False, 1), (4, True, 1), (4, False, 2)],
)
def test_each_forward_pass_is_traced_once_for_all_replicas_and_micro_batches(case):
    command = [sys.executable, SCRIPT, json.dumps(case)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    evaluation, outputs, training = json.loads(result.stdout.splitlines()[-1])
    assert evaluation == outputs == [1, 0]
    assert training == [0, 1]
