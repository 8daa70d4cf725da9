"""Waiting for what other threads and processes do."""

import time


def wait_for(condition, seconds=60):
    """Returns once a condition holds; fails the test when it takes longer."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
