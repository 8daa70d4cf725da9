"""Files of the client commands: which images are meant, and results written whole."""

import itertools
import os
import sys
from collections.abc import Iterable
from pathlib import Path

# What the exported models decode.
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"}


def image_paths(arguments: Iterable[str]) -> list[str]:
    """The image files that the arguments of a command mean.

    Args:
        arguments: files, which are taken as they are; folders, for the image files in
            them and below, sorted; "-" for a list on standard input, one per line.

    Raises:
        ValueError: a folder or the list holds no image.
    """
    paths: list[str] = []
    for argument in arguments:
        if argument == "-":
            found = image_paths(line for line in sys.stdin.read().splitlines() if line)
        elif os.path.isdir(argument):
            found = sorted(
                str(path)
                for path in Path(argument).rglob("*")
                if path.suffix.lower() in SUFFIXES and path.is_file()
            )
        else:
            found = [argument]
        if not found:
            raise ValueError(f"{argument}: no image files")
        paths += found
    return paths


def picture_names(paths: Iterable[str]) -> list[str]:
    """Names of pictures made of images: "a/cat.jpg" -> "cat.attention.png".

    Images of the same name in different folders get a number.
    """
    names: dict[str, None] = {}
    for path in paths:
        stem = Path(path).stem
        ends = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
        tries = (f"{stem}{end}.attention.png" for end in ends)
        names[next(name for name in tries if name not in names)] = None
    return list(names)


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Writes a file beside its place, then renames it: it is never there by half.

    Args:
        path: of the file; an old one is replaced.
        content: of the file.

    Raises:
        OSError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
