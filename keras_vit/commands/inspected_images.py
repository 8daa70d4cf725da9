"""Pictures and arrays of what a model has learned, for `keras-vit inspect`."""

import argparse
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import keras_vit.api  # noqa: F401  the whole library, registered with Keras
from keras_vit import decoding
from keras_vit.analysis import figures
from keras_vit.analysis.inspection import (
    Inspection,
    inspect_model,
    preprocessing_of,
)
from keras_vit.base import ImageModel
from keras_vit.common.atomic_files import replacing
from keras_vit.errors import ImageFileError
from keras_vit.opening import open_model
from keras_vit.typing import Array

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")
ARRAYS = "arrays.npz"


def inspect(arguments: argparse.Namespace) -> None:
    """Write one PNG for each property that applies to MODEL, and the numbers.

    Nothing is written before all is computed.
    """
    figures.figure(1, 1)  # report a missing extra before the work, not after
    folder = pathlib.Path(arguments.out)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out must be a folder. Received: {arguments.out!r}")
    files = find_images(arguments.images)
    model = open_model(arguments.model)
    images = read_images(files, model) if files else None
    found = inspect_model(model, images, progress=True)
    for path in _write(folder, found):
        print(path)
    for name, reason in found.missing.items():
        print(f"no {name}.png: {reason}")


def find_images(arguments: Iterable[str]) -> list[pathlib.Path]:
    """Find image files.

    Args:
        arguments: Files, and folders, whose images are found by suffix, in
            sub-folders too.

    Raises:
        ImageFileError: One of them does not exist, or is a folder without images.
    """
    files: list[pathlib.Path] = []
    for argument in arguments:
        path = pathlib.Path(argument)
        inside = sorted(path.rglob("[!.]*")) if path.is_dir() else []
        found = [file for file in inside if file.suffix.lower() in SUFFIXES]
        if path.is_file():
            found = [path]
        if not found:
            raise ImageFileError(f"{argument}: there is no such image file or folder")
        files += found
    return files


def read_images(files: Sequence[pathlib.Path], model: ImageModel) -> Array:
    """Image files as the model sees them, before it normalizes them.

    Returns:
        uint8 [n, H, W, C].

    Raises:
        ImageFileError: A file cannot be read.
        ValueError: The model has neither 1 nor 3 channels.
    """
    policy = preprocessing_of(model)
    images = [decoding.load_image(file, model.channels) for file in files]
    return np.stack([decoding.resize_image(i, policy).numpy() for i in images])


def _write(folder: pathlib.Path, found: Inspection) -> list[pathlib.Path]:
    """Write figures and arrays; each file replaces an old one atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, drawn in found.figures.items():
        paths.append(folder / f"{name}.png")
        with replacing(paths[-1]) as temporary:
            figures.save(drawn, temporary)
    paths.append(folder / ARRAYS)
    with replacing(paths[-1]) as temporary:
        arrays: dict[str, Any] = {**found.arrays}
        np.savez(temporary, **arrays)
    return paths
