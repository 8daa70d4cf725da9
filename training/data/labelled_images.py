"""What every source of images gives: labelled images that can be read in any order."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import decoding

from ..errors import DataError


@dataclass(frozen=True)
class Split:
    """Labelled images that can be read in any order.

    Args:
        labels: int64 [n], the class of each image.
        classes: How many classes there are.
        read: From a scalar int64 tensor, the number of the image, to the image, uint8
            [h, w, C]; it can stand in a `tf.data` pipeline.
        names: [n], what to call each image.
        encoded: The same to the contents of the image's file, a scalar string tensor;
            None where there are only pixels.
        channels: C, 1 for gray or 3 for RGB.
        fitted: Whether the images are in the model's size already, cropped and all.
    """

    labels: np.ndarray[Any, Any]
    classes: int
    read: Callable[[tf.Tensor], tf.Tensor]
    names: Sequence[str]
    encoded: Callable[[tf.Tensor], tf.Tensor] | None = None
    channels: int = 3
    fitted: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    def read_part(
        self, index: tf.Tensor, choose_window: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        """A part of an image; of a JPEG nothing else is decoded.

        Args:
            index: Scalar int64 tensor, the number of the image.
            choose_window: See `keras_vit.decoding.decode_and_crop`.

        Returns:
            uint8 [height, width, C].
        """
        if self.encoded is not None:
            contents = self.encoded(index)
            return decoding.decode_and_crop(contents, choose_window, self.channels)
        image = self.read(index)
        top, left, height, width = tf.unstack(choose_window(tf.shape(image)))
        return tf.slice(image, [top, left, 0], [height, width, image.shape[-1]])

    def subset(self, indices: np.ndarray[Any, Any]) -> "Split":
        """The images of these numbers, in this order."""
        numbers = tf.constant(indices, tf.int64)
        encoded = self.encoded
        return dataclasses.replace(
            self,
            labels=self.labels[indices],
            read=lambda index: self.read(numbers[index]),
            names=[self.names[index] for index in indices],
            encoded=encoded and (lambda index: encoded(numbers[index])),
        )

    def with_pixels(self, images: np.ndarray[Any, Any]) -> "Split":
        """The same examples in the model's size: uint8 [n, H, W, C], in memory."""
        pixels = tf.constant(images)
        return dataclasses.replace(
            self, read=lambda index: pixels[index], encoded=None, fitted=True
        )


def encoded_split(
    origin: str,
    encoded: Callable[[tf.Tensor], tf.Tensor],
    labels: np.ndarray[Any, Any],
    classes: int,
    names: Sequence[str],
    channels: int,
) -> Split:
    """A split of image files.

    Args:
        origin: What to call the split in an error.
        encoded: From the number of an image to its file's contents.
        labels: Integers [n].
        classes: How many classes there are.
        names: [n], what to call each image.
        channels: 1 for gray images, 3 for RGB.

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


@dataclass(frozen=True)
class Source:
    """What a source holds.

    Args:
        class_names: One name for each class.
        parts: The images, divided as the source divides them: `train` (all images,
            where there is nothing else), `validation`, `test`.
        test_part: Which of them are the test images, or None.
        bad_images: What was left out: each image's name and what is wrong with it.
        ordered: Whether the images lie in an order that means something (their classes,
            their writers), so that slices have to be taken of a shuffled one.
    """

    class_names: tuple[str, ...]
    parts: Mapping[str, Split]
    test_part: str | None = None
    bad_images: tuple[str, ...] = ()
    ordered: bool = False

    @property
    def train(self) -> Split:
        """The training images, or all images."""
        return self.parts["train"]

    @property
    def test(self) -> Split | None:
        """The test images, or None where the source does not divide its images."""
        return None if self.test_part is None else self.parts[self.test_part]
