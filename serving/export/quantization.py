"""int8 in ONNX and LiteRT files: written, compared with float32, and timed beside it.

ONNX files are quantized statically: calibration images determine the ranges of the
activations. LiteRT's are quantized in its dynamic range: int8 weights, and activations
whose ranges are found for each input. Products of two activations, softmax and
LayerNorm stay in float32 in both.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import timeit
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_vit.common.command_line import CommandError
from keras_vit.typing import Array, Arrays

from . import formats

if TYPE_CHECKING:
    from keras_vit.base import ImageModel

INT8 = "int8"
SCHEMES = {
    "onnx": "static: uint8 activations, 7-bit weights per channel",
    "litert": "dynamic range: 8-bit weights per channel",
}
# The rule of MLPerf Inference: 99% of float32's accuracy. Where the best class agrees
# on 99% of the images, at most one point of accuracy is lost.
TOP1 = 0.99
BATCH = 8  # images per call
TIMED_BATCHES = (1, BATCH)
ROUNDS = 5
# Their weights are constants of the graph in a ViT or ResNet.
WEIGHTED = ("Conv", "Gemm", "MatMul")
RUN_IMAGES = (sys.executable, "-m", "keras_vit", "run-images")


class Images(NamedTuple):
    """Images to quantize with.

    Attributes:
        calibration: uint8 [n, H, W, C] in the model's size, from which the ranges of
            activations are found; empty for LiteRT.
        validation: uint8 [m, H, W, C], on which int8 is compared with float32.
        origin: Where those of `validation` come from, for the report.
    """

    calibration: Array
    validation: Array
    origin: str


def images_of_run(model_file: pathlib.Path) -> Arrays:
    """Read images of the run that a model file is in.

    Returns:
        uint8 [n, H, W, C] by the split's name; see `training.evaluation.run_images`.

    Raises:
        CommandError: The run or its source cannot be read.
    """
    with tempfile.TemporaryDirectory() as scratch:
        target = pathlib.Path(scratch, "images.npz")
        result = subprocess.run(
            [*RUN_IMAGES, str(model_file), str(target)],
            capture_output=True,
            text=True,
            check=False,
            # A GPU may be full of the model that is exported.
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        )
        if result.returncode:
            lines = result.stderr.strip().splitlines()
            reason = lines[-1] if lines else f"exit {result.returncode}"
            reason = reason.removeprefix("keras-vit run-images: ")
            raise CommandError(
                f"{model_file.parent}: the run's images cannot be read: {reason}; "
                "--calibration_images and --check_images replace them"
            )
        with np.load(target) as arrays:
            return dict(arrays)


def quantize(
    model: "ImageModel",
    path: pathlib.Path,
    export_format: str,
    images: Images,
    require_speedup: bool,
) -> dict[str, Any]:
    """Replace a float32 file by an int8 one that agrees with it, and time both.

    Returns:
        The manifest's entries `agreement`, as of `verify.Verify` but of int8 with
        float32, and `quantization`: how it was done, and its speed-up by batch size.

    Raises:
        CommandError: It cannot be quantized, the answers differ too much, or int8 lacks
            the required speed-up.
    """
    form = formats.FORMATS[export_format]
    float32 = path.rename(path.with_stem("float32"))
    with formats.conversion_errors(f"this model cannot be quantized for {form.file}"):
        if export_format == "onnx":
            quantize_onnx(float32, path, _batches(model, images.calibration))
        else:
            _write_litert(model, path)
        runs = form.runner(float32), form.runner(path)
    agreement = _compare(model, *runs, images.validation)
    speedup = _speedup(model, *runs, images.validation)
    if require_speedup and min(speedup.values()) <= 1:
        raise CommandError(
            "int8 must be faster than float32 with --require_speedup. Received: "
            f"{speedup_text(speedup)}; nothing was published"
        )
    float32.unlink()
    return {
        "agreement": agreement,
        "quantization": {
            "type": INT8,
            "scheme": SCHEMES[export_format],
            "calibration_images": len(images.calibration),
            "compared_on": images.origin,
            "speedup": speedup,
        },
    }


def speedup_text(speedup: dict[str, float]) -> str:
    """The speed-up for each batch size, as text."""
    return ", ".join(
        f"{value:.2f} times as fast for a batch of {size}"
        for size, value in speedup.items()
    )


def _compare(
    model: "ImageModel", float32: formats.Run, int8: formats.Run, images: Array
) -> dict[str, Any]:
    pairs = [(float32(batch), int8(batch)) for batch in _batches(model, images)]
    expected, answers = (
        model.probabilities(np.concatenate(outputs))
        for outputs in zip(*pairs, strict=True)
    )
    top1 = float(np.mean(answers.argmax(axis=1) == expected.argmax(axis=1)))
    largest = float(np.max(np.abs(answers - expected)))
    if not top1 >= TOP1 or not np.isfinite(largest):
        raise CommandError(
            f"int8 must give the best class of float32 for {TOP1:.0%} of the images. "
            f"Received: {top1:.1%} of {len(images)}; nothing was published"
        )
    return {"images": len(images), "max_difference": largest, "top1": top1}


def faster(float32: formats.Run, int8: formats.Run, batch: Array) -> float:
    """How many times as fast int8 is: in turns, the best of `ROUNDS` of each."""
    timers = [timeit.Timer(lambda: float32(batch)), timeit.Timer(lambda: int8(batch))]
    timers[1].timeit(1)  # the first call is slow
    number, _ = timers[0].autorange()
    rounds = [[timer.timeit(number) for timer in timers] for _ in range(ROUNDS)]
    best = np.min(rounds, axis=0)
    return float(best[0] / best[1])


def _batches(model: "ImageModel", images: Array) -> Iterator[Array]:
    """Float32 batches of at most `BATCH` images, as the model reads them."""
    from .keras_model import model_inputs

    for start in range(0, len(images), BATCH):
        yield model_inputs(model, images[start : start + BATCH])


def _speedup(
    model: "ImageModel", float32: formats.Run, int8: formats.Run, images: Array
) -> dict[str, float]:
    batch = next(_batches(model, np.resize(images, (BATCH, *images.shape[1:]))))
    return {str(size): faster(float32, int8, batch[:size]) for size in TIMED_BATCHES}


def quantize_onnx(
    source: pathlib.Path, target: pathlib.Path, batches: Iterable[Array]
) -> None:
    """Quantize an ONNX file to int8, statically.

    Weights have 7 bits, as CPUs without VNNI add pairs of products in 16 bits, which 8
    would overflow: the file gives the same answers on all. Outputs stay in float32,
    which fuses each product with its scale.
    """
    import onnx  # tf2onnx needs it
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as scratch:
        # Without the fused bias of this step, int8 is hardly faster than float32.
        prepared = pathlib.Path(scratch, "prepared.onnx")
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        graph = onnx.load(prepared).graph
        [images] = graph.input
        feeds = ({images.name: batch} for batch in batches)
        constants = {value.name for value in graph.initializer}
        quantization.quantize_static(
            prepared,
            target,
            types.SimpleNamespace(get_next=lambda: next(feeds, None)),
            nodes_to_quantize=[
                node.name
                for node in graph.node
                if node.op_type in WEIGHTED and node.input[1] in constants
            ],
            op_types_to_quantize=list(WEIGHTED),
            per_channel=True,
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            extra_options={"OpTypesToExcludeOutputQuantization": WEIGHTED},
        )


def _write_litert(model: "ImageModel", target: pathlib.Path) -> None:
    import tensorflow as tf

    optimizations = [tf.lite.Optimize.DEFAULT]
    model.export(
        str(target), format="litert", verbose=False, optimizations=optimizations
    )
