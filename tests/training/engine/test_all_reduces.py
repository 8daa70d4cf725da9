"""Communication: a step's all-reduces hold gradients, metrics and flags together."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "support" / "count_all_reduces.py"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("steps", "pack", "count"),
    # 1.1 MB of gradients, in 8 arrays; 7 numbers of metrics, 2 of the step
    [(1, 50 * 2**20, 1), (2, 50 * 2**20, 1), (1, 400_000, 2), (1, 1, 17)],
)
def test_a_step_has_one_all_reduce_for_each_pack(steps, pack, count):
    command = [sys.executable, SCRIPT, str(steps), str(pack)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    all_reduces, sums, updates = json.loads(result.stdout.splitlines()[-1])
    assert [all_reduces, sums] == [count, 0]
    assert updates == [2.0 * steps, steps, steps]
