"""The local server as a process of its own, on free ports, its log in a file."""

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# What the server prints once it answers.
_READY = re.compile(r"REST (http://\S+)/v1/models, gRPC (\S+)")
# In which it answers what it accepted.
STOP_SECONDS = 30


class ServerProcess(NamedTuple):
    """A server that answers.

    Attributes:
        rest: URL of the REST interface.
        grpc: `host:port` of the gRPC interface.
        process: to watch and to measure.
    """

    rest: str
    grpc: str
    process: subprocess.Popen


class ServerFailed(Exception):
    """The server did not start; the text is the end of its log."""


@contextlib.contextmanager
def server_process(log: Path, *flags: str) -> Iterator[ServerProcess]:
    """Runs `python -m serving serve` for the length of a block.

    Args:
        log: file for what the server prints.
        flags: beside those for the ports.

    Raises:
        ServerFailed: it ended before it answered.
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
    """The addresses; a model may take minutes to load, so only an end is a failure."""
    while True:
        ended = process.poll() is not None
        text = log.read_text("utf-8", "replace")
        if found := _READY.search(text):
            return found[1], found[2]
        if ended:
            raise ServerFailed("\n".join(text.splitlines()[-5:]))
        time.sleep(0.05)
