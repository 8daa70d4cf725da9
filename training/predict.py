"""Prediction: classify image files with a trained model."""

import glob
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import keras_vit
from keras_vit import decoding

from .data.folder import is_system_file
from .errors import DataError

BATCH_SIZE = 64
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp")


def find_images(pattern: str) -> list[Path]:
    """Find image files.

    Args:
        pattern: A file, a folder (its images, by suffix, in sub-folders too, without
            hidden files) or a pattern such as `photos/*.jpg`.

    Returns:
        The files, sorted.

    Raises:
        DataError: There are none.
    """
    path = Path(pattern)
    if path.is_dir():
        found = [
            file
            for file in path.rglob("*")
            if file.suffix.lower() in SUFFIXES
            and not any(map(is_system_file, file.relative_to(path).parts))
        ]
    elif path.is_file():
        found = [path]
    else:
        found = [Path(name) for name in glob.glob(pattern, recursive=True)]
    files = sorted(path for path in found if path.is_file())
    if not files:
        raise DataError(f"{pattern}: there is no such image file, folder or pattern")
    return files


def predict(
    model: keras.Model, files: Sequence[Path], top: int = 1
) -> list[list[tuple[str, float]] | None]:
    """Classify image files; print errors about invalid ones on stderr.

    Args:
        model: A model with preprocessing and class names.
        files: Image files of any size.
        top: Number of classes for each.

    Returns:
        For each file its most probable classes and their probabilities, best first, or
        None where the file is not a valid image.
    """
    answers: list[list[tuple[str, float]] | None] = []
    for start in range(0, len(files), BATCH_SIZE):
        answers += _predict_batch(model, files[start : start + BATCH_SIZE], top)
    return answers


def _predict_batch(model, files, top):
    images = [_read(model, path) for path in files]
    good = [image for image in images if image is not None]
    if not good:
        return [None] * len(files)
    probabilities = model.probabilities(model.predict_on_batch(np.stack(good)))
    best = keras_vit.decode_predictions(probabilities, top, model.class_names)
    answers = iter([(name, score) for _, name, score in row] for row in best)
    return [None if image is None else next(answers) for image in images]


def _read(model, path: Path) -> np.ndarray[Any, Any] | None:
    try:
        image = decoding.load_image(path, model.channels)
    except ValueError as error:
        print(error, file=sys.stderr)
        return None
    return decoding.resize_image(tf.constant(image), model.preprocessing).numpy()


def print_predictions(files, answers) -> None:
    """Print the classes of each valid image."""
    table = Table("image", "class", "probability")
    for path, answer in zip(files, answers, strict=True):
        for rank, (name, probability) in enumerate(answer or ()):
            table.add_row("" if rank else str(path), name, f"{probability:.4f}")
    Console().print(table)
