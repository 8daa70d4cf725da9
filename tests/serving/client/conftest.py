"""A fake server for the clients."""

import pytest
from client_fakes import FakeServer


@pytest.fixture
def fake():
    return FakeServer()
