"""The source folder:PATH: image files in class folders, on a disk or in a bucket."""

import dataclasses
import functools
import sys
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from etils.epath import PathLike

from keras_vit import decoding
from keras_vit.typing import Array

from ..errors import DataError
from .class_folders import (
    listed,
    no_images,
    open_class_folders,
    raise_problems,
    unreadable,
)
from .image_index import ImageIndex
from .image_listing import ImageFile
from .labeled_images import Source, Split, encoded_split, host_constant, python_bytes


def open_folder(
    root: PathLike, channels: int = 3, on_bad_image: str = "error"
) -> Source:
    """Open class folders of image files; see `class_folders`.

    Their headers are checked. With `on_bad_image="skip"` all images are decoded once,
    since those that are left out must be known before the first step. What is found is
    cached; see `image_index`.
    """
    folders = open_class_folders(root, on_bad_image)
    if folders.passed_over:
        print(
            f"folder:{root}: {len(folders.passed_over)} files are passed over, as they "
            f"are not images in class folders: {listed(folders.passed_over)}",
            file=sys.stderr,
        )
    every = [f for part in folders.images.values() for each in part for f in each]
    decode = functools.partial(decoding.load_image, channels=channels)
    index = ImageIndex.of_files(root, every, decode, on_bad_image == "skip")
    if on_bad_image == "error":
        raise_problems(root, unreadable(index.problems, len(every)))
    names = folders.class_names
    images = {
        part: [
            [file.path for file in each if file.path not in index.problems]
            for each in classes
        ]
        for part, classes in folders.images.items()
    }
    raise_problems(
        root, [p for part in images for p in no_images(part, names, images[part])]
    )
    parts: dict[str, Split] = {}
    for part, classes in images.items():
        paths = [path for each in classes for path in each]
        labels = np.repeat(np.arange(len(names)), [len(each) for each in classes])
        origin = f"folder:{root}"
        parts[part] = _read_split(origin, paths, labels, len(names), channels, index)
    bad = tuple(index.problems.values())
    return Source.with_own_parts(names, parts, bad, ordered=True)


def split_of_files(
    origin: str,
    root: PathLike,
    files: Sequence[ImageFile],
    labels: Array,
    classes: int,
    channels: int,
) -> Split:
    """Make a split of the image files in a folder, whose headers are checked.

    Raises:
        DataError: There are none, or some cannot be read.
    """
    decode = functools.partial(decoding.load_image, channels=channels)
    index = ImageIndex.of_files(root, files, decode)
    if index.problems:
        raise DataError(
            f"{origin}: {len(index.problems)} of {len(files)} images cannot be read: "
            f"{listed(index.problems.values(), '; ')}"
        )
    paths = [file.path for file in files]
    return _read_split(origin, paths, labels, classes, channels, index)


def _read_split(
    origin: str,
    paths: Sequence[str],
    labels: Array,
    classes: int,
    channels: int,
    index: ImageIndex,
) -> Split:
    names = host_constant(paths, tf.string)
    split = encoded_split(
        origin,
        lambda number: _contents(names[number]),
        labels,
        classes,
        paths,
        channels,
    )
    return dataclasses.replace(split, digests=index.digests_of(paths))


def _contents(path: tf.Tensor) -> tf.Tensor:
    """A file's contents; of a TIFF file, whatever its name, as PNG."""
    contents = tf.io.read_file(path)
    start = tf.strings.substr(contents, 0, 4)
    return tf.cond(
        tf.reduce_any(start == tf.constant(decoding.TIFF_SIGNATURES)),
        lambda: python_bytes(decoding.tiff_to_png, contents),
        lambda: contents,
    )
