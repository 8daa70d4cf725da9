"""Start-up: each forward pass is traced once, whatever the replicas."""

import json

import pytest
import python_process

pytestmark = pytest.mark.slow


# Replicas, whether XLA compiles, micro-batches.
CASES = ((1, False, 1), (4, False, 1), (8, False, 1), (4, True, 1), (4, False, 2))


def test_each_forward_pass_is_traced_once_for_all_replicas_and_micro_batches():
    output = python_process.run("tests/support/count_traces.py", json.dumps(CASES))
    found = json.loads(output.splitlines()[-1])
    # Of evaluation, outputs and training: traces of the first two kinds, of the third.
    assert found == [[[1, 0], [1, 0], [0, 1]]] * len(CASES)
