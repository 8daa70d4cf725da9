"""Fixtures that save time: no process for a verification, no pauses of clients."""

import contextlib
import io
import math
import sys
from unittest import mock

import pytest

from serving.export import verify


class Here:
    """What a verification's process does, in this one."""

    def communicate(self, request, timeout):
        output = io.StringIO()
        with (
            mock.patch.dict(sys.modules),
            mock.patch.object(sys, "stdin", io.StringIO(request)),
            contextlib.redirect_stdout(output),
        ):
            self.returncode = verify.main()
        return output.getvalue(), ""

    def kill(self):
        """It has ended."""


@pytest.fixture(autouse=True)
def verification_in_this_process(monkeypatch):
    """Verify what a test exports here; what a module shares, in a fresh process."""
    monkeypatch.setattr(verify, "_start", lambda: contextlib.nullcontext(Here()))


@pytest.fixture
def without_retries(monkeypatch):
    """Clients give up at the first failure instead of retrying until the deadline."""
    monkeypatch.setattr("serving.client.retries.SHORTEST_PAUSE", math.inf)
