"""Compare a SavedModel with the Keras model, in a process without Keras.

`verification` starts this module as a program. It loads a folder into a session, as
servers do, runs every warm-up record, compares the outputs of every signature, and
checks that invalid input is refused.
"""

import contextlib
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from keras_vit.common.command_line import CommandError
from keras_vit.typing import Arrays

from ..usage import without_keras
from . import warmup_records
from .numeric_agreement import Disagreement, difference
from .verification_inputs import SIGNATURE_INPUTS, example, invalid_inputs

SECONDS = 1800
BATCH = 8

# From a folder, golden answers, the tolerance of a probability, and the limits that the
# graph must enforce (`max_images`, `max_image_bytes`, `max_image_pixels`), to `images`,
# `max_difference` of a probability, and `top1` agreement from 0 to 1.
Verify: TypeAlias = Callable[
    [pathlib.Path, Arrays, float, Mapping[str, int]], dict[str, float]
]


@contextlib.contextmanager
def verification() -> Iterator[Verify]:
    """Yield a function that compares a SavedModel with golden answers, once.

    It does so in a fresh process, which imports TensorFlow while the model is written.
    The function raises CommandError if they differ or the folder cannot be loaded, and
    OSError if the golden answers cannot be written.
    """
    with _start() as process:
        try:
            yield functools.partial(_verified, process)
        finally:
            process.kill()


def _start() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", __spec__.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where the module's first package is: in a wheel another one than here.
        cwd=pathlib.Path(__file__).parents[__spec__.name.count(".")],
        # A GPU may be full of the model that is exported.
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )


def _verified(
    process: "subprocess.Popen[str]",
    folder: pathlib.Path,
    golden: Arrays,
    tolerance: float,
    limits: Mapping[str, int],
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch, "golden.npz")
        settings = {"tolerance": tolerance, "limits": dict(limits)}
        arrays: dict[str, Any] = {**golden, "settings": np.array(settings)}
        np.savez(path, **arrays)
        request = json.dumps([str(folder.absolute()), str(path)])
        stdout, stderr = process.communicate(request, timeout=SECONDS)
    if process.returncode:
        output = stdout.strip() or stderr.strip()
        reason = output.splitlines()[-1] if output else f"exit {process.returncode}"
        raise CommandError(
            f"the written model must agree with the Keras model: {reason}; "
            "nothing was published"
        )
    agreement: dict[str, float] = json.loads(stdout.splitlines()[-1])
    return agreement


def main() -> int:
    """Read a folder and the file of golden answers; print the agreement, or the error.

    The answer is JSON. Without a request, as when writing failed, nothing is done.
    """
    without_keras()
    import tensorflow as tf

    if not (request := sys.stdin.read()):
        return 0
    folder, golden_path = json.loads(request)
    with np.load(golden_path, allow_pickle=True) as file:
        golden = dict(file)
    settings = golden.pop("settings").item()
    golden["examples"] = np.array([example(data) for data in golden["files"]], object)
    try:
        served = _Served(pathlib.Path(folder))
        _run_warmup(served)
        _check_refused(served, golden, settings["limits"])
        print(json.dumps(_compare(served, golden, **settings)))
    except (Disagreement, tf.errors.OpError) as error:
        print(str(getattr(error, "message", error)).splitlines()[0])
        return 1
    return 0


class _Served:
    """A SavedModel in a session, as TensorFlow Serving runs it."""

    def __init__(self, folder: pathlib.Path) -> None:
        import tensorflow as tf

        graph = tf.Graph()
        self.folder = folder
        self.session = tf.compat.v1.Session(graph=graph)
        with graph.as_default():
            loaded = tf.compat.v1.saved_model.load(self.session, ["serve"], str(folder))
        self.signatures = {
            name: signature
            for name, signature in loaded.signature_def.items()
            if not name.startswith("__")
        }
        if unknown := self.signatures.keys() - SIGNATURE_INPUTS:
            raise Disagreement(f"unknown signatures: {', '.join(sorted(unknown))}")

    def run(self, name: str, inputs: Mapping[str, Any]) -> Arrays:
        signature = self.signatures[name]
        outputs = {alias: info.name for alias, info in signature.outputs.items()}
        feeds = {signature.inputs[alias].name: inputs[alias] for alias in inputs}
        answers: Arrays = self.session.run(outputs, feeds)
        return answers


def _run_warmup(served: _Served) -> None:
    import tensorflow as tf

    for signature, inputs in warmup_records.read(served.folder):
        try:
            served.run(signature, inputs)
        except tf.errors.OpError as error:
            reason = error.message.splitlines()[0]
            raise Disagreement(f"a warm-up record of {signature}: {reason}") from None


def _check_refused(served: _Served, golden: Arrays, limits: dict[str, int]) -> None:
    import tensorflow as tf

    for text, key, batch in invalid_inputs(golden, limits):
        for name in served.signatures:
            alias, fed = SIGNATURE_INPUTS[name]
            if fed != key:
                continue
            try:
                served.run(name, {alias: batch})
            except tf.errors.InvalidArgumentError:
                continue
            raise Disagreement(f"{name} must refuse {text}")


def _compare(
    served: _Served, golden: Arrays, tolerance: float, limits: dict[str, int]
) -> dict[str, Any]:
    size = min(BATCH, limits["max_images"])
    largest = max(
        difference(name, _outputs(served, name, golden, size), golden, tolerance)
        for name in served.signatures
    )
    one_by_one = _outputs(served, "serve_pixels", golden, 1)
    largest = max(largest, difference("serve_pixels", one_by_one, golden, tolerance))
    best = one_by_one["probabilities"].argmax(axis=1) == golden["outputs"].argmax(
        axis=1
    )
    return {
        "images": len(golden["files"]),
        "max_difference": largest,
        "top1": float(np.mean(best)),
    }


def _outputs(served: _Served, name: str, golden: Arrays, size: int) -> Arrays:
    """A signature's outputs for all golden images, `size` of them per request."""
    alias, key = SIGNATURE_INPUTS[name]
    batches = [
        served.run(name, {alias: golden[key][start : start + size]})
        for start in range(0, len(golden[key]), size)
    ]
    return {
        output: np.concatenate([batch[output] for batch in batches])
        for output in batches[0]
    }


if __name__ == "__main__":
    sys.exit(main())
