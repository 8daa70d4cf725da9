"""Image files of a command line: files, folders and "-"."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from keras_vit.common.command_line import CommandError

# The formats that exported models decode; `keras_vit.decoding` says what becomes of
# them (of an animated GIF, the first frame).
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"}


def image_paths(arguments: Iterable[str]) -> list[str]:
    """Expand the arguments of a command line to image files.

    Args:
        arguments: Files, which are taken as they are; folders, for the image files in
            them and below, sorted; "-" for a list on standard input, one per line.

    Raises:
        CommandError: A folder or the list holds no image, or no file exists.
    """
    paths = _expanded(arguments)
    if not any(map(os.path.exists, paths)):
        raise CommandError(f"{paths[0]}: no such file")
    return paths


def _expanded(arguments: Iterable[str]) -> list[str]:
    paths: list[str] = []
    for argument in arguments:
        if argument == "-":
            found = _expanded(line for line in sys.stdin.read().splitlines() if line)
        elif os.path.isdir(argument):
            found = sorted(
                str(path)
                for path in Path(argument).rglob("*")
                if path.suffix.lower() in SUFFIXES and path.is_file()
            )
        else:
            found = [argument]
        if not found:
            raise CommandError(f"{argument}: no image files")
        paths += found
    return paths
