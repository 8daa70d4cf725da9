"""Class names and preprocessing for models that were saved without them."""

import os
import pathlib

import keras

from keras_vit.base import ImageModel, check_is_ours
from keras_vit.checks import check_choice
from keras_vit.preprocessing import ImagePreprocessing, imagenet_labels

PIXELS = ("raw", "normalized")


def read_class_names(text: str) -> list[str]:
    """Read class names from a file or from the text itself.

    Args:
        text: The path of a text file with one name per line, or names and commas.

    Raises:
        ValueError: It is neither, or the file cannot be read.
    """
    if not os.path.isfile(text):
        names = [name.strip() for name in text.split(",")]
        if len(names) < 2 or not all(names):
            raise ValueError(
                "`class_names` must be a text file with one name per line, or names "
                f"like ant,bee,cat. Received: {text!r}"
            )
        return names
    try:
        lines = pathlib.Path(text).read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"`class_names` must be a text file in UTF-8. Received: {text!r}: {error}"
        ) from None
    return [line.strip() for line in lines if line.strip()]


def check_classifier(model: keras.Model) -> None:
    """Raise ValueError unless it is a model of keras_vit with classes."""
    check_is_ours(model)
    if not model.classes:
        raise ValueError("the model must have a classifier. Received: classes=None")


def name_classes(model: ImageModel, class_names: str | None) -> None:
    """Set a classifier's class names; `None` keeps those of the model.

    Raises:
        ValueError: See `read_names`.
    """
    if class_names is not None:
        model.class_names = read_names(model, class_names)


def read_names(model: ImageModel, class_names: str) -> list[str]:
    """Read a name for each class of a classifier.

    Args:
        model: An `ImageModel` with classes.
        class_names: For `read_class_names`.

    Raises:
        ValueError: Their number is not that of the classes, or see `read_class_names`.
    """
    names = read_class_names(class_names)
    if len(names) != model.classes:
        raise ValueError(
            f"`class_names` must have {model.classes} names, one for each class. "
            f"Received: {len(names)} names"
        )
    return names


def check_pixels(model: ImageModel, pixels: str | None = None) -> None:
    """Check that it is known what a model reads; see `reading_raw_pixels`.

    Raises:
        ValueError: The range is unknown, or contradicts the model's preprocessing.
    """
    if pixels is not None:
        check_choice("pixels", pixels, PIXELS)
    if model.reads_raw_pixels and pixels == "normalized":
        raise ValueError(
            "`pixels` must be 'raw', as the model has preprocessing and normalizes "
            "by itself. Received: pixels='normalized'"
        )
    if pixels is None and model.pixels is None:
        raise ValueError(
            "the model does not state which pixels its backbone reads; say --pixels "
            "raw (0 to 255) or --pixels normalized ([-1, 1]), or build the "
            "ImageClassifier with "
            "preprocessing=keras_vit.ImagePreprocessing(image_size), with mean=0, "
            "std=1 if the backbone reads 0 to 255"
        )


def reading_raw_pixels(model: ImageModel, pixels: str | None = None) -> ImageModel:
    """The same classifier for pixels from 0 to 255, with preprocessing of its own.

    Args:
        pixels: What the model reads where it has no preprocessing: `"raw"`, or
            `"normalized"` by `keras_vit.preprocess_input`; as the model states when
            absent.

    Returns:
        The model itself if it has preprocessing, or one with the same weights.

    Raises:
        ValueError: The range is unknown, or contradicts the model's preprocessing.
    """
    check_pixels(model, pixels)
    if model.reads_raw_pixels:
        return model
    policy = keras.saving.serialize_keras_object(_policy(model, pixels or model.pixels))
    config = {**model.get_config(), "preprocessing": policy}
    if "include_preprocessing" in config:
        config["include_preprocessing"] = True
    twin = type(model).from_config(config)
    twin.set_weights(model.get_weights())
    return twin


def _policy(model: ImageModel, pixels: str | None) -> ImagePreprocessing:
    """The preprocessing from pixels from 0 to 255 to those that the model reads."""
    if pixels == "raw":
        return ImagePreprocessing(model.image_size, mean=0.0, std=1.0)
    backbone = getattr(model, "backbone", None)
    own = model.preprocessing or getattr(backbone, "preprocessing", None)
    return own or ImagePreprocessing(model.image_size)


def complete_classifier(
    model: ImageModel, class_names: str | None = None, pixels: str | None = None
) -> ImageModel:
    """A classifier with preprocessing and class names, whatever it was saved with.

    Args:
        class_names: For `read_class_names`. Without, the model's own, or ImageNet's for
            1,000 classes.

    Returns:
        An `ImageModel` that reads pixels from 0 to 255.

    Raises:
        ValueError: What is missing, and the flag or argument that supplies it.
    """
    check_classifier(model)
    name_classes(model, class_names)
    if model.class_names is None and model.classes == len(imagenet_labels()):
        model.class_names = [name for _, name in imagenet_labels()]
    if model.class_names is None:
        raise ValueError(
            f"the model has no names for its {model.classes} classes; give them by "
            "--class_names FILE (one per line) or --class_names a,b,c, or build the "
            "model with class_names=[...]"
        )
    return reading_raw_pixels(model, pixels)
