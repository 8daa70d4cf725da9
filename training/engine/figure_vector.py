"""The figures of a training step as one vector, for a single copy from the device."""

import math

import numpy as np
import tensorflow as tf

from keras_vit.typing import Arrays


class FigureVector:
    """Packs figures by name into a vector, and unpacks it.

    It remembers the names and shapes of what it packed last, which in a `tf.function`
    happens while TensorFlow traces.
    """

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}

    def pack(self, figures: dict[str, tf.Tensor]) -> tf.Tensor:
        """All figures, of known shapes, one after the other: float32 [n]."""
        self.shapes = {name: tuple(value.shape) for name, value in figures.items()}
        values = [tf.cast(value, tf.float32) for value in figures.values()]
        return tf.concat([tf.reshape(value, [-1]) for value in values], 0)

    def unpack(self, vector: tf.Tensor) -> Arrays:
        """The figures that were packed, float32."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()])
        parts = np.split(vector.numpy(), ends[:-1])
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
