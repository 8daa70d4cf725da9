"""The local server in a process of its own, on free ports, with its log in a file."""

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Printed by the server when it is ready.
_READY = re.compile(r"REST (http://\S+)/v1/models, gRPC (\S+)")
# For requests in flight.
STOP_SECONDS = 30


class ServerProcess(NamedTuple):
    """A server that is ready.

    Attributes:
        rest: URL of the REST interface.
        grpc: `host:port` of the gRPC interface.
        process: The process.
    """

    rest: str
    grpc: str
    process: subprocess.Popen


class ServerFailed(Exception):
    """The server did not start; the message is the end of its log."""


@contextlib.contextmanager
def server_process(log: Path, *flags: str) -> Iterator[ServerProcess]:
    """Run `keras-vit serve` for the duration of a block.

    Args:
        log: File for the output of the server.
        flags: In addition to those for the ports.

    Raises:
        ServerFailed: It terminated before it was ready.
    """
    command = [sys.executable, "-m", "serving", "serve", "--port=0"]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*command, "--rest_api_port=0", *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield ServerProcess(*_wait_ready(process, log), process)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen, log: Path) -> tuple[str, str]:
    """The addresses; only termination is a failure, as loading may take minutes."""
    while True:
        ended = process.poll() is not None
        text = log.read_text("utf-8", "replace")
        if found := _READY.search(text):
            return found[1], found[2]
        if ended:
            raise ServerFailed("\n".join(text.splitlines()[-5:]))
        time.sleep(0.05)
