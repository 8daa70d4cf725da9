"""The source python:MODULE:FUNCTION: a user's own tf.data.Datasets.

The tasks of `vtab` and `digit_tasks` are such functions too.
"""

from collections.abc import Callable, Sequence
from typing import NotRequired, TypedDict

import numpy as np
import tensorflow as tf

from ..errors import DataError
from ..user_functions import find_function
from .labeled_images import Source, Split, encoded_split
from .read_errors import read_errors
from .tfds import MEMORY_LIMIT

PARTS = ("train", "validation", "test")


class Datasets(TypedDict):
    """What a function returns: images by part, in the same order every time.

    Each is a dataset of pairs of an image (uint8 [h, w, 1 or 3], or the contents of an
    image file as a string) and an integer label.
    """

    class_names: Sequence[str]
    train: tf.data.Dataset
    validation: NotRequired[tf.data.Dataset]
    test: NotRequired[tf.data.Dataset]


def open_python(name: str, channels: int = 3) -> Source:
    """Call a user's function, MODULE:FUNCTION, and read its datasets.

    Raises:
        DataError: There is no such function, or it returns something else.
    """
    try:
        function = find_function(name)
    except ValueError as error:
        raise DataError(f"python:{name}: {error}") from None
    return open_function(f"python:{name}", function, channels)


def open_function(
    origin: str, function: Callable[[], object], channels: int = 3
) -> Source:
    """Read what a function returns into memory, as encoded images.

    Args:
        origin: Its name in messages.
        function: Takes no arguments, and returns `Datasets`, as it ought to.
        channels: 1 for gray images, 3 for RGB.

    Raises:
        DataError: It fails, or returns something else.
    """
    try:
        returned = function()
    except DataError:
        raise
    except Exception as error:  # whatever a user's function may raise
        raise _failed(origin, error) from error
    if (
        not isinstance(returned, dict)
        or not (names := returned.get("class_names"))
        or not isinstance(returned.get("train"), tf.data.Dataset)
    ):
        raise DataError(
            f"{origin}: must return a dictionary with `class_names` and `train`, "
            f"a tf.data.Dataset. Received: {_described(returned)}"
        )
    if unknown := set(returned) - {"class_names", *PARTS}:
        raise DataError(
            f"{origin}: must return class_names, {', '.join(PARTS)}. "
            f"Received: {', '.join(sorted(map(str, unknown)))}"
        )
    class_names = tuple(map(str, names))
    parts = {
        part: _read(f"{origin}: {part}", returned[part], len(names), channels)
        for part in PARTS
        if part in returned
    }
    return Source.with_own_parts(class_names, parts)


def _failed(origin: str, error: Exception) -> DataError:
    line = str(error).strip().split("\n")[0]
    return DataError(f"{origin}: {type(error).__name__}: {line}")


def _described(returned: object) -> str:
    if not isinstance(returned, dict):
        return type(returned).__name__
    return str({key: type(value).__name__ for key, value in returned.items()})


def _read(origin: str, dataset: tf.data.Dataset, classes: int, channels: int) -> Split:
    """Read one dataset into memory as encoded images."""
    encode = _encoder(origin, dataset)
    pairs = dataset.map(
        lambda image, label: (encode(image), tf.cast(label, tf.int64)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    contents, labels, size = [], [], 0
    if pairs.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise DataError(f"{origin}: must be a finite dataset. Received: {dataset}")
    with read_errors(origin=origin):
        for image, label in pairs.as_numpy_iterator():
            contents.append(image)
            labels.append(label)
            size += len(image)
            if size > MEMORY_LIMIT:
                raise DataError(
                    f"{origin}: must be at most {MEMORY_LIMIT:,} bytes of encoded "
                    "images, which are kept in memory. "
                    f"Received: more, after {len(labels)} images"
                )
    files = tf.constant(contents, tf.string)
    return encoded_split(
        origin,
        lambda index: files[index],
        np.array(labels, np.int64),
        classes,
        [f"{origin} {index}" for index in range(len(labels))],
        channels,
    )


def _encoder(origin: str, dataset: tf.data.Dataset) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function that encodes the dataset's images losslessly."""
    encode: Callable[[tf.Tensor], tf.Tensor]
    spec = getattr(dataset, "element_spec", None)
    if isinstance(spec, tuple) and len(spec) == 2:
        image, label = spec
        if label.dtype.is_integer and label.shape.rank == 0:
            if image.dtype == tf.string and image.shape.rank == 0:
                encode = tf.identity
                return encode
            if (
                image.dtype == tf.uint8
                and image.shape.rank == 3
                and image.shape[-1] in (1, 3)
            ):
                encode = tf.io.encode_png
                return encode
    raise DataError(
        f"{origin}: must be a tf.data.Dataset of pairs of an image (uint8 [h, w, 1 or "
        f"3], or a string) and an integer, unbatched. Received: {spec}"
    )
