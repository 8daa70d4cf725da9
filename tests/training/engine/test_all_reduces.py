"""Communication: a step's all-reduces hold gradients, metrics and flags together."""

import json

import pytest
import python_process

pytestmark = pytest.mark.slow


# Steps, bytes of a pack, all-reduces. A step has 1.1 MB of gradients, in 8 arrays; 7
# numbers of metrics, 2 of the step.
CASES = ((1, 50 * 2**20, 1), (2, 50 * 2**20, 1), (1, 400_000, 2), (1, 1, 17))


def test_a_step_has_one_all_reduce_for_each_pack():
    cases = json.dumps([case[:2] for case in CASES])
    output = python_process.run("tests/support/count_all_reduces.py", cases)
    found = json.loads(output.splitlines()[-1])
    assert found == [
        [count, 0, [2.0 * steps, steps, steps]] for steps, _, count in CASES
    ]
