"""The library's command line: `keras-vit info | list | convert | inspect`."""

import argparse
import difflib
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import rich.box
from rich.console import Console
from rich.table import Table

from keras_vit.costs import Costs, variant_costs
from keras_vit.weights.presets import list_weights
from keras_vit.weights.resampling import RESIZES

_SUFFIXES = (".keras", ".npz", ".safetensors", ".h5", ".json")


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help shows the arguments)\n")


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments; those of the process when absent.

    Returns:
        The exit status: 0, or 2 for a mistake in the arguments.
    """
    # oneDNN is faster on any x86-64; without AVX512_VNNI the default is Eigen.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    parser = _Parser(prog="keras-vit", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_info(commands)
    _add_list(commands)
    _add_convert(commands)
    _add_inspect(commands)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse(commands.choices[arguments.command], unknown[0])
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            arguments.run(arguments)
    except BrokenPipeError:
        raise
    except (ValueError, ImportError, OSError) as error:
        print(f"keras-vit {arguments.command}: {error}", file=sys.stderr)
        return 2
    return 0


def _refuse(parser: argparse.ArgumentParser, argument: str) -> NoReturn:
    """End with the flag that was probably meant."""
    flags = [flag for action in parser._actions for flag in action.option_strings]
    meant = _did_you_mean(argument.partition("=")[0], flags)
    parser.error(f"unrecognized argument: {argument}{meant}")


def _did_you_mean(text: str, known: Iterable[str]) -> str:
    """A question about the most similar known word, or an empty text."""
    similar = difflib.get_close_matches(text, list(known), n=1)
    return f". Did you mean {similar[0]}?" if similar else ""


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Show a warning without the line of code that gave it."""
    print(f"warning: {message}", file=sys.stderr)


def _add_info(commands) -> None:
    info = commands.add_parser(
        "info", help="parameters, FLOPs, tokens, memory; or what a file is"
    )
    info.add_argument(
        "targets",
        nargs="+",
        metavar="VARIANT|FILE",
        help="such as B/16, R50+B/16, R50x1; or a checkpoint, .keras file or run",
    )
    info.add_argument(
        "--image_size",
        type=_image_size,
        default=(224, 224),
        metavar="H[xW]",
        help="in pixels; default 224",
    )
    info.add_argument("--channels", type=_at_least(1), default=3, help="default 3")
    info.add_argument(
        "--classes",
        type=_at_least(0),
        default=1000,
        help="0 for no classifier; default 1000",
    )
    info.set_defaults(run=_info)


def _info(arguments: argparse.Namespace) -> None:
    files = [target for target in arguments.targets if _is_file(target)]
    for target in files:
        _check_file(target)
    for target in files:
        _weights_commands().print_file(target)
    rows = [
        (variant, _costs(variant, arguments, 4), _costs(variant, arguments, 2))
        for variant in arguments.targets
        if variant not in files
    ]
    if rows:
        Console().print(_table(rows, arguments))


def _is_file(target: str) -> bool:
    """Whether an argument of `info` is a file of weights rather than a variant."""
    return (
        target.startswith("hf://")
        or target.endswith(_SUFFIXES)
        or os.path.exists(target)
    )


def _check_file(target: str) -> None:
    """Raise ValueError for a missing file, before Keras is imported."""
    on_disk = target.endswith(_SUFFIXES) and "://" not in target
    if on_disk and not os.path.exists(target):
        raise ValueError(f"{target}: there is no such file")


def _add_list(commands: Any) -> None:
    """Add `list [VARIANT]`: published weights."""
    parser = commands.add_parser("list", help="published weights and their names")
    parser.add_argument("variant", nargs="?", help="such as B/16; all when absent")
    parser.set_defaults(run=_list)


def _list(arguments: argparse.Namespace) -> None:
    table = Table(
        box=rich.box.SIMPLE_HEAD,
        caption="from_preset(PRESET), or weights= with what follows the colon. "
        "top-1: published accuracy on ImageNet in percent, and who measured it. "
        "zeros: the authors set the classifier to zero.",
    )
    for heading in ("preset", "classes", "pixels", "MiB", "top-1", "source"):
        left = heading in ("preset", "source")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in list_weights(arguments.variant):
        classes = f"{row.classes:,}" if row.classes else "none"
        table.add_row(
            f"{row.variant}:{row.name}",
            f"{classes} zeros" if row.classifier == "zeros" else classes,
            str(row.image_size),
            f"{row.bytes / 2**20:,.0f}",
            "" if row.top1 is None else f"{row.top1:.2f}",
            row.source,
        )
    # Names are for copying: rather too wide a table than a broken one.
    Console(width=max(Console().width, 120)).print(table)


def _add_convert(commands: Any) -> None:
    """Add `convert IN OUT`: from any family to Keras, Google, timm or Hugging Face."""
    parser = commands.add_parser("convert", help="a checkpoint to another family")
    parser.add_argument("source", metavar="IN", help="a checkpoint, or a .keras file")
    parser.add_argument(
        "target",
        metavar="OUT",
        help="NAME.keras, NAME.npz (Google), or a folder (with --to)",
    )
    parser.add_argument(
        "--to",
        type=_one_of("timm", "hugging_face"),
        metavar="{timm,hugging_face}",
        help="for a folder",
    )
    parser.add_argument("--heads", type=int, help="if IN does not state their number")
    parser.add_argument(
        "--image_size", type=_image_size, metavar="H[xW]", help="in pixels; resizes"
    )
    parser.add_argument(
        "--grid", type=_image_size, metavar="H[xW]", help="of IN's position embeddings"
    )
    parser.add_argument(
        "--resample",
        type=_one_of(*RESIZES),
        default="google",
        metavar=f"{{{','.join(RESIZES)}}}",
        help="default google",
    )
    parser.set_defaults(run=_convert)


def _convert(arguments: argparse.Namespace) -> None:
    _check_file(arguments.source)
    _weights_commands().convert(arguments)


def _add_inspect(commands: Any) -> None:
    """Add `inspect MODEL [IMAGES...]`: pictures of what a model has learned."""
    parser = commands.add_parser("inspect", help="draw what a model has learned")
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a run, a .keras file, a checkpoint, or VARIANT:NAME of `list`",
    )
    parser.add_argument(
        "images",
        nargs="*",
        metavar="IMAGES",
        help="files or folders; without them only filters and positions are drawn",
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="FOLDER",
        help="where one PNG for each property and arrays.npz are written",
    )
    parser.set_defaults(run=_inspect)


def _inspect(arguments: argparse.Namespace) -> None:
    """Imported here, as the other commands need no Keras."""
    _check_file(arguments.model)
    from keras_vit import (
        __version__,  # noqa: F401  the whole library, registered
        inspect_command,
    )

    inspect_command.inspect(arguments)


def _weights_commands():
    """Imported where a file is opened: the other commands need no Keras."""
    from keras_vit import (
        __version__,  # noqa: F401  the whole library, registered
        weights_commands,
    )

    return weights_commands


def _image_size(text: str) -> tuple[int, int]:
    """Parse `384` or `384x256` as (H, W)."""
    try:
        sides = [int(side) for side in text.split("x")]
    except ValueError:
        sides = []
    if len(sides) not in (1, 2) or min(sides) < 1:
        raise argparse.ArgumentTypeError(
            f"must be H or HxW in pixels, such as 384 or 384x256, not {text!r}"
        )
    return sides[0], sides[-1]


def _one_of(*choices: str) -> Callable[[str], str]:
    """Parse one of some words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(
                f"must be {' or '.join(choices)}, not {text!r}"
                f"{_did_you_mean(text, choices)}"
            )
        return text

    return parse


def _at_least(least: int) -> Callable[[str], int]:
    """Parse an integer that is `least` or more."""

    def parse(text: str) -> int:
        if not text.lstrip("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {text!r}")
        return int(text)

    return parse


def _costs(variant: str, arguments: argparse.Namespace, bytes_per_value: int) -> Costs:
    return variant_costs(
        variant,
        arguments.image_size,
        arguments.channels,
        arguments.classes or None,
        bytes_per_value=bytes_per_value,
    )


def _table(
    rows: list[tuple[str, Costs, Costs]], arguments: argparse.Namespace
) -> Table:
    height, width = arguments.image_size
    table = Table(
        title=f"{height} x {width} x {arguments.channels} pixels, "
        f"{arguments.classes} classes, for one image",
        caption="activation memory in MiB: inference at its peak / kept for training",
    )
    for heading in ("variant", "parameters", "tokens", "GMACs", "GFLOPs"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    table.add_column("float32", justify="right")
    table.add_column("bfloat16", justify="right")
    for variant, float32, bfloat16 in rows:
        table.add_row(
            variant,
            f"{float32.parameters:,}",
            f"{float32.tokens:,}" if float32.tokens else "-",
            f"{float32.macs / 1e9:.2f}",
            f"{float32.flops / 1e9:.1f}",
            *(
                f"{c.inference_bytes / 2**20:.1f} / {c.training_bytes / 2**20:.1f}"
                for c in (float32, bfloat16)
            ),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
