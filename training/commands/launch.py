"""`keras-vit launch`: several workers on this machine."""

import argparse

from keras_vit.common.command_line import Parser

from ..engine import launch as workers
from .command import Command


def _add_launch(parser: Parser) -> None:
    parser.add_argument("--workers", type=int, default=2, help="number of workers")
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        help="how often to restart all workers, with --resume, after one was killed",
    )
    parser.add_argument("arguments", nargs="*", help="-- fit or resume, and its flags")


def _run_launch(options: argparse.Namespace) -> int:
    return workers.launch(options.arguments, options.workers, options.restarts)


launch = Command(
    "launch",
    _add_launch,
    _run_launch,
    needs_keras=False,
    description="Start all workers of a run on this machine, as in "
    "`keras-vit launch --workers 2 -- fit --recipe digits`",
)
