"""Labeled images with random access, and the sources that provide them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import decoding
from keras_vit.typing import Array

from ..errors import DataError


def host_constant(values: Any, dtype: tf.DType | None = None) -> tf.Tensor:
    """A tensor in the host's memory, where input pipelines read it.

    `tf.constant` alone takes the first GPU's: up to `pipeline.CACHE_LIMIT` of images.
    """
    with tf.device("CPU:0"):
        return tf.constant(values, dtype)


@dataclass(frozen=True)
class Split:
    """Labeled images with random access."""

    labels: Array  # int64 [n], the class of each image
    classes: int
    # From an image's index, a scalar int64 tensor, to the image, uint8 [h, w, C];
    # usable in a `tf.data` pipeline.
    read: Callable[[tf.Tensor], tf.Tensor]
    names: Sequence[str]  # [n], one for each image
    # From an image's index to the contents of its file, a scalar string tensor; None
    # where there are only pixels.
    encoded: Callable[[tf.Tensor], tf.Tensor] | None = None
    channels: int = 3  # C, 1 for gray or 3 for RGB
    fitted: bool = False  # whether resized and cropped to the model's size already
    # Whether there are features in place of images, of which `read` takes many indices
    # at once: [b] to float32 [b, D].
    of_features: bool = False
    # uint8 [n, 16], by which other contents are noticed; see `image_index`.
    digests: Array | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def read_part(
        self, index: tf.Tensor, choose_window: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        """Read a part of an image, uint8 [h, w, C]; see `decoding.decode_and_crop`."""
        if self.encoded is not None:
            contents = self.encoded(index)
            return decoding.decode_and_crop(contents, choose_window, self.channels)
        image = self.read(index)
        top, left, height, width = tf.unstack(choose_window(tf.shape(image)))
        return tf.slice(image, [top, left, 0], [height, width, image.shape[-1]])

    def subset(self, indices: Array) -> "Split":
        """The images of these indices, in this order."""
        chosen = host_constant(indices, tf.int64)
        encoded = self.encoded
        return dataclasses.replace(
            self,
            labels=self.labels[indices],
            read=lambda index: self.read(chosen[index]),
            names=[self.names[index] for index in indices],
            encoded=encoded and (lambda index: encoded(chosen[index])),
            digests=None if self.digests is None else self.digests[indices],
        )

    def with_pixels(self, images: Array) -> "Split":
        """The same examples with images in the model's size: uint8 [n, H, W, C]."""
        pixels = host_constant(images)
        return dataclasses.replace(
            self, read=lambda index: pixels[index], encoded=None, fitted=True
        )

    def with_features(self, features: Array) -> "Split":
        """The same examples with what a model computed of each: float32 [n, D]."""
        rows = host_constant(features)
        return dataclasses.replace(
            self,
            read=lambda indices: tf.gather(rows, indices),
            encoded=None,
            fitted=True,
            of_features=True,
        )


def encoded_split(
    origin: str,
    encoded: Callable[[tf.Tensor], tf.Tensor],
    labels: Array,
    classes: int,
    names: Sequence[str],
    channels: int,
) -> Split:
    """Make a split of encoded images.

    Raises:
        DataError: There are no images, or a label is out of range.
    """
    if not len(labels):
        raise DataError(f"{origin}: there are no images")
    if (wrong := (labels < 0) | (labels >= classes)).any():
        raise DataError(
            f"{origin}: labels must be from 0 to {classes - 1}, as there are {classes} "
            f"classes. Received: {labels[wrong][0]} for {names[int(wrong.argmax())]}"
        )
    return Split(
        labels.astype(np.int64),
        classes,
        lambda index: decoding.decode_image(encoded(index), channels),
        names,
        encoded,
        channels,
    )


def python_bytes(function: Callable[[Any], bytes], argument: tf.Tensor) -> tf.Tensor:
    """Call a Python function that returns bytes, in a pipeline or outside.

    It gets the value of a scalar tensor: bytes for a string, an integer.

    Returns:
        Scalar string tensor with all the bytes: `tf.numpy_function` alone drops the
        zeros at their end, which BMP and WebP files may have.
    """

    def call(value: Any) -> Array:
        # In a graph the value is bytes or a NumPy scalar, outside of it an array.
        value = np.asarray(value, object if isinstance(value, bytes) else None).item()
        return np.array(function(value), object)

    contents = tf.numpy_function(call, [argument], tf.string, stateful=False)
    return tf.ensure_shape(contents, [])


@dataclass(frozen=True)
class Source:
    """The images and classes of a source."""

    class_names: tuple[str, ...]
    # `train` (all images, where there is no other part), `validation`, `test`.
    parts: Mapping[str, Split]
    validation_part: str | None = None  # the name of the part, or None
    test_part: str | None = None
    bad_images: tuple[str, ...] = ()  # name and error of each image that was skipped
    # Whether the images are sorted (by class, by writer), so that slices have to be
    # taken of a shuffled order.
    ordered: bool = False

    @classmethod
    def with_own_parts(
        cls,
        class_names: tuple[str, ...],
        parts: Mapping[str, Split],
        bad_images: tuple[str, ...] = (),
        ordered: bool = False,
    ) -> "Source":
        """A source that names its own validation and test parts."""
        validation = "validation" if "validation" in parts else None
        test = "test" if "test" in parts else None
        return cls(class_names, parts, validation, test, bad_images, ordered)

    @property
    def train(self) -> Split:
        """The training images, or all images."""
        return self.parts["train"]

    @property
    def test(self) -> Split | None:
        """The test images, or None where the source does not divide its images."""
        return None if self.test_part is None else self.parts[self.test_part]
