"""Read a model back from a served version, which `keras-vit export` wrote."""

import hashlib
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import TypeAlias

import keras
import numpy as np

from keras_vit.base import ImageModel
from keras_vit.common.file_names import MANIFEST, SAVED_MODEL, VARIABLES
from keras_vit.errors import WeightsFileError
from keras_vit.preprocessing import ImagePreprocessing
from keras_vit.typing import Config
from keras_vit.weights.loading import assign, fresh_copy

Models: TypeAlias = Mapping[str, Callable[..., ImageModel]]  # by their names


def is_version(path: pathlib.Path) -> bool:
    """Whether a folder holds a SavedModel with the manifest of `keras-vit export`."""
    return (path / SAVED_MODEL).is_file() and (path / MANIFEST).is_file()


def open_version(folder: pathlib.Path, classes: Models) -> ImageModel:
    """Build the model that a version was exported from, with the version's weights.

    They are those of the SavedModel: rounded where it was exported in bfloat16, and
    standardized where a convolution standardizes its own.

    Args:
        folder: The version.
        classes: The models that can be built, by the names of their classes.

    Raises:
        WeightsFileError: The version is damaged, or of another model.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        model = _build(manifest, classes)
        _check_bytes(folder, manifest["files"])
        _load(model, folder)
    except WeightsFileError as error:
        raise WeightsFileError(f"{error} Received: {str(folder)!r}") from None
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise WeightsFileError(
            "`path` must be a whole version of a served model. Received: "
            f"{str(folder)!r} ({type(error).__name__}: {error})"
        ) from error
    return model


def _build(manifest: Config, classes: Models) -> ImageModel:
    described = manifest["model"]
    if described["class"] not in classes:
        raise WeightsFileError(
            f"A version must be of a {' or '.join(classes)} to be opened, not of a "
            f"{described['class']}: open the file that it was exported from."
        )
    config = {name: v for name, v in described["config"].items() if name != "trainable"}
    if "preprocessing" not in config:  # the manifest has it apart
        policy = ImagePreprocessing.from_config(manifest["preprocessing"])
        config["preprocessing"] = policy
    config.setdefault("class_names", manifest["labels"]["names"])
    return classes[described["class"]](**config, dtype=described["dtype_policy"])


def _check_bytes(folder: pathlib.Path, files: Config) -> None:
    """Compare the files of the weights with the manifest's checksums."""
    names = [name for name in files if name.startswith(VARIABLES.parts[0])]
    for name in names:
        with (folder / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != files[name]["sha256"]:
            raise WeightsFileError(
                f"{name} must have the sha256 that the manifest states."
            )
    if not names:
        raise WeightsFileError(
            "A version must be a SavedModel with variables; ONNX and LiteRT files are "
            "not opened."
        )


def _load(model: keras.Model, folder: pathlib.Path) -> None:
    """Assign the SavedModel's variables, which are in the order of the weights."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(folder / VARIABLES))
    found = reader.get_variable_to_shape_map()
    names = [
        f"variables_/{index}/.ATTRIBUTES/VARIABLE_VALUE"
        for index in range(len(model.weights))
    ]
    for name, weight in zip(names, model.weights, strict=True):
        if found.get(name) != list(weight.shape):
            raise WeightsFileError(
                f"Its variables must be the weights of its manifest's model: "
                f"{weight.path} is {tuple(weight.shape)}, not {found.get(name)}."
            )
    for name, weight in zip(names, model.weights, strict=True):
        assign(weight, fresh_copy(np.asarray(reader.get_tensor(name)), weight.dtype))
