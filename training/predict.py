"""Prediction: classify image files with a trained model."""

import csv
import glob
import io
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table

import keras_vit
from keras_vit import decoding

from . import storage
from .data.folder import is_system_file
from .errors import DataError, RecipeError
from .reporting.attention import attention_maps, heat_map

BATCH_SIZE = 64
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")
TABLES = (".csv", ".json")
SIDE = 448  # pixels; smaller images are enlarged to it in pictures of attention


class Prediction(NamedTuple):
    """What a model says of an image file.

    Args:
        file: The file.
        classes: The most probable classes and their probabilities, best first.
        error: Why the file is not a valid image; None where it is.
    """

    file: Path
    classes: list[tuple[str, float]]
    error: str | None = None


def find_images(arguments: Iterable[str]) -> list[Path]:
    """Find image files.

    Args:
        arguments: Files, folders (their images, by suffix, in sub-folders too, without
            hidden files), patterns such as `photos/*.jpg`, and `-` for a list of these
            on standard input, one in a line.

    Returns:
        The files of each argument, sorted.

    Raises:
        DataError: There are none for one of the arguments.
    """
    files: list[Path] = []
    for argument in arguments:
        if argument == "-":
            found = find_images(line for line in sys.stdin.read().splitlines() if line)
        else:
            found = _matching(argument)
        if not found:
            raise DataError(
                f"{argument}: there is no such image file, folder or pattern"
            )
        files += found
    return files


def _matching(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        return sorted(
            file
            for file in path.rglob("*")
            if file.suffix.lower() in SUFFIXES
            and file.is_file()
            and not any(map(is_system_file, file.relative_to(path).parts))
        )
    if path.is_file():
        return [path]
    found = map(Path, glob.glob(pattern, recursive=True))
    return sorted(path for path in found if path.is_file())


def predict(
    model: keras.Model,
    files: Sequence[Path],
    top: int = 1,
    attention: Path | None = None,
) -> list[Prediction]:
    """Classify image files; long work shows its progress on stderr.

    Args:
        model: A model with preprocessing and class names.
        files: Image files of any size.
        top: Number of classes for each.
        attention: A folder for pictures of each image beside its attention map.

    Raises:
        RecipeError: Attention is wanted of a model without attention between all
            patches.
    """
    if attention is not None and getattr(model, "attention", None) != "full":
        raise RecipeError(
            "--attention: needs a VisionTransformer with attention='full'. Received: "
            f"{type(model).__name__} {model.name}"
        )
    starts = range(0, len(files), BATCH_SIZE)
    console = Console(stderr=True)
    hidden = len(starts) < 3 or not console.is_terminal
    predictions: list[Prediction] = []
    names = picture_names(files)
    for start in track(starts, "Images", console=console, disable=hidden):
        part = slice(start, start + BATCH_SIZE)
        found, images = _predict_batch(model, files[part], top)
        predictions += found
        if attention is not None and images:
            good = [n for n, p in zip(names[part], found, strict=True) if not p.error]
            _draw_attention(model, images, [attention / name for name in good])
    return predictions


def _predict_batch(
    model: keras.Model, files: Sequence[Path], top: int
) -> tuple[list[Prediction], list[np.ndarray[Any, Any]]]:
    """The predictions, and the images among the files as the model sees them."""
    read = [_read(model, path) for path in files]
    images = [image for image in read if not isinstance(image, str)]
    best: list[list[tuple[str, str, float]]] = []
    if images:
        probabilities = model.probabilities(model.predict_on_batch(np.stack(images)))
        best = keras_vit.decode_predictions(probabilities, top, model.class_names)
    rows = iter([(name, score) for _, name, score in row] for row in best)
    predictions = [
        Prediction(file, [], image)
        if isinstance(image, str)
        else Prediction(file, next(rows))
        for file, image in zip(files, read, strict=True)
    ]
    return predictions, images


def _read(model: keras.Model, path: Path) -> np.ndarray[Any, Any] | str:
    """The image as the model sees it, or why there is none."""
    try:
        image = decoding.load_image(path, model.channels)
    except ValueError as error:
        return str(error)
    return decoding.resize_image(tf.constant(image), model.preprocessing).numpy()


def picture_names(files: Iterable[Path]) -> list[str]:
    """A name for the picture of each image: `cat.png`, `cat-2.png` for a second cat."""
    names: dict[str, None] = {}
    for file in files:
        name, number = f"{file.stem}.png", 2
        while name in names:
            name, number = f"{file.stem}-{number}.png", number + 1
        names[name] = None
    return list(names)


def _draw_attention(
    model: keras.Model, images: list[np.ndarray[Any, Any]], paths: Sequence[Path]
) -> None:
    """Write each image, and beside it its attention rollout over the image."""
    maps = attention_maps(model, np.stack(images))
    assert maps is not None
    for image, weights, path in zip(images, maps, paths, strict=True):
        factor = max(1, SIDE // max(image.shape[:2]))
        large = np.broadcast_to(image, (*image.shape[:2], 3)).repeat(factor, 0)
        large = large.repeat(factor, 1)  # the pixels that the model got stay visible
        gray = large.mean(axis=-1, keepdims=True)
        heat = heat_map(weights, large.shape[:2])
        over = (0.4 * gray + 0.6 * heat).round().astype("uint8")
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage.atomic_write(path) as local:
            Image.fromarray(np.hstack([large, over])).save(local, "png")


def check_table(path: Path) -> None:
    """Raise RecipeError unless `write_table` can write a file of this name."""
    if path.suffix.lower() not in TABLES:
        raise RecipeError(f"--out: must end in .csv or .json. Received: {path}")


def write_table(path: Path, predictions: Sequence[Prediction]) -> None:
    """Write predictions as CSV, with a row for each class, or as JSON.

    Args:
        path: The file; its suffix is .csv or .json.
        predictions: Of `predict`.
    """
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


def print_predictions(predictions: Sequence[Prediction]) -> None:
    """Print the classes of each valid image."""
    table = Table("image", "class", "probability")
    for file, classes, _ in predictions:
        for rank, (name, probability) in enumerate(classes):
            table.add_row("" if rank else str(file), name, f"{probability:.4f}")
    Console().print(table)
