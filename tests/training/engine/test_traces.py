"""Start-up: each forward pass is traced once, whatever the replicas."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "support" / "count_traces.py"

pytestmark = pytest.mark.slow


# Replicas, whether XLA compiles, micro-batches.
CASES = ((1, False, 1), (4, False, 1), (8, False, 1), (4, True, 1), (4, False, 2))


def test_each_forward_pass_is_traced_once_for_all_replicas_and_micro_batches():
    command = [sys.executable, SCRIPT, json.dumps(CASES)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    # Of evaluation, outputs and training: traces of the first two kinds, of the third.
    assert found == [[[1, 0], [1, 0], [0, 1]]] * len(CASES)
