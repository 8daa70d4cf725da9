"""A killed and resumed run ends with the bits of an uninterrupted one."""

import pytest
import python_process

# test_checkpoint.py enumerates the states of the disk that a kill can leave; here each
# strategy resumes from its own.
KILLS = {
    "one_device": ["writing", "evaluating"],
    "mirrored": ["preempted"],
    "multi_worker": ["training"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "task", "backend"),
    [
        *((strategy, "none", "tensorflow") for strategy in KILLS),
        ("one_device", "masked_patches", "tensorflow"),
        ("mirrored", "mae", "tensorflow"),
        ("multi_worker", "none", "jax"),
    ],
)
def test_killed_and_resumed_runs_end_with_the_same_bits(
    tmp_path, strategy, task, backend
):
    """A process of its own, where TensorFlow is loaded but not used yet: it forks."""
    kills = KILLS[strategy]
    options = ["--strategy", strategy, "--task", task, "--kills", *kills]
    output = python_process.run(
        *("tests/support/kill_run.py", *options, "--folder", tmp_path),
        **python_process.on(backend),
        # The attempts compile the same functions.
        JAX_COMPILATION_CACHE_DIR=str(tmp_path / "compiled"),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0.2",
    )
    assert len(output.splitlines()) == len(kills)
