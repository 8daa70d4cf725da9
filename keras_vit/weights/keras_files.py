"""Models in Keras's own files: `.keras`, and the older HDF5."""

import contextlib
import io
import pathlib
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import keras

from keras_vit.weights.checkpoint import family_of
from keras_vit.weights.config import check_held
from keras_vit.weights.reading import (
    LARGEST_JSON,
    MODEL_CONFIG,
    hdf5_arrays,
    hdf5_config,
    parse_json,
)
from keras_vit.weights.stored_arrays import (
    StoredArray,
    check_announced,
    refuse,
    refusing,
)

OURS = {"VisionTransformer", "ResNet", "ImageClassifier"}
CONFIG, WEIGHTS = "config.json", "model.weights.h5"


def is_keras_file(path: pathlib.Path) -> bool:
    """Whether Keras opens it: a `.keras` file, or one of HDF5 with a config.

    A whole model of a project whose checkpoints are read is a checkpoint here.
    """
    if path.suffix not in (".h5", ".hdf5") or not h5py.is_hdf5(path):
        return path.suffix == ".keras"
    with refusing(path), contextlib.ExitStack() as stack:
        is_model = bool(hdf5_config(path))
        return is_model and family_of(hdf5_arrays(path, stack)) is None


def load_keras_file(path: pathlib.Path) -> keras.Model:
    """Load a model without its optimizer.

    Keras refuses files that would run code. Before it reads the file, what the config
    says of our models is compared with the weights beside it: Keras would take the
    memory first. Other layers, as of the backbone of an `ImageClassifier`, are not.

    Args:
        path: A `.keras` file, or one of HDF5 that holds a whole model.

    Raises:
        WeightsFileError: The file is damaged, announces more than it holds, or takes
            something from another file.
        ValueError, TypeError, OSError, KeyError: Keras cannot read it.
    """
    with refusing(path), contextlib.ExitStack() as stack:
        read = _read_archive if zipfile.is_zipfile(path) else _read_hdf5
        config, arrays = read(path, stack)
        for arguments in _arguments_of_ours(config):
            check_held(path, arguments, len(arrays), arrays)
    return keras.models.load_model(path, compile=False)


def _read_archive(
    path: pathlib.Path, stack: contextlib.ExitStack
) -> tuple[dict[str, Any], dict[str, StoredArray]]:
    archive = stack.enter_context(zipfile.ZipFile(path))
    members = archive.infolist()
    check_announced(path, path.stat().st_size, sum(each.file_size for each in members))
    if not {CONFIG, WEIGHTS} <= set(archive.namelist()):
        problem = f"a ZIP archive without {CONFIG} and {WEIGHTS}"
        refuse(path, problem, "a .keras file, which Keras has written")
    with archive.open(CONFIG) as file:
        config = parse_json(file.read(LARGEST_JSON + 1))
    return config, hdf5_arrays(path, stack, io.BytesIO(archive.read(WEIGHTS)))


def _read_hdf5(
    path: pathlib.Path, stack: contextlib.ExitStack
) -> tuple[dict[str, Any], dict[str, StoredArray]]:
    arrays = hdf5_arrays(path, stack)
    config = hdf5_config(path).get(MODEL_CONFIG, "{}")
    return parse_json(config.encode()), arrays


def _arguments_of_ours(config: Any) -> Iterator[Mapping[str, Any]]:
    """Arguments of each model in a config whose class is one of ours."""
    left = [config]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left.extend(value.values())
            names = (value.get("class_name"), value.get("registered_name"))
            if any(str(name).rpartition(">")[2] in OURS for name in names):
                yield value["config"]
        elif isinstance(value, list):
            left.extend(value)
