"""Types of arguments of the library's commands, and checks before Keras is imported."""

import argparse
import os
from collections.abc import Callable

from keras_vit.common.file_names import MODEL_SUFFIXES
from keras_vit.common.similar_names import did_you_mean
from keras_vit.errors import WeightsFileError


def check_file(target: str) -> None:
    """Raise WeightsFileError for a missing file, before Keras is imported."""
    on_disk = target.endswith(MODEL_SUFFIXES) and "://" not in target
    if on_disk and not os.path.exists(os.path.expanduser(target)):
        raise WeightsFileError(f"{target}: there is no such file")


def image_size(text: str) -> tuple[int, int]:
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


def one_of(*choices: str) -> Callable[[str], str]:
    """Parse one of some words."""

    def parse(text: str) -> str:
        if text not in choices:
            meant = did_you_mean(text, choices)
            raise argparse.ArgumentTypeError(
                f"must be {' or '.join(choices)}, not {text!r}{meant and '.' + meant}"
            )
        return text

    return parse


def at_least(least: int) -> Callable[[str], int]:
    """Parse an integer that is `least` or more."""

    def parse(text: str) -> int:
        if not text.lstrip("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {text!r}")
        return int(text)

    return parse
