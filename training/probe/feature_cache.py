"""Features on the disk: computed once for a model and images, and memory-mapped.

A folder has NAME.npy, float32 [n, D], for each model and split. NAME is a hash of the
model's weights and configuration and of the images. While it is computed, complete
chunks of it are in .unfinished-NAME/; an interrupted computation continues after the
last one.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

import keras_vit
from keras_vit.base import ImageModel
from keras_vit.common.atomic_files import UNFINISHED, rename
from keras_vit.typing import Array

from .. import storage
from ..data.labeled_images import Split
from ..data.pipeline import images_at
from ..engine.data_fingerprint import weights_fingerprint
from ..engine.forward_pass import preprocessing_of
from ..errors import RunError
from .features import FeatureExtractor

CHUNK = 8192  # images between two writes
SAMPLED = 16  # images whose pixels are a part of the hash
# What of a model's configuration does not change its features.
OF_THE_CLASSIFIER = (
    *("name", "classes", "class_names", "head_bias_init"),
    *("classifier_activation", "trainable", "frozen_layers", "trainable_layers"),
)


def default_folder() -> Path:
    """The folder of features, beside that of downloaded weights."""
    home = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    return home / "keras_vit" / "features"


def cached_features(
    extractor: FeatureExtractor, split: Split, folder: Path | None, title: str = ""
) -> Array:
    """The features of all images of a split, from the cache where they are there.

    Without a folder, which is on a disk, they are computed in memory.

    Returns:
        float32 [n, D], memory-mapped where there is a cache.

    Raises:
        RunError: The folder cannot be written.
    """
    if folder is None:
        return np.concatenate(list(_with_progress(extractor, split, 0, title)))
    path = folder / f"{features_name(extractor.model, split)}.npy"
    shape = (len(split), extractor.width)
    if (found := _open(path, shape)) is not None:
        return found
    unfinished = path.with_name(UNFINISHED + path.stem)
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        _compute(extractor, split, unfinished, title)
        _join(unfinished, path, shape)
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be written: {error.strerror or error}; KERAS_HOME names "
            "another folder, and so does --cache of `keras-vit probe`"
        ) from None
    shutil.rmtree(unfinished, ignore_errors=True)
    stored: Array = np.load(path, mmap_mode="r")
    return stored


def _open(path: Path, shape: tuple[int, int]) -> Array | None:
    """The array of a file, memory-mapped; None where it is missing or damaged."""
    try:
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return None
    return array if (array.shape, array.dtype) == (shape, np.float32) else None


def _compute(
    extractor: FeatureExtractor, split: Split, folder: Path, title: str
) -> None:
    """Write the chunks that a folder does not have yet."""
    done = 0
    while (
        _open(_chunk_file(folder, done), _chunk_shape(extractor, split, done))
        is not None
    ):
        done += 1
    buffer: list[Array] = []
    for batch in _with_progress(extractor, split, done * CHUNK, title):
        buffer.append(batch)
        if sum(map(len, buffer)) >= CHUNK:
            rows = np.concatenate(buffer)
            _write(_chunk_file(folder, done), rows[:CHUNK])
            buffer, done = [rows[CHUNK:]], done + 1
    rest = np.concatenate(buffer) if buffer else np.empty((0, extractor.width))
    if len(rest):
        _write(_chunk_file(folder, done), rest)


def _chunk_file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.npy"


def _chunk_shape(
    extractor: FeatureExtractor, split: Split, number: int
) -> tuple[int, int]:
    left = max(len(split) - number * CHUNK, 0)
    return min(left, CHUNK), extractor.width


def _write(path: Path, rows: Array) -> None:
    with storage.atomic_write(path) as local:
        np.save(local, rows)


def _join(folder: Path, path: Path, shape: tuple[int, int]) -> None:
    """Write the chunks of a folder as one file."""
    with storage.atomic_write(folder / path.name) as local:
        whole = np.lib.format.open_memmap(local, "w+", "float32", shape)
        for number, first in enumerate(range(0, len(whole), CHUNK)):
            whole[first : first + CHUNK] = np.load(_chunk_file(folder, number))
        whole.flush()
    rename(folder / path.name, path)


def _with_progress(
    extractor: FeatureExtractor, split: Split, first: int, title: str
) -> Iterator[Array]:
    """The batches of features from an image on; progress goes to standard error."""
    left = np.arange(first, len(split))
    if not len(left):
        return
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        task = progress.add_task(title, total=len(split), completed=first)
        for batch in extractor.batches(split.subset(left) if first else split):
            progress.advance(task, len(batch))
            yield batch


def features_name(model: ImageModel, split: Split) -> str:
    """A hash of a model's weights and configuration and of images: 32 characters.

    The images count by their names, labels, preprocessing, where they are files by
    size and time of modification, and by the pixels of a few of them.
    """
    digest = hashlib.sha256()
    config = model.get_config()
    kept = {key: config[key] for key in config if key not in OF_THE_CLASSIFIER}
    # Keras numbers the layers of a process.
    preprocessing = preprocessing_of(model)
    kept["preprocessing"] = {**preprocessing.get_config(), "name": None}
    versions = [keras_vit.__version__, keras.backend.backend()]
    digest.update(json.dumps([versions, kept], sort_keys=True, default=str).encode())
    digest.update(weights_fingerprint(model).encode())
    digest.update(np.asarray(split.labels, np.int64).tobytes())
    for name in split.names:
        digest.update(f"{name}\0{_file_state(name)}\0".encode())
    sampled = np.unique(np.linspace(0, len(split) - 1, SAMPLED).astype(int))
    for image in images_at(split, sampled.tolist(), preprocessing):
        digest.update(image.tobytes())
    return digest.hexdigest()[:32]


def _file_state(name: str) -> str:
    """Size and time of modification of an image's file; empty where it has none."""
    try:
        state = os.stat(name)
    except (OSError, ValueError):
        return ""
    return f"{state.st_size} {state.st_mtime_ns}"
