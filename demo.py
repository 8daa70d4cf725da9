"""`make demo`: train on digits and photographs, export, serve, classify, stop.

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
MODELS = {"digits": "models/digits", "photographs": "models/photographs"}
PHOTOGRAPHS = pathlib.Path("runs/demo-photographs")
CROPS = pathlib.Path("runs/crops")
LOOKS = pathlib.Path("runs/attention")
# A server that is slower than this hangs.
SERVER_START_SECONDS = 600


def main() -> int:
    """Run the steps.

    Returns:
        The exit status: 0 when every step succeeded.
    """
    start = time.monotonic()
    try:
        step("fit", "--recipe", "digits", "--name", RUN.name, "--overwrite")
        step("export", str(RUN), "--to", MODELS["digits"])
        crops = learn_photographs()
        with served() as (rest, grpc):
            for image, model in ((digit_png(), "digits"), (crops[0], "photographs")):
                asked = str(image), "--model", model
                step("classify", *asked, "--rest", rest)
                step("classify", *asked, "--grpc", grpc)
            if os.environ.get("KEEP"):
                keep(rest)
    except subprocess.CalledProcessError as error:
        failed = shlex.join(["keras-vit", *map(str, error.cmd[3:])])
        print(f"demo: {failed}: exit status {error.returncode}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - start
    print(f"\nDone in {seconds:.0f} s. Reports of the two runs, to open in a browser:")
    print(f"{RUN}/report.html, {PHOTOGRAPHS}/report.html")
    print(f"The photographs, and what the model looked at in them: {LOOKS}/")
    return 0


def learn_photographs() -> list[pathlib.Path]:
    """Learn the photograph that a crop comes from; returns some of the test's crops."""
    from docs.experiments.images import make_crops

    print(f"\nCutting three photographs into 600 crops: {CROPS}/")
    make_crops(CROPS)
    recipe = "--recipe", "folder_small", "--data.source", f"folder:{CROPS}"
    name = "--name", PHOTOGRAPHS.name, "--overwrite"
    step("fit", *recipe, "--epochs", "12", *name)
    step("export", str(PHOTOGRAPHS), "--to", MODELS["photographs"])
    crops = sorted((CROPS / "test").glob("*/00[0-3].jpg"))
    looks = "--model", str(PHOTOGRAPHS), "--attention", str(LOOKS)
    step("predict", *map(str, crops), *looks)
    return crops


def keep(rest: str) -> None:
    """Wait for Ctrl-C."""
    print(
        f"\nOpen {rest}/ and drop {RUN}/digit-7.png there, or images of {CROPS}/test/"
    )
    print("after choosing the model `photographs`. Ctrl-C stops the server.")
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()


def command(*arguments: str) -> list[str]:
    """Print and return `keras-vit ...` of this interpreter's environment."""
    print(f"\n$ keras-vit {shlex.join(arguments)}", flush=True)
    return [sys.executable, "-m", "keras_vit", *arguments]


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
    """Run the local server with the exported models; yields its addresses."""
    rest_port, grpc_port = free_ports(2)
    entries = [
        f'  config {{ name: "{name}" base_path: "{pathlib.Path(folder).resolve()}" '
        'model_platform: "tensorflow" }\n'
        for name, folder in MODELS.items()
    ]
    config = RUN / "models.config"
    config.write_text(f"model_config_list {{\n{''.join(entries)}}}\n", "utf-8")
    server = subprocess.Popen(
        command(
            "serve",
            f"--model_config_file={config}",
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
    while server.poll() is None and time.monotonic() < until:
        with contextlib.suppress(DeadlineExceeded):
            for name in MODELS:
                with RestClient(rest, name) as client:
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
