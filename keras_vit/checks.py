"""Checks of arguments: each raises an error that names what was wanted and received."""

import inspect
import numbers
from collections.abc import Mapping, Sequence

from keras_vit.common.similar_names import did_you_mean
from keras_vit.typing import Shape, StrPath


def check_count(name: str, value: object) -> None:
    """Raise ValueError unless the value is an integer of at least 1."""
    if not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(
            f"`{name}` must be an integer of at least 1. Received: {name}={value!r}"
        )


def check_rate(name: str, value: float) -> None:
    """Raise ValueError unless the value is in [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"`{name}` must be in [0, 1). Received: {name}={value}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise ValueError for an unknown value."""
    if value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(repr, choices))}. "
            f"Received: {name}={value!r}"
        )


def check_argument_names(cls: type, arguments: Mapping[str, object]) -> None:
    """Raise TypeError for an argument that a class's constructor does not have."""
    parameters = inspect.signature(cls).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for name, value in arguments.items():
        if name not in parameters:
            meant = did_you_mean(name, parameters, most=2)
            raise TypeError(
                f"`{name}` must be an argument of {cls.__name__}.{meant} "
                f"Received: {name}={value!r}"
            )


def check_model_file(path: StrPath) -> None:
    """Raise ValueError for a name of Keras's old format, which cannot be opened."""
    if str(path).endswith((".h5", ".hdf5")):
        raise ValueError(
            "`filepath` must end in .keras, for the whole model; for its weights alone "
            f"there is save_weights('NAME.weights.h5'). Received: filepath={path!r}"
        )


def check_image_shape(images: object, wanted: Shape) -> None:
    """Raise ValueError unless images have the shape that a model reads.

    Args:
        images: An array, a tensor or a `tf.data.Dataset` of such; whatever else Keras
            takes is not checked.
        wanted: The model's `input_shape`, (None, H, W, C).
    """
    spec = getattr(images, "element_spec", images)
    shape = getattr(spec[0] if isinstance(spec, tuple) and spec else spec, "shape", ())
    try:
        found = tuple(shape)
    except ValueError:  # a TensorShape of unknown rank
        return
    fits = len(found) == len(wanted) and all(
        None in sides or sides[0] == sides[1]
        for sides in zip(found, wanted, strict=True)
    )
    if found and not fits:
        raise ValueError(
            f"`images` must be a batch [B, {', '.join(map(str, wanted[1:]))}]: one "
            "image becomes one as images[None], a data set of images by batch(32); "
            "keras_vit.with_image_size makes the same model for another size. "
            f"Received: images of shape {found}"
        )
