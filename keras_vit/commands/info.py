"""`keras-vit info`: what a size or a file is. `keras-vit list`: published weights."""

import argparse
import os

import rich.box
from rich.console import Console
from rich.table import Table

from keras_vit.commands.arguments import at_least, check_file, image_size
from keras_vit.common.command_line import Parser
from keras_vit.common.file_names import MODEL_SUFFIXES
from keras_vit.costs import Costs, variant_costs
from keras_vit.weights.presets import list_weights


def info(argv: list[str]) -> None:
    """Print parameters, FLOPs, tokens and memory; or what a file is."""
    parser = Parser(
        prog="keras-vit info",
        description="Print parameters, FLOPs, tokens and memory; or what a file is.",
    )
    parser.add_argument(
        "targets",
        nargs="+",
        metavar="VARIANT|FILE",
        help="such as B/16, R50+B/16, R50x1; or a checkpoint, .keras file or run, "
        "published weights, or hf://owner/name",
    )
    parser.add_argument(
        "--image_size",
        type=image_size,
        default=(224, 224),
        metavar="H[xW]",
        help="in pixels; default 224",
    )
    parser.add_argument("--channels", type=at_least(1), default=3, help="default 3")
    parser.add_argument(
        "--classes",
        type=at_least(0),
        default=1000,
        help="0 for no classifier; default 1000",
    )
    arguments = parser.parse_args(argv)
    files = [target for target in arguments.targets if _is_file(target)]
    for target in files:
        check_file(target)
    if files:
        from keras_vit.commands.weights_files import print_file
    for target in files:
        print_file(target)
    rows = [
        (variant, _costs(variant, arguments, 4), _costs(variant, arguments, 2))
        for variant in arguments.targets
        if variant not in files
    ]
    if rows:
        Console().print(_table(rows, arguments))


def published(argv: list[str]) -> None:
    """Print published weights and their names."""
    parser = Parser(
        prog="keras-vit list", description="Print published weights and their names."
    )
    parser.add_argument("variant", nargs="?", help="such as B/16; all when absent")
    arguments = parser.parse_args(argv)
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


def _is_file(target: str) -> bool:
    """Whether an argument of `info` is a file of weights rather than a variant."""
    return (
        ":" in target  # VARIANT:NAME, hf://, https://
        or target.endswith(MODEL_SUFFIXES)
        or os.path.exists(os.path.expanduser(target))
    )


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
