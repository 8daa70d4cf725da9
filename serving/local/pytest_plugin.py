"""The pytest fixture `local_server`, for tests that query a served model.

In a test module, or in the conftest.py at the root of the tests:

    pytest_plugins = ["serving.local.pytest_plugin"]

    def test_a_seven_is_a_seven(local_server):
        server = local_server({"digits": "models/digits"})
        with RestClient(server.rest_url, "digits") as client:
            assert client.classify(["seven.png"])[0].label == "7"
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from .embedded import LocalServer


@pytest.fixture(scope="session")
def local_server() -> Iterator[Callable[..., LocalServer]]:
    """Start servers on free ports; they run until the end of the session.

    `local_server(models, **flags)` takes base paths by model name and flags by
    TensorFlow Serving's names, and returns a running `LocalServer`. The same arguments
    return the same server, so that a model is loaded once for all tests.
    """
    running: dict[Any, LocalServer] = {}
    with contextlib.ExitStack() as stack:

        def start(models: Mapping[str, str | Path], **flags: Any) -> LocalServer:
            paths = {name: str(path) for name, path in models.items()}
            key = (frozenset(paths.items()), frozenset(flags.items()))
            if key not in running:
                server = LocalServer(models, rest_port=0, grpc_port=0, **flags)
                running[key] = stack.enter_context(server)
            return running[key]

        yield start
