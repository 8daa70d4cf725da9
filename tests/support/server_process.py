"""The local server in a process of its own, on free ports, with its log in a file."""

import contextlib
import re
import subprocess
import sys
import time
from typing import NamedTuple

PORTS = ("--port=0", "--rest_api_port=0")  # any that are free
READY = re.compile(r"REST (http://\S+)/v1/models, gRPC (\S+)")


def addresses(process):
    """REST's URL and `host:port` of gRPC, once a server prints them into a pipe."""
    return READY.search(process.stdout.readline()).groups()


def check_stopped(process):
    """A server with pipes ends by itself, and without a traceback."""
    _, error = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in error


class ServerProcess(NamedTuple):
    """A server that is ready: REST's URL, `host:port` of gRPC, the process."""

    rest: str
    grpc: str
    process: subprocess.Popen


@contextlib.contextmanager
def server_process(log, *flags):
    """Run `keras-vit serve` with these flags for the duration of a block."""
    command = [sys.executable, "-m", "serving", "serve", *PORTS, *flags]
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:  # only termination is a failure, as loading may take minutes
        while not (found := READY.search(log.read_text("utf-8", "replace"))):
            assert process.poll() is None, log.read_text("utf-8", "replace")
            time.sleep(0.05)
        yield ServerProcess(found[1], found[2], process)
    finally:
        process.terminate()
        try:
            process.wait(30)  # for requests in flight
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
