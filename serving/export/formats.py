"""ONNX and LiteRT export of the bare network, compared with the Keras model.

A version holds `model.onnx` or `model.tflite`: the Keras model from pixels to scores,
without decoding, limits, batching and class names (those are in the manifest). Triton
and OpenVINO Model Server read the folder.
"""

import contextlib
import io
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from keras_vit.common import file_names
from keras_vit.common.command_line import CommandError
from keras_vit.typing import Array, Arrays

from . import onnx_file
from .numeric_agreement import allowed, scale_of

if TYPE_CHECKING:
    from keras_vit.base import ImageModel

SAVED_MODEL = "savedmodel"
TOLERANCE = 1e-5

Run: TypeAlias = Callable[[Array], Array]


class Format(NamedTuple):
    """A file format: its file name, its packages, its writer, and its runtime."""

    file: str
    packages: tuple[str, ...]  # as they are imported
    writer: Callable[["ImageModel", pathlib.Path, str], None]
    runner: Callable[[pathlib.Path], Run]


def _onnx(path: pathlib.Path) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    [inputs] = session.get_inputs()
    return lambda images: session.run(None, {inputs.name: images})[0]


def _write_litert(model: "ImageModel", path: pathlib.Path, inputs: str) -> None:
    model.export(str(path), format="litert", verbose=False)


def _litert(path: pathlib.Path) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    [inputs] = interpreter.get_input_details()
    [outputs] = interpreter.get_output_details()

    def run(images: Array) -> Array:
        interpreter.resize_tensor_input(inputs["index"], images.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(inputs["index"], images)
        interpreter.invoke()
        scores: Array = interpreter.get_tensor(outputs["index"])
        return scores

    return run


FORMATS = {
    "onnx": Format("model.onnx", ("tf2onnx", "onnxruntime"), onnx_file.write, _onnx),
    "litert": Format("model.tflite", ("ai_edge_litert",), _write_litert, _litert),
}
# The file that identifies the format of a version.
MARKS = {
    SAVED_MODEL: file_names.SAVED_MODEL,
    **{name: form.file for name, form in FORMATS.items()},
}


def write(
    model: "ImageModel",
    folder: pathlib.Path,
    name: str,
    golden: Arrays,
    inputs: str,
) -> dict[str, Any]:
    """Write a model in another format, and compare its outputs in its own runtime.

    Args:
        inputs: Description of the model's input, for the file.

    Returns:
        The agreement, as of `verify.Verify`, with its `tolerance` and the `noise` of
        the Keras model's outputs.

    Raises:
        CommandError: Keras cannot convert the model, or the outputs do not agree.
    """
    form = FORMATS[name]
    path = folder / form.file
    images = golden["images" if model.reads_raw_pixels else "pixels"].astype("float32")
    model(images[:1])  # Keras converts only models that were called
    with conversion_errors(f"this model cannot be written as {name}"):
        form.writer(model, path, inputs)
        run = form.runner(path)
    # One by one, then as one batch: the batch size must be dynamic.
    outputs = np.concatenate([run(image[None]) for image in images])
    differences = [outputs - golden["outputs"], run(images) - golden["outputs"]]
    largest = float(np.max(np.abs(differences)))
    tolerance = allowed("outputs", golden, TOLERANCE * scale_of(golden["outputs"]))
    if not largest <= tolerance:  # also true for NaN
        raise CommandError(
            f"the written model must agree with the Keras model to {tolerance:g}. "
            f"Received: a difference of {largest:g}; nothing was published"
        )
    best = [values.argmax(axis=1) for values in (outputs, golden["outputs"])]
    return {
        "images": len(images),
        "max_difference": largest,
        "top1": float(np.mean(best[0] == best[1])),
        "tolerance": tolerance,
        "noise": float(golden["outputs_noise"]),
    }


@contextlib.contextmanager
def conversion_errors(text: str) -> Iterator[None]:
    """Silence a converter, and raise what it does as `CommandError` with a text."""
    try:
        with _quiet():
            yield
    except OSError:
        raise
    except Exception as error:  # converters raise anything  # noqa: BLE001
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CommandError(f"{text}: {reason}") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the converters, which report every step on standard error."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
