"""`keras-vit push`: a finished run on Hugging Face."""

import argparse
from pathlib import Path

from keras_vit.common.command_line import Parser

from ..engine import early_checks
from .command import Command


def _add_push(parser: Parser) -> None:
    parser.add_argument("run", help="the folder of a finished run")
    parser.add_argument("target", help="hf://owner/name")
    parser.add_argument(
        "--private", action="store_true", help="create a private repository"
    )
    parser.add_argument(
        "--license",
        help="of the weights, by the Hub's identifier, such as apache-2.0",
    )
    parser.add_argument("--dry_run", help="write this folder instead of uploading")


def _check_push(options: argparse.Namespace) -> None:
    early_checks.check_finished_run(Path(options.run))


def _run_push(options: argparse.Namespace) -> None:
    from ..fitting.push import push

    folder = None if options.dry_run is None else Path(options.dry_run)
    push(Path(options.run), options.target, options.private, options.license, folder)


push = Command(
    "push",
    _add_push,
    _run_push,
    _check_push,
    description="Upload the model of a finished run to Hugging Face, with a model "
    "card, pictures and, where it can compute the model, timm's or transformers' "
    "files",
)
