"""The library's command line: `python -m keras_vit info B/16`."""

import argparse
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from keras_vit.costs import Costs, model_costs
from keras_vit.specs import parse_variant


def main(argv: list[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: The arguments; those of the process when absent.

    Returns:
        The exit status: 0, or 2 for a mistake in the arguments.
    """
    parser = argparse.ArgumentParser(prog="python -m keras_vit", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="parameters, FLOPs, tokens, memory")
    info.add_argument("variants", nargs="+", metavar="VARIANT", help="such as B/16")
    info.add_argument(
        "--image-size",
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
    arguments = parser.parse_args(argv)
    try:
        rows = [
            (variant, _costs(variant, arguments, 4), _costs(variant, arguments, 2))
            for variant in arguments.variants
        ]
    except ValueError as error:
        print(f"keras_vit info: {error}", file=sys.stderr)
        return 2
    Console().print(_table(rows, arguments))
    return 0


def _image_size(text: str) -> tuple[int, int]:
    """Reads `384` or `384x256` as (H, W)."""
    try:
        sides = [int(side) for side in text.split("x")]
    except ValueError:
        sides = []
    if len(sides) not in (1, 2) or min(sides) < 1:
        raise argparse.ArgumentTypeError(
            f"must be H or HxW in pixels, such as 384 or 384x256, not {text!r}"
        )
    return sides[0], sides[-1]


def _at_least(least: int) -> Callable[[str], int]:
    """Reads an integer that is `least` or more."""

    def parse(text: str) -> int:
        if not text.lstrip("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {text!r}")
        return int(text)

    return parse


def _costs(variant: str, arguments: argparse.Namespace, bytes_per_value: int) -> Costs:
    spec, patch_size = parse_variant(variant)
    return model_costs(
        spec,
        patch_size,
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
            f"{float32.tokens:,}",
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
