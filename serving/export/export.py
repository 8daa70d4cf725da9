"""`python -m serving export`: a trained `.keras` file becomes the next version."""

import argparse
import dataclasses
import pathlib
import re
import sys
from typing import Any

from rich.console import Console

from ..commandline import Parser, by_flags
from ..errors import ExportError
from ..rollout import label_moves
from ..rollout.served_model import (
    Target,
    add_arguments,
    add_rest,
    add_served_from,
    local_folder,
    target_of,
)
from . import formats
from .options import ExportOptions
from .publish import Published, publish


def main(argv: list[str]) -> int:
    """Runs `python -m serving export`.

    Args:
        argv: The arguments after `export`.

    Returns:
        The exit status: 0, or 1 when nothing was published.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        options = ExportOptions(
            **{name: getattr(arguments, name) for name in _descriptions()}
        )
    except ValueError as error:
        parser.error(by_flags(error))
    try:
        target = _target(arguments)
        path = model_file(arguments.model)
        published = _publish(path, arguments, options)
        _tell(published, path)
        if target:
            _add(target, published.version, arguments)
    except (ExportError, ValueError) as error:
        print(f"serving export: {error}", file=sys.stderr)
        return 1
    return 0


def _publish(
    path: pathlib.Path, arguments: argparse.Namespace, options: ExportOptions
) -> Published:
    with Console(stderr=True).status("loading the model") as status:
        return publish(
            load(path),
            arguments.to,
            options,
            version=arguments.version,
            check_images=arguments.check_images,
            export_format=arguments.format,
            source=path,
            progress=status.update,
        )


def _tell(published: Published, path: pathlib.Path) -> None:
    agreement = published.manifest["agreement"]
    print(
        f"{published.path}: published; agrees with {path} to "
        f"{agreement['max_difference']:.1e} on {agreement['images']} images"
    )
    form = formats.FORMATS.get(published.manifest["export_format"])
    if form is not None:
        print(f"{form.file} reads {published.manifest['model']['inputs']}")
    for name in published.manifest.get("left_out", ()):
        print(f"the signature {name} is left out: this model has no attention to show")


def _add(target: Target, version: int, arguments: argparse.Namespace) -> None:
    """Has the version served; it stays published where that fails."""
    try:
        label_moves.add(target, version, arguments.label, arguments.served_from)
    except ExportError as error:
        if arguments.label is None:
            raise
        again = target.command(version, arguments.label)
        raise ExportError(
            f"{error}. Version {version} is published, but {arguments.label} is where "
            f"it was; later: {again}"
        ) from None


def _target(arguments: argparse.Namespace) -> Target | None:
    if arguments.config is None:
        for flag in ("label", "name", "served_from", "rest"):
            if getattr(arguments, flag) is not None:
                raise ExportError(
                    f"--{flag.replace('_', '-')} needs --config, the server's model "
                    "config file, which says where a label points"
                )
        return None
    target = target_of(arguments, arguments.to)
    label_moves.check(target, arguments.label, arguments.served_from)
    return target


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m serving export",
        description="Writes a trained model as the next version of a served model.",
    )
    path = pathlib.Path
    parser.add_argument("model", type=path, help="a .keras file, or a run's folder")
    parser.add_argument(
        "--to",
        type=local_folder,
        required=True,
        metavar="FOLDER",
        help="the model's folder, which holds one sub-folder for each version",
    )
    parser.add_argument(
        "--version", type=_version, metavar="N", help="its number; default: the next"
    )
    parser.add_argument(
        "--format",
        choices=list(formats.MARKS),
        default=formats.SAVED_MODEL,
        help="default savedmodel; the others hold the bare network, which reads what "
        "the Keras model reads: pixels from 0 to 255 if it has `preprocessing`",
    )
    parser.add_argument(
        "--check-images",
        nargs="+",
        type=path,
        default=[],
        metavar="IMAGE",
        help="images to compare the written model with the Keras model on, beside "
        "patterns that are always tried",
    )
    _add_labels(parser.add_argument_group("where it is served"))
    _add_options(parser.add_argument_group("what the served model is like"))
    return parser


def _add_labels(group: Any) -> None:
    add_arguments(group)
    add_rest(group, "to wait until it has followed")
    group.add_argument("--label", help="a label to give the version, such as canary")
    add_served_from(group)


def _add_options(group: Any) -> None:
    """A flag for each field of ExportOptions, with the help of its docstring."""
    descriptions = _descriptions()
    for field in dataclasses.fields(ExportOptions):
        about = f"{descriptions[field.name]} Default: {field.default}."
        kind: dict[str, Any] = {"type": field.type}
        if field.type is bool:
            kind = {"action": argparse.BooleanOptionalAction}
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            default=field.default,
            help=about.replace("%", "%%"),
            **kind,
        )


def _descriptions() -> dict[str, str]:
    """What the docstring of ExportOptions says about each field."""
    text = str(ExportOptions.__doc__).partition("Args:")[2].partition("Raises:")[0]
    entries = re.findall(r"^ {8}(\w+): (.+?)(?=^ {8}\w|\Z)", text, re.M | re.S)
    return {name: " ".join(about.split()) for name, about in entries}


def _version(text: str) -> int:
    try:
        version = int(text)
    except ValueError:
        version = 0
    if not 1 <= version < 2**63:
        raise argparse.ArgumentTypeError(
            f"must be a number from 1 to 2**63 - 1. Received: {text}"
        )
    return version


def model_file(path: pathlib.Path) -> pathlib.Path:
    """The `.keras` file that is meant: itself, or `best.keras` of a run's folder.

    Raises:
        ExportError: There is no such file.
    """
    if path.is_dir():
        path = path / "best.keras"
    if not path.is_file():
        raise ExportError(f"{path}: no such file")
    return path


def load(path: pathlib.Path) -> Any:
    """Loads a trained classifier.

    Args:
        path: A `.keras` file.

    Returns:
        The `keras_vit.ImageModel`: a VisionTransformer, ResNet or ImageClassifier.

    Raises:
        ExportError: No such format, another kind of model, or another backend.
    """
    from keras_vit.base import ImageModel  # isort: skip  it checks Keras's backend
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ExportError(
            "needs KERAS_BACKEND=tensorflow; a .keras file of another backend opens "
            f"there. Received: KERAS_BACKEND={keras.backend.backend()}"
        )
    try:
        model = keras.models.load_model(path, compile=False)
    except Exception as error:  # Keras raises many kinds for a damaged file.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ExportError(f"{path}: not a readable .keras file: {reason}") from None
    if not isinstance(model, ImageModel) or not model.classes:
        raise ExportError(
            f"{path}: must hold a model of keras_vit with classes. "
            f"Received: {type(model).__name__} {model.name!r}"
        )
    return model
