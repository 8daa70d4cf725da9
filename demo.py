"""`make demo`: train, export, serve, classify over REST and gRPC, stop.

With `make demo KEEP=1` the server goes on until Ctrl-C: it shows a page.

Every step is a command that a user would type; it is printed before it runs.
"""

import contextlib
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

RUN = pathlib.Path("runs/demo")
MODELS = pathlib.Path("models/digits")
# A server that is slower than this hangs.
SERVER_START_SECONDS = 600


def main() -> int:
    """Run the steps.

    Returns:
        The exit status: 0 when every step succeeded.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    start = time.monotonic()
    try:
        step("training", "fit", "--recipe", "digits", "--name", RUN.name, "--overwrite")
        step("serving", "export", str(RUN / "best.keras"), "--to", str(MODELS))
        image = str(digit_png())
        with served() as (rest, grpc):
            step("serving", "classify", image, "--rest", rest, "--model", "digits")
            step("serving", "classify", image, "--grpc", grpc, "--model", "digits")
            if os.environ.get("KEEP"):
                keep(rest)
    except subprocess.CalledProcessError as error:
        failed = shlex.join(map(str, error.cmd[1:]))
        print(f"demo: {failed}: exit status {error.returncode}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - start
    print(f"\nDone in {seconds:.0f} s. Pictures and report: {RUN}/, model: {MODELS}/")
    return 0


def keep(rest: str) -> None:
    """Wait for Ctrl-C."""
    print(f"\nOpen {rest}/ and drop {RUN}/digit-7.png there. Ctrl-C stops the server.")
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


def command(*arguments: str) -> list[str]:
    """Print and return `python -m ...` for this interpreter."""
    print(f"\n$ python -m {shlex.join(arguments)}", flush=True)
    return [sys.executable, "-m", *arguments]


def step(*arguments: str) -> None:
    """Run one command; raises CalledProcessError when it fails."""
    subprocess.run(command(*arguments), check=True)


def digit_png() -> pathlib.Path:
    """Write the first digit of the test set as a PNG."""
    from PIL import Image

    from training.data.splits import load_splits
    from training.recipe import DataConfig

    test = load_splits(DataConfig("digits"), channels=1).test
    path = RUN / f"digit-{test.labels[0]}.png"
    Image.fromarray(test.read(0).numpy()[..., 0]).save(path)
    return path


@contextlib.contextmanager
def served() -> Iterator[tuple[str, str]]:
    """Run the local server with the exported model; yields its addresses."""
    rest_port, grpc_port = free_ports(2)
    server = subprocess.Popen(
        command(
            "serving",
            "serve",
            "--model_name=digits",
            f"--model_base_path={MODELS.resolve()}",
            f"--rest_api_port={rest_port}",
            f"--port={grpc_port}",
        )
    )
    rest = f"http://127.0.0.1:{rest_port}"
    try:
        wait_ready(server, rest)
        yield rest, f"127.0.0.1:{grpc_port}"
    finally:
        server.terminate()
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        print("\nThe server has stopped.")


def wait_ready(server: subprocess.Popen, rest: str) -> None:
    """Wait until the server answers; raises CalledProcessError if it does not."""
    from serving.client import DeadlineExceeded, RestClient

    until = time.monotonic() + SERVER_START_SECONDS
    with RestClient(rest, "digits") as client:
        while server.poll() is None and time.monotonic() < until:
            with contextlib.suppress(DeadlineExceeded):
                client.wait_ready(timeout=5)
                return
    raise subprocess.CalledProcessError(server.poll() or 1, server.args)


def free_ports(count: int) -> list[int]:
    """Find port numbers that are free at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


if __name__ == "__main__":
    sys.exit(main())
