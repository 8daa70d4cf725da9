"""`make demo`: train on digits and photographs, export, serve, classify, stop.

With `make demo KEEP=1` the server goes on until Ctrl-C: it shows a page.

Every step is a command that a user would type; it is printed before it runs. While
the server starts and answers about photographs, digits are learned in the background,
by what `python demo.py digits` does, and join them on the server.
"""

import contextlib
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

RUN = pathlib.Path("runs/demo")
MODELS = {"digits": "models/digits", "photographs": "models/photographs"}
PHOTOGRAPHS = pathlib.Path("runs/demo-photographs")
CROPS = pathlib.Path("runs/crops")
LOOKS = pathlib.Path("runs/attention")
FIRST_TEST_DIGIT = 1496  # in the order of scikit-learn
# A server that is slower than this hangs.
SERVER_START_SECONDS = 600


def main() -> int:
    """Run the steps.

    Returns:
        The exit status: 0 when every step succeeded.
    """
    start = time.monotonic()
    try:
        if sys.argv[1:] == ["digits"]:
            publish_digits()
            return 0
        crops = learn_photographs()
        step("export", str(PHOTOGRAPHS), "--to", MODELS["photographs"])
        with digits_in_the_background() as wait_for_digits, served() as (rest, ask):
            ask(crops[0], "photographs")
            seconds = time.monotonic() - start
            print(f"\nThe first answers came after {seconds:.0f} s.")
            looks = "--model", str(PHOTOGRAPHS), "--attention", str(LOOKS)
            step("predict", *map(str, crops), *looks)
            wait_for_digits()
            ask(RUN / "digit-7.png", "digits")
            if os.environ.get("KEEP"):
                keep(rest)
    except subprocess.CalledProcessError as error:
        failed = shlex.join(map(str, error.cmd))
        print(f"demo: {failed}: exit status {error.returncode}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - start
    print(f"\nDone in {seconds:.0f} s. Reports of the two runs, to open in a browser:")
    print(f"{RUN}/report.html, {PHOTOGRAPHS}/report.html")
    print(f"The photographs, and what the model looked at in them: {LOOKS}/")
    return 0


@contextlib.contextmanager
def digits_in_the_background() -> Iterator[Callable[[], None]]:
    """Run `publish_digits` in the background; yields what prints its log and waits."""
    log = pathlib.Path("runs/demo.log")
    log.parent.mkdir(exist_ok=True)
    words = [sys.executable, __file__, "digits"]
    print(f"\nIn the background, digits are learned and exported: {log}")
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )

    def wait() -> None:
        print(f"\nWaiting for the digits; {log}:")
        with log.open(encoding="utf-8") as file:
            ended = False
            while not ended:
                ended = process.poll() is not None
                print(file.read(), end="", flush=True)
                time.sleep(0 if ended else 0.5)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, words)

    try:
        yield wait
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)  # the command that it runs, too
        process.wait()


def publish_digits() -> None:
    """Learn the digits, export the model, and write one of them as an image.

    With what the steps that are awaited leave of the processor. For so small a model,
    steps that XLA compiles and that return to Python once an epoch take half the time.
    Half of the recipe's epochs are nearly as good as all.
    """
    os.nice(19)
    fast = "--jit_compile", "on", "--steps_per_execution", "45", "--epochs", "40"
    step("fit", "--recipe", "digits", *fast, "--name", RUN.name, "--overwrite")
    digit_png()
    step("export", str(RUN), "--to", MODELS["digits"])


def learn_photographs() -> list[pathlib.Path]:
    """Learn the photograph that a crop comes from; returns some of the test's crops."""
    from docs.experiments.images import make_crops

    print(f"\nCutting three photographs into 600 crops: {CROPS}/")
    make_crops(CROPS)
    recipe = "--recipe", "folder_small", "--data.source", f"folder:{CROPS}"
    steps = "--epochs", "5", "--steps_per_execution", "25"  # an epoch's
    step("fit", *recipe, *steps, "--name", PHOTOGRAPHS.name, "--overwrite")
    return sorted((CROPS / "test").glob("*/00[0-3].jpg"))


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
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()  # by itself, as the project's reader imports TensorFlow
    path = RUN / f"digit-{digits.target[FIRST_TEST_DIGIT]}.png"
    pixels = np.round(digits.images[FIRST_TEST_DIGIT] * (255 / 16))
    Image.fromarray(pixels.astype("uint8")).save(path)
    return path


@contextlib.contextmanager
def served() -> Iterator[tuple[str, Callable[[pathlib.Path, str], None]]]:
    """Run the local server; yields its address, and what asks it for a model's answers.

    Its configuration lists the models that are there, and is read every second.
    """
    rest_port, grpc_port = free_ports(2)
    config = pathlib.Path("runs/models.config")

    def configure() -> None:
        entries = [
            f'  config {{ name: "{name}" base_path: "{pathlib.Path(folder).resolve()}" '
            'model_platform: "tensorflow" }\n'
            for name, folder in MODELS.items()
            if any(pathlib.Path(folder).glob("[0-9]*"))  # complete versions
        ]
        new = config.with_suffix(".new")
        new.write_text(f"model_config_list {{\n{''.join(entries)}}}\n", "utf-8")
        new.replace(config)

    configure()
    server = subprocess.Popen(
        command(
            "serve",
            f"--model_config_file={config}",
            "--model_config_file_poll_wait_seconds=1",
            f"--rest_api_port={rest_port}",
            f"--port={grpc_port}",
        )
    )
    rest, grpc = f"http://127.0.0.1:{rest_port}", f"127.0.0.1:{grpc_port}"

    def ask(image: pathlib.Path, model: str) -> None:
        configure()
        wait_ready(server, rest, model)
        step("classify", str(image), "--model", model, "--rest", rest)
        step("classify", str(image), "--model", model, "--grpc", grpc)

    try:
        yield rest, ask
    finally:
        server.terminate()
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        print("\nThe server has stopped.")


def wait_ready(server: subprocess.Popen, rest: str, model: str) -> None:
    """Wait until the server has a model; CalledProcessError if it never does."""
    from serving.client import DeadlineExceeded, RestClient

    until = time.monotonic() + SERVER_START_SECONDS
    with RestClient(rest, model) as client:
        while server.poll() is None and time.monotonic() < until:
            with contextlib.suppress(DeadlineExceeded):
                return client.wait_ready(timeout=5)
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
