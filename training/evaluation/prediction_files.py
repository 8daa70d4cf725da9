"""The files of `predict`: images in, tables and names of pictures out."""

import csv
import functools
import glob
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from .. import storage
from ..data.image_listing import SIGNATURE, image_files, is_special
from ..errors import DataError, RecipeError

TABLES = (".csv", ".json")
STDIN = Path("/dev/stdin")  # the name of an image on standard input


class Prediction(NamedTuple):
    """What a model says of an image file."""

    file: Path
    classes: list[tuple[str, float]]  # the most probable ones, best first
    error: str | None = None  # why the file is not a valid image


@functools.cache
def standard_input() -> bytes:
    """All of standard input, which can be read only once.

    Raises:
        DataError: It is closed.
    """
    if sys.stdin is None:
        raise DataError("-: standard input is closed")
    return sys.stdin.buffer.read()


def find_images(arguments: Iterable[str]) -> list[Path]:
    """Find image files.

    Args:
        arguments: Files, folders (their images, in sub-folders too, without hidden
            files), patterns such as `photos/*.jpg`, and `-` for standard input: either
            one image, or a list of these, one in a line.

    Returns:
        The files of each argument, sorted; `STDIN` for an image on standard input.

    Raises:
        DataError: There are none for one of the arguments.
    """
    files: list[Path] = []
    for argument in arguments:
        files += _of_standard_input() if argument == "-" else _matching(argument)
    return files


def _of_standard_input() -> list[Path]:
    """`STDIN`, or the files in a list.

    Raises:
        DataError: It is neither an image nor a list, or a line of it has no images.
    """
    data = standard_input()
    if SIGNATURE.match(data):
        return [STDIN]
    try:
        lines = [line.rstrip() for line in data.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        _refuse_standard_input(f"{len(data):,} bytes that are neither")
    if not any(lines):
        _refuse_standard_input("nothing")
    return [file for line in lines if line for file in _matching(line)]


def _refuse_standard_input(received: str) -> NoReturn:
    raise DataError(
        "-: standard input must be an image, or a list of files, one in a line. "
        f"Received: {received}"
    ) from None


def _matching(pattern: str) -> list[Path]:
    """The image files of a name or pattern; raise DataError where there are none."""
    path = Path(pattern)
    if path.is_dir():
        found = [Path(f.path) for f in image_files(path) if not is_special(f.path)]
    elif path.is_file():
        found = [path]
    else:
        names = map(Path, glob.glob(pattern, recursive=True))
        found = sorted(path for path in names if path.is_file())
    if not found:
        raise DataError(f"{pattern}: there is no such image file, folder or pattern")
    return found


def picture_names(files: Sequence[Path]) -> list[Path]:
    """The name of each image's picture, in sub-folders as the images are.

    cats/1.jpg and dogs/1.jpg have cats/1.png and dogs/1.png; where two names are the
    same otherwise, the second one is 1-2.png.
    """
    paths = [Path(f.name if f == STDIN else f).absolute() for f in files]
    above = os.path.commonpath([path.parent for path in paths]) if paths else ""
    names: dict[Path, None] = {}
    for path in paths:
        name = plain = path.relative_to(above).with_suffix("")
        number = 1
        while name in names:
            number += 1
            name = plain.with_name(f"{plain.name}-{number}")
        names[name] = None
    return [name.with_name(f"{name.name}.png") for name in names]


def check_table(path: Path) -> None:
    """Raise RecipeError unless `write_table` can write a file of this name."""
    if path.suffix.lower() not in TABLES:
        raise RecipeError(f"--out: must end in .csv or .json. Received: {path}")


def write_table(path: Path, predictions: Sequence[Prediction]) -> None:
    """Write predictions as CSV, with a row for each class, or as JSON."""
    if path.suffix.lower() == ".json":
        rows = [
            {
                "image": str(file),
                "classes": [
                    {"class": name, "probability": score} for name, score in classes
                ],
                "error": error,
            }
            for file, classes, error in predictions
        ]
        storage.write_text(path, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["image", "rank", "class", "probability", "error"])
    for file, classes, error in predictions:
        for rank, (name, score) in enumerate(classes, 1):
            writer.writerow([file, rank, name, f"{score:.6g}", ""])
        if error is not None:
            writer.writerow([file, "", "", "", error])
    storage.write_text(path, text.getvalue())
