"""`model.fit` where JAX computes: the same trainer, its step a pure function.

Of several devices JAX cuts the global batch itself, so that the gradient and its norm
are the global batch's without further ado; what a step computes is that of `trainer`.
"""

import itertools
from typing import Any

import jax
import keras
import numpy as np
from keras import ops

from .jax_devices import JaxStrategy
from .optimizer import average_pairs
from .trainer import Trainer


class JaxTrainer(Trainer):
    """A `Trainer` for KERAS_BACKEND=jax; arguments and use are the same.

    In `fit` the weights are in the hands of the step, as Keras does it with JAX, and
    come back at the end of an epoch, or for `state_arrays`.

    Raises:
        ValueError: The model computes in float16, which needs loss scaling.
    """

    def __init__(self, model: keras.Model, *args, **kwargs):
        super().__init__(model, *args, **kwargs)
        if self.scaler is not None:
            raise ValueError(
                "`model` must compute in float32 or bfloat16: float16 needs loss "
                "scaling, which only TensorFlow's trainer has"
            )
        self.distribute_strategy = JaxStrategy(keras.distribution.distribution())

    def compile(self, *args, **kwargs):
        """See `Trainer.compile`; XLA compiles the whole step in any case."""
        super().compile(*args, **kwargs | {"jit_compile": False})
        self.jit_compile = True

    def fit(self, *args, **kwargs):
        """See `Trainer.fit`."""
        with self.distribute_strategy.scope():
            return super().fit(*args, **kwargs)

    def evaluate(self, *args, **kwargs):
        """See `Trainer.evaluate`."""
        with self.distribute_strategy.scope():
            return super().evaluate(*args, **kwargs)

    def predict(self, *args, **kwargs):
        """See `keras.Model.predict`; batches must be multiples of the devices."""
        with self.distribute_strategy.scope():
            return super().predict(*args, **kwargs)

    # One step: state and batch -> logs and state.

    def train_step(self, state, data):
        """One update; `state` and the result are as Keras's JAX trainer has them."""
        weights, others, slots, metrics = state
        parts = [self._divide(tensor) for tensor in _unpack(data)]
        gradients, others, losses, logits = self._sum_gradients(weights, others, parts)
        gradients, norm = _clip(gradients, self.clip_norm)
        weights, slots = self.optimizer.stateless_apply(slots, gradients, weights)
        _, labels, shares = (_join(part) for part in parts)
        logs, metrics = self._measure(metrics, labels, logits, losses, shares)
        return {**logs, "gradient_norm": norm}, (weights, others, slots, metrics)

    def test_step(self, state, data):
        """One batch of an evaluation; see `train_step`."""
        weights, others, metrics = state
        images, labels, shares = _unpack(data)
        logits, others = self.stateless_call(weights, others, images, training=False)
        losses = self.loss_of(labels, logits)
        logs, metrics = self._measure(metrics, labels, logits, losses, shares)
        return logs, (weights, others, metrics)

    def _sum_gradients(self, weights, others, parts):
        """Sums over the micro-batches, one after the other.

        Args:
            weights: The trainable ones.
            others: All other variables of the model.
            parts: Images, labels and the examples' weights, as `_divide` gives them.

        Returns:
            The gradients; `others` after the step; each example's loss [B] and logits
            [B, classes], in the order of the parts.
        """
        whole = ops.sum(parts[2])

        def add(carry, part):
            gradients, others = carry
            new, (others, *outputs) = jax.grad(self._objective, has_aux=True)(
                weights, others, part, whole
            )
            return (jax.tree.map(ops.add, gradients, new), others), outputs

        nothing = jax.tree.map(ops.zeros_like, weights)
        (gradients, others), outputs = jax.lax.scan(add, (nothing, others), parts)
        return gradients, others, *(_join(output) for output in outputs)

    def _objective(self, weights, others, part, whole):
        """A micro-batch's share of the mean loss over examples that weigh `whole`."""
        images, labels, shares = part
        logits, others, penalties = self.stateless_call(
            weights, others, images, training=True, return_losses=True
        )
        losses = self.loss_of(labels, logits)
        total = ops.sum(losses * shares) + sum(penalties) * ops.sum(shares)
        return ops.divide_no_nan(total, whole), (others, losses, logits)

    def _divide(self, tensor):
        """[B, ...] -> [accumulation, B / accumulation, ...], a piece of each device."""
        shape = (tensor.shape[0] // self.accumulation, self.accumulation)
        return ops.swapaxes(ops.reshape(tensor, (*shape, *tensor.shape[1:])), 0, 1)

    def _measure(self, metrics, labels, logits, losses, shares):
        """The metrics' results and variables after a batch."""
        with self._metric_scope(metrics) as scope:
            self._update_metrics(labels, ops.cast(logits, "float32"), losses, shares)
            logs = self.get_metrics_result()
        return logs, [scope.get_current_value(v) for v in self.metrics_variables]

    def _metric_scope(self, metrics):
        mapping = list(zip(self.metrics_variables, metrics, strict=True))
        return keras.StatelessScope(state_mapping=mapping)

    # Steps.

    def make_train_function(self, force=False):
        """What Keras's `fit` calls for `steps_per_execution` steps."""
        if self.train_function is not None and not force:
            return
        keras.Model.make_train_function(self, force)
        execute: Any = self.train_function

        def train_function(state, iterator):
            steps = self._next_steps()
            if self.skip_steps >= self.epoch_step:
                with self._metric_scope(state[3]):
                    return self.get_metrics_result(), state
            logs, state = execute(state, itertools.islice(iterator, steps))
            self.skip_steps = 0
            self.stopping = self.stop_requested
            return logs, state

        self.train_function = train_function

    def make_test_function(self, force=False):
        """What Keras's `evaluate` calls for `steps_per_execution` batches."""
        if self.test_function is not None and not force:
            return
        keras.Model.make_test_function(self, force)
        execute: Any = self.test_function
        self.test_function = lambda state, iterator: execute(
            state, itertools.islice(iterator, self._next_test_steps())
        )

    # State.

    def state_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of the state, also in the middle of an epoch."""
        self.jax_state_sync()
        return {
            # A copy: JAX reuses the memory of the old state for the new one.
            name: np.array(ops.convert_to_numpy(variable.value))
            for name, variable in self.state().items()
        }

    def _separate_dropout_masks(self):
        """Nothing: one mask is drawn for the global batch."""

    def _swap_averages(self):
        for weight, average in average_pairs(
            self.optimizer, self.model.trainable_variables
        ):
            value = weight.value
            weight.assign(average.value)
            average.assign(value)


def _unpack(data):
    images, labels, shares = keras.utils.unpack_x_y_sample_weight(data)
    if shares is None:
        shares = ops.ones(labels.shape[:1])
    return images, labels, ops.cast(shares, "float32")


def _join(parts):
    """[parts, b, ...] -> [parts * b, ...]."""
    return ops.reshape(parts, (-1, *parts.shape[2:]))


def _clip(gradients, limit: float | None):
    norm = ops.sqrt(sum(ops.sum(ops.square(gradient)) for gradient in gradients))
    if limit is None:
        return gradients, norm
    factor = limit / ops.maximum(norm, limit)
    return [gradient * factor for gradient in gradients], norm
