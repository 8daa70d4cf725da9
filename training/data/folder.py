"""The source folder:PATH: image files in class folders, on a disk or in a bucket."""

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from etils.epath import Path, PathLike

from keras_vit import decoding

from ..errors import DataError
from .class_folders import (
    listed,
    no_images,
    open_class_folders,
    raise_problems,
    scan,
    unreadable,
)
from .labeled_images import Source, Split, encoded_split, python_bytes


def open_folder(
    root: PathLike, channels: int = 3, on_bad_image: str = "error"
) -> Source:
    """Open class folders of image files; see `class_folders`.

    All are decoded once, to find invalid ones before the training and not in the middle
    of it.
    """
    folders = open_class_folders(root, on_bad_image)
    if folders.passed_over:
        print(
            f"folder:{root}: {len(folders.passed_over)} files are passed over, as they "
            "are not images in class folders: "
            f"{listed(map(str, folders.passed_over))}",
            file=sys.stderr,
        )
    every = [f for part in folders.images.values() for each in part for f in each]
    reasons = scan(every, functools.partial(decoding.load_image, channels=channels))
    if on_bad_image == "error":
        raise_problems(root, unreadable(reasons, len(every)))
    names = folders.class_names
    images = {
        part: [[file for file in each if file not in reasons] for each in classes]
        for part, classes in folders.images.items()
    }
    raise_problems(
        root, [p for part in images for p in no_images(part, names, images[part])]
    )
    parts: dict[str, Split] = {}
    for part, classes in images.items():
        files = [file for each in classes for file in each]
        labels = np.repeat(np.arange(len(names)), [len(each) for each in classes])
        origin = f"folder:{root}"
        parts[part] = _read_split(origin, files, labels, len(names), channels)
    bad = tuple(reasons.values())
    return Source.with_own_parts(names, parts, bad, ordered=True)


def split_of_files(
    origin: str,
    files: Sequence[Path],
    labels: np.ndarray[Any, Any],
    classes: int,
    channels: int,
) -> Split:
    """Make a split of image files, which are all decoded once.

    Raises:
        DataError: There are none, or some cannot be read.
    """
    reasons = scan(files, functools.partial(decoding.load_image, channels=channels))
    if reasons:
        raise DataError(
            f"{origin}: {len(reasons)} of {len(files)} images cannot be read: "
            f"{listed(reasons.values(), '; ')}"
        )
    return _read_split(origin, files, labels, classes, channels)


def _read_split(
    origin: str,
    files: Sequence[Path],
    labels: np.ndarray[Any, Any],
    classes: int,
    channels: int,
) -> Split:
    names = [str(path) for path in files]
    paths = tf.constant(names, tf.string)
    return encoded_split(
        origin,
        lambda index: _contents(paths[index]),
        labels,
        classes,
        names,
        channels,
    )


def _contents(path: tf.Tensor) -> tf.Tensor:
    """A file's contents; of a TIFF file, whatever its name, as PNG."""
    contents = tf.io.read_file(path)
    start = tf.strings.substr(contents, 0, 4)
    return tf.cond(
        tf.reduce_any(start == tf.constant(decoding.TIFF_SIGNATURES)),
        lambda: python_bytes(decoding.tiff_to_png, contents),
        lambda: contents,
    )
