"""Start-up: the forward and backward pass is traced once, whatever the replicas."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "support" / "count_traces.py"

pytestmark = pytest.mark.slow


def test_the_forward_pass_is_traced_once_for_all_replicas_and_micro_batches():
    command = [sys.executable, SCRIPT]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert {case[0] for case, _ in found} == {1, 4, 8}
    assert [count for _, count in found] == [1] * len(found), found
