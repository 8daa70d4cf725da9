"""`keras-vit export`: write a trained `.keras` file as the next version."""

import argparse
import dataclasses
import functools
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.common.activity import activity
from keras_vit.common.command_line import (
    CommandError,
    Parser,
    UsageError,
    documented_fields,
)
from keras_vit.common.file_names import RECIPE, model_file

from ..rollout import label_moves
from ..rollout.served_model import (
    ServedModel,
    add_arguments,
    add_rest,
    add_served_from,
    local_folder,
    served_model_of,
)
from ..usage import usage_errors, version_number
from . import formats, quantization
from .model_checks import check_int8_format
from .options import ExportOptions
from .publish import Published, publish

if TYPE_CHECKING:
    from keras_vit.base import ImageModel


def main(argv: list[str]) -> int:
    """Run `keras-vit export`.

    Raises:
        CommandError: Nothing was published, or the label was not moved.
    """
    arguments = _parser().parse_args(argv)
    with usage_errors():
        options = ExportOptions(
            **{
                name: getattr(arguments, name)
                for name in documented_fields(ExportOptions)
            }
        )
    target = _target(arguments)
    path = model_file(pathlib.Path(arguments.model))
    name = str(path) if path.exists() else arguments.model
    if not path.exists() and ":" not in name:
        raise CommandError(f"{path}: no such file")
    _check_quantize(arguments, path)
    published = _publish(name, arguments, options)
    _report(published, name)
    if target:
        _add(target, published.version, arguments)
    return 0


def _publish(
    name: str, arguments: argparse.Namespace, options: ExportOptions
) -> Published:
    with activity("loading the model") as become:
        read_images = functools.partial(_int8_images, pathlib.Path(name), arguments)
        return publish(
            load(name),
            arguments.to,
            options,
            version=arguments.version,
            class_names=arguments.class_names,
            pixels=arguments.pixels,
            check_images=arguments.check_images,
            export_format=arguments.format,
            int8_images=read_images if arguments.quantize else None,
            require_speedup=arguments.require_speedup,
            source=name,
            progress=become,
        )


def _check_quantize(arguments: argparse.Namespace, path: pathlib.Path) -> None:
    """Check before long work that there will be images to quantize with."""
    if arguments.quantize is None:
        for flag in ("calibration_images", "require_speedup"):
            if getattr(arguments, flag):
                raise UsageError(f"--{flag} needs --quantize int8")
        return
    check_int8_format(arguments.format)
    needed = ["check_images"]
    if arguments.format == "onnx":
        needed.insert(0, "calibration_images")
    elif arguments.calibration_images:
        raise UsageError(
            "--calibration_images needs --format onnx; litert finds the ranges of "
            "activations as it runs"
        )
    missing = [name for name in needed if not getattr(arguments, name)]
    if missing and not (path.parent / RECIPE).is_file():
        raise UsageError(
            f"--quantize {arguments.quantize} needs images like those that the model "
            f"was trained on, but {path} is not in the folder of a run, which has "
            f"{RECIPE}: give them as {' and '.join(f'--{name}' for name in missing)}"
        )


def _int8_images(
    path: pathlib.Path, arguments: argparse.Namespace, model: "ImageModel"
) -> quantization.Images:
    """The images of the arguments; what they lack is of the run's own splits."""
    from .keras_model import read_images

    calibration, validation = (
        read_images(model, flag, paths) if (paths := getattr(arguments, flag)) else None
        for flag in ("calibration_images", "check_images")
    )
    origin = "--check_images"
    if arguments.format != "onnx":
        calibration = np.empty(0)
    if calibration is None or validation is None:
        splits = quantization.images_of_run(path)
        if calibration is None:
            calibration = splits["train"]
        if validation is None:
            name = "validation" if "validation" in splits else "test"
            origin, validation = f"the {name} images of {path.parent}", splits[name]
    return quantization.Images(calibration, validation, origin)


def _report(published: Published, source: str) -> None:
    agreement = published.manifest["agreement"]
    int8 = published.manifest.get("quantization")
    if int8 is None:
        print(
            f"{published.path}: published; agrees with {source} to "
            f"{agreement['max_difference']:.1e} on {agreement['images']} images"
        )
    else:
        print(
            f"{published.path}: published; int8 gives the best class of float32 for "
            f"{agreement['top1']:.2%} of {agreement['images']} images "
            f"({int8['compared_on']}), and is on this machine "
            f"{quantization.speedup_text(int8['speedup'])}"
        )
    form = formats.FORMATS.get(published.manifest["export_format"])
    if form is not None:
        print(f"{form.file} reads {published.manifest['model']['inputs']}")
    for name in published.manifest.get("left_out", ()):
        print(f"the signature {name} is omitted: this model has no attention weights")


def _add(target: ServedModel, version: int, arguments: argparse.Namespace) -> None:
    """Add the version to the server's config; if that fails, it stays published."""
    try:
        label_moves.add(target, version, arguments.label, arguments.served_from)
    except CommandError as error:
        if arguments.label is None:
            raise
        again = target.command(version, arguments.label)
        raise CommandError(
            f"{error}. Version {version} is published, but the label {arguments.label} "
            f"was not moved; to retry: {again}"
        ) from None


def _target(arguments: argparse.Namespace) -> ServedModel | None:
    if arguments.config is None:
        for flag in ("label", "name", "served_from", "rest"):
            if getattr(arguments, flag) is not None:
                raise UsageError(
                    f"--{flag} needs --config, the server's model config file, which "
                    "says where a label points"
                )
        return None
    target = served_model_of(arguments, arguments.to)
    label_moves.check(target, arguments.label, arguments.served_from)
    return target


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="keras-vit export",
        description="Write a trained model as the next version of a served model.",
    )
    path = pathlib.Path
    parser.add_argument(
        "model", help="a run's folder, a .keras file, or a checkpoint with its configs"
    )
    parser.add_argument(
        "--to",
        type=local_folder,
        required=True,
        metavar="FOLDER",
        help="the model's folder, which holds one sub-folder for each version",
    )
    parser.add_argument(
        "--version",
        type=version_number,
        metavar="N",
        help="its number; default: the next",
    )
    parser.add_argument(
        "--format",
        choices=list(formats.MARKS),
        default=formats.SAVED_MODEL,
        help="default savedmodel; the others hold the bare network with the inputs of "
        "the Keras model: pixels from 0 to 255 if it has `preprocessing`",
    )
    parser.add_argument(
        "--quantize",
        choices=(quantization.INT8,),
        help="compute in int8, for CPUs; with --format onnx or litert. Published if it "
        "agrees with float32; its speed on this machine is reported",
    )
    parser.add_argument(
        "--require_speedup",
        action="store_true",
        help="publish int8 only if it is faster than float32 on this machine",
    )
    parser.add_argument(
        "--check_images",
        nargs="+",
        type=path,
        default=[],
        metavar="IMAGE",
        help="images to compare the written model with the Keras model on, in addition "
        "to generated ones, and int8 with float32; default for the latter: the run's "
        "validation images, or its test images",
    )
    parser.add_argument(
        "--calibration_images",
        nargs="+",
        type=path,
        default=[],
        metavar="IMAGE",
        help="images from which --quantize finds the ranges of activations in ONNX; "
        "default: the run's training images",
    )
    parser.add_argument(
        "--class_names",
        metavar="FILE|a,b,c",
        help="of a model without: a text file with one per line, or the names",
    )
    parser.add_argument(
        "--pixels",
        choices=("raw", "normalized"),
        help="what a model reads that does not state it: 0 to 255, or [-1, 1]",
    )
    _add_labels(parser.add_argument_group("where it is served"))
    _add_options(parser.add_argument_group("options of the served model"))
    return parser


def _add_labels(group: Any) -> None:
    add_arguments(group)
    add_rest(group, "to wait until it follows")
    group.add_argument("--label", help="a label to give the version, such as canary")
    add_served_from(group)


def _add_options(group: Any) -> None:
    """Add a flag for each field of ExportOptions, with help from its docstring."""
    descriptions = documented_fields(ExportOptions)
    for field in dataclasses.fields(ExportOptions):
        about = f"{descriptions[field.name]} Default: {field.default}."
        kind: dict[str, Any] = {"type": field.type}
        if field.type is bool:
            kind = {"action": argparse.BooleanOptionalAction}
        group.add_argument(
            f"--{field.name}",
            default=field.default,
            help=about.replace("%", "%%"),
            **kind,
        )


def load(name: str) -> "ImageModel":
    """Load what `keras_vit.open_model` opens.

    Raises:
        CommandError: It cannot be opened.
    """
    import keras_vit

    try:
        return keras_vit.open_model(name)
    except Exception as error:  # Keras raises many kinds for a damaged file.  # noqa: BLE001
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = reason.removeprefix(f"{name}: ")
        raise CommandError(f"{name}: cannot be opened: {reason}") from None
