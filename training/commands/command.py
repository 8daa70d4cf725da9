"""A command of training, and flags that several of them have.

TensorFlow is imported only once the flags are known to be right.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from keras_vit.common.activity import activity
from keras_vit.common.command_line import Parser
from keras_vit.common.commands import COMMANDS

from ..errors import TrainingError
from ..flags import parse_flags

RUNS = Path("runs")


class Command(NamedTuple):
    """A command of training."""

    name: str  # as in `keras-vit NAME`
    add_arguments: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], int | None]  # its exit status, or None for 0
    # Refuses what is wrong before Keras is imported, which takes seconds.
    check: Callable[[argparse.Namespace], None] | None = None
    needs_keras: bool = True  # whether Keras and TensorFlow are imported before `run`
    description: str = ""  # for `--help`, where that is more than the table's line

    def __call__(self, arguments: Sequence[str]) -> int | None:
        """Run the command with the arguments after its name.

        Raises:
            TrainingError: A user's mistake, in one line.
        """
        options = self.parse(arguments)
        with activity(f"keras-vit {self.name}", redraw=False):
            if self.check is not None:
                self.check(options)
            if self.needs_keras:
                import_keras()
            return self.run(options)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse the flags.

        Raises:
            RecipeError: A flag is unknown, missing or wrong.
        """
        about = self.description or COMMANDS["training"][self.name].about
        parser = Parser(
            prog=f"keras-vit {self.name}",
            description=f"{about[0].upper()}{about[1:]}.",
        )
        self.add_arguments(parser)
        return parse_flags(parser, arguments)


def import_keras() -> None:
    """Import Keras and TensorFlow, which takes seconds.

    Raises:
        TrainingError: `KERAS_BACKEND` is not one of the supported backends.
    """
    with activity("starting TensorFlow"):
        try:
            # Imported before Keras, as its error names the supported backends.
            from keras_vit import _backend  # noqa: F401
        except ImportError as error:
            raise TrainingError(str(error)) from None
        from ..evaluation import evaluate  # noqa: F401  and with it most of what commands import


def add_class_names_and_pixels(parser: Parser) -> None:
    """Add what a model that `fit` did not write may lack."""
    parser.add_argument(
        "--class_names",
        help="of a model without: a text file with one per line, or a,b,c",
    )
    parser.add_argument(
        "--pixels",
        choices=("raw", "normalized"),
        help="what a model reads that does not state it: 0 to 255, or [-1, 1]",
    )


def add_devices(parser: Parser) -> None:
    """Add the devices of a command that does not train."""
    parser.add_argument(
        "--strategy",
        choices=("auto", "one_device", "mirrored", "fsdp", "tpu"),
        default="auto",
        help="devices to compute on, as in fit; auto: all of this machine",
    )
    parser.add_argument("--tpu", help="name of the TPU, or local on a TPU VM")
