"""Publish a Keras model as a version: write, warm up, verify, describe, rename."""

import contextlib
import dataclasses
import datetime
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from keras_vit.common.command_line import CommandError
from keras_vit.typing import Arrays

from ..rollout import manifest
from ..rollout.versions import check_base_path, staged_version, version_folders
from . import formats, quantization, warmup_records
from .model_checks import check_model
from .numeric_agreement import allowed
from .options import ExportOptions
from .verification_inputs import SIGNATURE_INPUTS
from .verify import verification

if TYPE_CHECKING:
    from keras_vit.base import ImageModel

# Tolerance of a probability, by the precision of the computation.
TOLERANCE = {"float64": 1e-5, "float32": 1e-5, "bfloat16": 5e-2, "float16": 5e-3}


class Published(NamedTuple):
    """A published version: its folder, number and manifest."""

    path: pathlib.Path
    version: int
    manifest: manifest.Manifest


def publish(
    model: "ImageModel",
    base_path: pathlib.Path,
    options: ExportOptions | None = None,
    *,
    version: int | None = None,
    class_names: str | None = None,
    pixels: str | None = None,
    check_images: Sequence[pathlib.Path] = (),
    export_format: str = formats.SAVED_MODEL,
    int8_images: Callable[["ImageModel"], quantization.Images] | None = None,
    require_speedup: bool = False,
    source: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Published:
    """Write and verify a model as a version of a served model.

    A server that watches `base_path` sees the complete version or nothing.

    Args:
        model: A `keras_vit.base.ImageModel` with classes; see `check_model`.
        base_path: The model's folder, which holds the versions.
        options: Options of the exported model.
        version: The version's number; default: the next one.
        class_names: Of a model without: a text file with one per line, or the names.
        pixels: What a model reads that does not state it: `"raw"` or `"normalized"`.
        check_images: Image files to compare on, in addition to generated ones.
        export_format: `"savedmodel"`, `"onnx"` or `"litert"`.
        int8_images: With `"onnx"` and `"litert"`: reads the images to quantize with.
        require_speedup: Whether to refuse int8 that is not faster on this machine.
        source: What the model was opened from, for the manifest and errors.
        progress: Called with each step before it begins.

    Raises:
        CommandError: `check_model` refuses it, it cannot be written, it differs from
            the Keras model, or lacks the required speed-up. Nothing is published then.
    """
    options = options or ExportOptions()
    check_base_path(base_path)
    _check_format(base_path, export_format)
    int8 = int8_images is not None
    check_model(
        model, options, export_format, int8, check_images, class_names, pixels, source
    )
    with _command_errors(base_path):
        from keras_vit import ImageClassifier, devices
        from keras_vit.classifier_metadata import name_classes, reading_raw_pixels

        from .keras_model import describe, golden_answers

        name_classes(model, class_names)
        if pixels is not None or isinstance(model, ImageClassifier):
            model = reading_raw_pixels(model, pixels)  # its backbone may read any range
        if int8_images is not None:
            progress("reading the images to quantize with")
            images = int8_images(model)
        progress("running the Keras model on the golden images")
        golden = golden_answers(model, options, check_images)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        described = {"created": now, "source": _source(source), **describe(model)}
        with staged_version(base_path, version) as (folder, number):
            progress(f"writing and verifying version {number}")
            if export_format == formats.SAVED_MODEL:
                written = _write_saved_model(model, folder, options, golden)
            else:
                inputs = described["model"]["inputs"]
                # As for a GPU, wherever this runs: runtimes are slow at the loops that
                # TensorFlow takes for attention on a CPU, on CPUs too.
                with devices.making_graphs_for("gpu"):
                    agreement = formats.write(
                        model, folder, export_format, golden, inputs
                    )
                    written = {"agreement": agreement}
                    if int8_images is not None:
                        progress(f"quantizing version {number} and measuring its speed")
                        path = folder / formats.FORMATS[export_format].file
                        written = quantization.quantize(
                            model, path, export_format, images, require_speedup
                        )
            entries = {**described, "export_format": export_format, **written}
            complete = manifest.write(folder, entries)
    return Published(base_path / str(number), number, complete)


def _write_saved_model(
    model: "ImageModel", folder: pathlib.Path, options: ExportOptions, golden: Arrays
) -> manifest.Manifest:
    """Write and verify a SavedModel; returns its entries of the manifest."""
    from . import signatures

    limits = {
        name: getattr(options, name)
        for name in ("max_images", "max_image_bytes", "max_image_pixels")
    }
    tolerance = tolerance_of(model, options)
    with verification() as verify:
        signatures.save(model, folder, options)
        specs = manifest.signature_specs(folder)
        sizes = [n for n in options.allowed_batch_sizes if n <= options.max_images]
        requests = warmup_records.requests(specs, sizes, options.warmup)
        warmup_records.write(folder, requests, specs)
        agreement = verify(folder, golden, tolerance, limits)
    return {
        "options": dataclasses.asdict(options),
        "signatures": specs,
        "left_out": [name for name in SIGNATURE_INPUTS if name not in specs],
        "agreement": {
            **agreement,
            "tolerance": allowed("probabilities", golden, tolerance),
            "noise": float(golden["probabilities_noise"]),
        },
    }


def tolerance_of(model: "ImageModel", options: ExportOptions) -> float:
    """The allowed difference of a probability, whatever the model's noise is."""
    return max(TOLERANCE[options.precision], TOLERANCE[model.compute_dtype])


def _check_format(base_path: pathlib.Path, export_format: str) -> None:
    """Check that all versions of a folder are of this format."""
    mark = formats.MARKS[export_format]
    for folder in version_folders(base_path).values():
        if not (folder / mark).is_file():
            raise CommandError(
                f"{folder}: has no {mark}; all versions of a folder must be of one "
                f"format. Received: {export_format}"
            )


@contextlib.contextmanager
def _command_errors(base_path: pathlib.Path) -> Iterator[None]:
    """Convert errors of TensorFlow, Keras and the disk to `CommandError`."""
    import tensorflow as tf

    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise CommandError(f"{base_path}: cannot be written: {reason}") from None
    except ValueError as error:
        raise CommandError(str(error)) from None


def _source(name: str | os.PathLike[str] | None) -> manifest.Manifest | None:
    if name is None:
        return None
    path = pathlib.Path(name)
    if not path.is_file():  # a folder or a repository
        return {"file": str(name), "sha256": None}
    return {"file": path.name, "sha256": manifest.sha256_of(path)}
