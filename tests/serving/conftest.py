"""Fixtures that save time: no process for a verification, no pauses of clients."""

import contextlib
import io
import math
import subprocess
import sys
import types
from unittest import mock

import pytest


@pytest.fixture(autouse=True)
def verification_in_this_process(monkeypatch):
    """Verify what a test exports here; what a module shares, in a fresh process."""
    run = subprocess.run

    def run_here(command, **options):
        if command[1:3] != ["-m", "serving.export.verify"]:
            return run(command, **options)
        from serving.export import verify

        output = io.StringIO()
        with mock.patch.dict(sys.modules), contextlib.redirect_stdout(output):
            status = verify.main(command[3:])
        return types.SimpleNamespace(returncode=status, stdout=output.getvalue())

    monkeypatch.setattr(subprocess, "run", run_here)


@pytest.fixture
def without_retries(monkeypatch):
    """Clients give up at the first failure instead of retrying until the deadline."""
    monkeypatch.setattr("serving.client.retries.SHORTEST_PAUSE", math.inf)
