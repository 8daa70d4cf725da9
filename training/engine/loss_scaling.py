"""Dynamic loss scaling for float16."""

import keras
import tensorflow as tf

FIRST_LOSS_SCALE = 2.0**15
LOSS_SCALE_GROWTH = 2000  # steps without overflow after which the scale doubles


class LossScaler:
    """Dynamic loss scaling for float16 (arXiv:1710.03740, section 3.2).

    The scale halves at each overflow, whose step is skipped, and doubles after
    `LOSS_SCALE_GROWTH` steps without one.
    """

    def __init__(self) -> None:
        self.variables = [
            keras.Variable(value, trainable=False) for value in (FIRST_LOSS_SCALE, 0.0)
        ]

    @property
    def scale(self) -> tf.Tensor:
        """The factor of the loss, a float32 scalar."""
        return self.variables[0].value

    def update(self, finite: tf.Tensor) -> None:
        """Adapt the scale after a step; call it in cross-replica context."""
        scale, good_steps = self.variables
        good = tf.where(finite, good_steps.value + 1, 0.0)
        grown = good >= LOSS_SCALE_GROWTH
        factor = tf.where(finite, tf.where(grown, 2.0, 1.0), 0.5)
        scale.assign(tf.maximum(scale.value * factor, 1.0))
        good_steps.assign(tf.where(grown, 0.0, good))
