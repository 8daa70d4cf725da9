"""What every source of images gives: labelled images that can be read in any order."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Split:
    """Labelled images that can be read in any order.

    Args:
        labels: int64 [n], the class of each image.
        classes: How many classes there are.
        read: From a scalar int64 tensor, the number of the image, to the image, uint8
            [h, w, C]; TensorFlow operations only.
        names: [n], what to call each image.
    """

    labels: np.ndarray[Any, Any]
    classes: int
    read: Callable[[tf.Tensor], tf.Tensor]
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: np.ndarray[Any, Any]) -> "Split":
        """The images of these numbers, in this order."""
        numbers = tf.constant(indices, tf.int64)
        names = [self.names[index] for index in indices]
        return dataclasses.replace(
            self,
            labels=self.labels[indices],
            read=lambda index: self.read(numbers[index]),
            names=names,
        )

    def with_pixels(self, images: np.ndarray[Any, Any]) -> "Split":
        """The same examples, with these images uint8 [n, H, W, C] in memory."""
        pixels = tf.constant(images)
        return dataclasses.replace(self, read=lambda index: pixels[index])


@dataclass(frozen=True)
class Source:
    """What a source holds.

    Args:
        class_names: One name for each class.
        train: The training images, or all images.
        test: The test images, or None where the source does not divide them.
        bad_images: What was left out: each image's name and what is wrong with it.
    """

    class_names: tuple[str, ...]
    train: Split
    test: Split | None = None
    bad_images: tuple[str, ...] = ()
