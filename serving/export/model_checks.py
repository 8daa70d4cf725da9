"""Why export refuses a model: every reason that the model and the options show.

The rest is refused where it is found: answers that depend on the batch in
`keras_model`, files that do not agree in `verify` and `formats`, int8 in
`quantization`, layers that cannot be rebuilt in `backbone`. docs/serving.md
has them, too.
"""

import dataclasses
import importlib
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from keras_vit.common.command_line import CommandError, UsageError

from . import formats, onnx_file
from .options import ExportOptions

if TYPE_CHECKING:
    from keras_vit.base import ImageModel


def check_model(
    model: "ImageModel",
    options: ExportOptions,
    export_format: str = formats.SAVED_MODEL,
    int8: bool = False,
    check_images: Sequence[pathlib.Path] = (),
    class_names: str | None = None,
    pixels: str | None = None,
    source: str | os.PathLike[str] | None = None,
) -> None:
    """Check that a model can be exported with these options, which are `publish`'s.

    Raises:
        CommandError: It names every reason why not.
    """
    from keras_vit.base import ImageModel
    from keras_vit.classifier_metadata import check_classifier, check_pixels, read_names

    reasons = [*_of_options(options, export_format, int8)]
    reasons += _errors(check_classifier, model)
    if isinstance(model, ImageModel):  # others lack what is asked here
        if model.classes and class_names is not None:
            reasons += _errors(read_names, model, class_names)
        reasons += _errors(check_pixels, model, pixels)
        reasons += _errors(model.get_config)  # of a quantized model
        reasons += _of_model(model, options, export_format, bool(check_images))
    if len(reasons) > 1:
        numbered = [f"({n}) {reason}" for n, reason in enumerate(reasons, 1)]
        reasons = [f"{len(reasons)} reasons: {'; '.join(numbered)}"]
    if reasons:
        raise CommandError(f"{source}: {reasons[0]}" if source else reasons[0])


def check_int8_format(export_format: str) -> None:
    """Check that a format can be quantized, before the command loads the model."""
    if export_format not in formats.FORMATS:
        raise UsageError(
            f"--quantize needs --format {' or '.join(formats.FORMATS)}. "
            f"Received: {export_format}"
        )


def _of_options(options: ExportOptions, name: str, int8: bool) -> Iterator[str]:
    import keras

    if (backend := keras.backend.backend()) != "tensorflow":
        yield (
            "needs KERAS_BACKEND=tensorflow; a .keras file of another backend opens "
            f"there. Received: KERAS_BACKEND={backend}"
        )
    if int8:
        yield from _errors(check_int8_format, name)
    if name == formats.SAVED_MODEL:
        return
    given, default = dataclasses.asdict(options), dataclasses.asdict(ExportOptions())
    if meaningless := [flag for flag in given if given[flag] != default[flag]]:
        yield (
            f"--format {name} writes the bare network, which has no "
            f"{', '.join(meaningless)}"
        )
    packages = formats.FORMATS[name].packages
    if missing := [each for each in packages if _errors(importlib.import_module, each)]:
        yield (
            f"--format {name} needs packages that cannot be imported, "
            f'{", ".join(missing)}: pip install "keras-vit-serving[formats]"'
        )


def _of_model(
    model: "ImageModel", options: ExportOptions, name: str, has_images: bool
) -> Iterator[str]:
    from keras_vit.decoding import CHANNELS

    from .keras_model import generated_images

    if model.channels not in CHANNELS:
        yield (
            "the model must read images of 1 or 3 channels, as decoded files have. "
            f"Received: channels={model.channels}"
        )
    elif not has_images and not any(generated_images(model, options)):
        yield (
            "--check_images is needed with limits below the model's own image size: "
            f"{options.max_image_bytes} bytes, {options.max_image_pixels} pixels"
        )
    if name != formats.SAVED_MODEL and model.compute_dtype != "float32":
        yield (
            f"--format {name} needs a model in float32. "
            f"Received: {model.dtype_policy.name}"
        )
    size, largest = 4 * model.count_params(), onnx_file.LARGEST
    if name == "onnx" and size > largest:
        yield (
            "this model cannot be written as onnx: an ONNX file holds at most "
            f"{largest / 1e9:.1f} GB. Received: weights of {size / 1e9:.1f} GB"
        )


def _errors(check: Callable[..., Any], *arguments: Any) -> list[str]:
    """The message of the error that a check raises, if it raises one."""
    try:
        check(*arguments)
    except (CommandError, ImportError, ValueError) as error:
        return [str(error)]
    return []
