"""Gradients of a replica's images on TensorFlow, accumulated over micro-batches."""

from typing import TypeAlias

import keras
import tensorflow as tf

from .forward_pass import weights_of
from .loss_scaling import LossScaler
from .losses import Loss
from .rebatch import Batch
from .traced_once import TracedOnce

# Gradients, sum of weights, losses [b] and logits [b, classes]; see `__call__`.
Sums: TypeAlias = tuple[list[tf.Tensor], tf.Tensor, tf.Tensor, tf.Tensor]


class MicroBatchGradients:
    """Forward and backward pass of a replica's images, one micro-batch at a time.

    The scaler is that of a model that computes in float16.
    """

    def __init__(
        self,
        model: keras.Model,
        loss_of: Loss,
        scaler: LossScaler | None,
        accumulation: int,
        jit_compile: bool,
    ) -> None:
        self.model = model
        self.loss_of = loss_of
        self.scaler = scaler
        self.accumulation = accumulation
        self.function = TracedOnce(self._forward_backward, jit_compile)
        # Positions of the non-trainable variables that a forward pass changes.
        self.changing: list[int] = []

    def __call__(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
    ) -> Sums:
        """Sum over the replica's images.

        Returns:
            Gradients of the sum of weighted losses and the sum of weights, both divided
            by the size of a micro-batch; each image's loss [b] and logits [b, classes].
        """
        if self.accumulation == 1:
            return self.forward_backward(images, labels, weights)
        parts = tf.nest.map_structure(self._divide, (images, labels, weights))

        def part_at(index: int | tf.Tensor) -> Batch:
            part: Batch = tf.nest.map_structure(lambda part: part[index], parts)
            return part

        gradients, count, losses, logits = self.forward_backward(*part_at(0))
        all_losses = tf.TensorArray(tf.float32, self.accumulation).write(0, losses)
        all_logits = tf.TensorArray(tf.float32, self.accumulation).write(0, logits)

        def add(
            index: tf.Tensor,
            gradients: list[tf.Tensor],
            count: tf.Tensor,
            all_losses: tf.TensorArray,
            all_logits: tf.TensorArray,
        ) -> tuple[
            tf.Tensor, list[tf.Tensor], tf.Tensor, tf.TensorArray, tf.TensorArray
        ]:
            part = self.forward_backward(*part_at(index))
            gradients = [a + b for a, b in zip(gradients, part[0], strict=True)]
            all_losses = all_losses.write(index, part[2])
            all_logits = all_logits.write(index, part[3])
            return index + 1, gradients, count + part[1], all_losses, all_logits

        _, gradients, count, all_losses, all_logits = tf.while_loop(
            lambda index, *_: index < self.accumulation,
            add,
            (1, gradients, count, all_losses, all_logits),
            parallel_iterations=1,  # else all activations are in memory at once
        )
        return gradients, count, all_losses.concat(), all_logits.concat()

    def _divide(self, tensor: tf.Tensor) -> tf.Tensor:
        """[b, ...] -> [accumulation, b / accumulation, ...]."""
        size = tensor.shape[0] // self.accumulation
        return tf.reshape(tensor, [self.accumulation, size, *tensor.shape[1:]])

    def forward_backward(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
    ) -> Sums:
        """`__call__` for a single micro-batch."""
        variables = self.model.non_trainable_variables
        gradients, count, losses, logits, changed = self.function(
            *weights_of(self.model),
            [] if self.scaler is None else [self.scaler.scale],
            (images, labels, weights),
        )
        for position, value in zip(self.changing, changed, strict=True):
            variables[position].assign(value)
        return gradients, count, losses, logits

    def _forward_backward(
        self,
        trainable: list[tf.Tensor],
        others: list[tf.Tensor],
        scale: list[tf.Tensor],
        batch: Batch,
    ) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """`forward_backward`, and the new values of the variables that it changes."""
        images, labels, weights = batch
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            logits, after, penalties = self.model.stateless_call(
                trainable, others, images, training=True, return_losses=True
            )
            logits = tf.cast(logits, tf.float32)
            losses = self.loss_of(labels, logits)
            # Divided by the micro-batch's size.
            objective = tf.reduce_sum(losses * weights) / weights.shape[0]
            if penalties:
                objective += tf.add_n(penalties) * _mean_weight(weights)
            for factor in scale:
                objective *= factor
        gradients = tape.gradient(
            objective, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        self.changing = [
            position
            for position, (old, new) in enumerate(zip(others, after, strict=True))
            if new is not old
        ]
        changed = [after[position] for position in self.changing]
        return gradients, _mean_weight(weights), losses, logits, changed


def _mean_weight(weights: tf.Tensor) -> tf.Tensor:
    # The mean, so that half precision can represent sums of gradients.
    return tf.reduce_sum(weights) / weights.shape[0]
