"""Read a model from what a user has: a run, a `.keras` file, a checkpoint, a preset."""

import os

from etils import epath

import keras_vit
from keras_vit.base import ImageModel
from keras_vit.classifier_metadata import complete_classifier, reading_raw_pixels
from keras_vit.common.activity import activity
from keras_vit.weights.presets import SCHEMES

from .. import storage
from ..errors import RunError


def read_model(name: epath.PathLike) -> ImageModel:
    """Read a model of keras_vit, as it was saved.

    Args:
        name: What `keras_vit.open_model` takes; a `.keras` file may be in a bucket.

    Raises:
        RunError: There is no such model.
    """
    try:
        if storage.is_remote(name) and not os.fspath(name).startswith(SCHEMES):
            with activity(f"opening {name}"), storage.local_copy(name) as local:
                return keras_vit.open_model(local)
        with activity(f"opening {name}"):
            return keras_vit.open_model(name)
    except (ValueError, TypeError, OSError, KeyError, ImportError) as error:
        message = " ".join(str(error).split())
        named = os.fspath(name) in message
        raise RunError(message if named else f"{name}: {message}") from None


def read_any_model(name: epath.PathLike, pixels: str | None = None) -> ImageModel:
    """Read a model that reads pixels from 0 to 255, with or without a classifier.

    Args:
        name: For `read_model`.
        pixels: `"raw"` or `"normalized"`, for a model that does not state what it
            reads.

    Raises:
        RunError: There is no such model, or what it reads is unknown.
    """
    model = read_model(name)
    try:
        reading: ImageModel = reading_raw_pixels(model, pixels)
        return reading
    except ValueError as error:
        raise RunError(f"{name}: {error}") from None


def read_classifier(
    name: epath.PathLike, class_names: str | None = None, pixels: str | None = None
) -> ImageModel:
    """Read a classifier with class names that reads pixels from 0 to 255.

    Args:
        name: For `read_model`.
        class_names: A text file with one name per line, or names and commas, for a
            model without class names.
        pixels: `"raw"` or `"normalized"`, for a model that does not state what it
            reads.

    Raises:
        RunError: There is no such model, or something is missing; the message says
            which argument supplies it.
    """
    model = read_model(name)
    try:
        classifier: ImageModel = complete_classifier(model, class_names, pixels)
        return classifier
    except ValueError as error:
        raise RunError(f"{name}: {error}") from None
