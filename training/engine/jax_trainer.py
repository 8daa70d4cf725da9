"""Training on JAX: the same step as on TensorFlow, as a pure function.

JAX divides the global batch among several devices by itself, so the gradient and its
norm are those of the global batch.
"""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, TypeAlias

import jax
import keras
from keras import ops

from keras_vit.typing import Arrays, Inputs, Logits, Tensor

from .jax_strategy import JaxStrategy, whole_array
from .late_figures import Figures
from .losses import Labels
from .strategy import gather
from .trainer import Trainer, clipping_factor

Values: TypeAlias = list[jax.Array]  # of variables, in Keras's order
# Of a step: trainable and other variables, those of the optimizer and of the metrics;
# an evaluation's is without the optimizer's.
State: TypeAlias = tuple[Values, Values, Values, Values]
TestState: TypeAlias = tuple[Values, Values, Values]
Batch: TypeAlias = tuple[Inputs, Labels, jax.Array]  # the last are the weights


class JaxTrainer(Trainer):
    """A `Trainer` for KERAS_BACKEND=jax.

    JAX owns the weights during `fit`, as in stock Keras; the model has them again at
    the end of an epoch and after `state_arrays`.

    Raises:
        ValueError: The model computes in float16, which needs loss scaling.
    """

    def __init__(self, model: keras.Model, *args: Any, **kwargs: Any) -> None:
        if model.dtype_policy.compute_dtype == "float16":
            raise ValueError(
                "`model` must compute in float32 or bfloat16, as float16 needs loss "
                "scaling, which only TensorFlow's trainer has. Received: float16"
            )
        super().__init__(model, *args, **kwargs)
        self.distribute_strategy = JaxStrategy(keras.distribution.distribution())

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """See `Trainer.compile`."""
        super().compile(*args, **{**kwargs, "jit_compile": True})

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """See `Trainer.fit`."""
        with self.distribute_strategy.scope():
            return super().fit(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """See `Trainer.evaluate`."""
        with self.distribute_strategy.scope():
            return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """See `keras.Model.predict`; batches must be multiples of the devices."""
        with self.distribute_strategy.scope():
            return super().predict(*args, **kwargs)

    # One step: state and batch -> logs and state.

    def train_step(
        self, state: State, data: tuple[Any, ...]
    ) -> tuple[dict[str, Tensor], State]:
        """Update the weights once; see `keras.Model.train_step` on JAX."""
        trainable, non_trainable, slots, metrics = state
        parts = keras.tree.map_structure(self._divide, _unpack(data))
        gradients, non_trainable, losses, logits = self._sum_gradients(
            trainable, non_trainable, parts
        )
        norm = ops.sqrt(sum(ops.sum(ops.square(g)) for g in gradients))
        factor = clipping_factor(norm, self.clip_norm)
        gradients = [gradient * factor for gradient in gradients]
        trainable, slots = self.optimizer.stateless_apply(slots, gradients, trainable)
        labels, weights = _join(parts[1]), _join(parts[2])
        logs, metrics = self._update_metric_state(
            metrics, labels, logits, losses, weights
        )
        state = (trainable, non_trainable, slots, metrics)
        return {**logs, "gradient_norm": norm}, state

    def test_step(
        self, state: TestState, data: tuple[Any, ...]
    ) -> tuple[dict[str, Tensor], TestState]:
        """Evaluate one batch; see `train_step`."""
        trainable, non_trainable, metrics = state
        images, labels, weights = _unpack(data)
        logits, non_trainable = self.stateless_call(
            trainable, non_trainable, images, training=False
        )
        losses = self.loss_of(labels, logits)
        logs, metrics = self._update_metric_state(
            metrics, labels, logits, losses, weights
        )
        return logs, (trainable, non_trainable, metrics)

    def _sum_gradients(
        self, trainable: Values, non_trainable: Values, parts: Batch
    ) -> tuple[Values, Values, Tensor, Logits]:
        """Sum the gradients over the micro-batches, one after the other.

        Returns:
            The gradients; `non_trainable` after the step; each example's loss [B] and
            logits [B, classes].
        """
        total_weight = ops.sum(parts[2])

        def add(
            carry: tuple[Values, Values], part: Batch
        ) -> tuple[tuple[Values, Values], list[jax.Array]]:
            gradients, non_trainable = carry
            new, (non_trainable, *outputs) = jax.grad(self._objective, has_aux=True)(
                trainable, non_trainable, part, total_weight
            )
            return (jax.tree.map(ops.add, gradients, new), non_trainable), outputs

        zeros = jax.tree.map(ops.zeros_like, trainable)
        (gradients, non_trainable), outputs = jax.lax.scan(
            add, (zeros, non_trainable), parts
        )
        return gradients, non_trainable, *(_join(output) for output in outputs)

    def _objective(
        self,
        trainable: Values,
        non_trainable: Values,
        part: Batch,
        total_weight: jax.Array,
    ) -> tuple[Tensor, tuple[Values, Tensor, Logits]]:
        """A micro-batch's part of the batch's loss, divided by the batch's weight."""
        images, labels, weights = part
        logits, non_trainable, penalties = self.stateless_call(
            trainable, non_trainable, images, training=True, return_losses=True
        )
        losses = self.loss_of(labels, logits)
        total = ops.sum(losses * weights) + sum(penalties) * ops.sum(weights)
        return ops.divide_no_nan(total, total_weight), (non_trainable, losses, logits)

    def _divide(self, tensor: jax.Array) -> Tensor:
        """[B, ...] -> [accumulation, B / accumulation, ...].

        Each micro-batch takes examples of every device.
        """
        shape = (tensor.shape[0] // self.accumulation, self.accumulation)
        return ops.swapaxes(ops.reshape(tensor, (*shape, *tensor.shape[1:])), 0, 1)

    def _update_metric_state(
        self,
        metrics: Values,
        labels: Labels,
        logits: Logits,
        losses: Tensor,
        weights: Tensor,
    ) -> tuple[dict[str, Tensor], Values]:
        """Update the metrics: their results and their variables."""
        with self._metric_scope(metrics) as scope:
            self._update_metrics(labels, ops.cast(logits, "float32"), losses, weights)
            logs = self.get_metrics_result()
        return logs, [scope.get_current_value(v) for v in self.metrics_variables]

    def _metric_scope(self, metrics: Values) -> keras.StatelessScope:
        mapping = list(zip(self.metrics_variables, metrics, strict=True))
        return keras.StatelessScope(state_mapping=mapping)

    # Steps.

    def make_train_function(self, force: bool = False) -> None:
        """Create the function that `fit` calls for `steps_per_execution` steps."""
        if self.train_function is not None and not force:
            return
        keras.Model.make_train_function(self, force)
        execute: Any = self.train_function

        def train_function(
            state: State, iterator: Iterator[Any]
        ) -> tuple[dict[str, Any], State]:
            steps = self.progress.advance(self.steps_per_execution)
            if self.progress.skipping:
                with self._metric_scope(state[3]):
                    return self.progress.logs or self.get_metrics_result(), state
            logs, state = execute(state, itertools.islice(iterator, steps))
            stop = self.distribute_strategy.any_worker(self.progress.stop_requested)

            def read() -> Figures:
                figures = {n: ops.convert_to_numpy(v) for n, v in logs.items()}
                return figures, bool(stop)

            return self.figures.after(steps, read), state

        self.train_function = train_function

    def make_test_function(self, force: bool = False) -> None:
        """Create the function that `evaluate` calls for several batches."""
        if self.test_function is not None and not force:
            return
        keras.Model.make_test_function(self, force)
        execute: Any = self.test_function
        self.test_function = lambda state, iterator: execute(
            state, itertools.islice(iterator, self._next_test_steps())
        )

    # State.

    def state_arrays(self) -> Arrays:
        """See `Trainer.state_arrays`; also in the middle of an epoch."""
        self.jax_state_sync()
        return {
            # A copy: JAX reuses the memory of the old state for the new one.
            name: whole_array(variable.value)
            for name, variable in self.state().items()
        }

    @contextlib.contextmanager
    def local_weights(self) -> Iterator[None]:
        """See `Trainer.local_weights`."""
        with self.averaged_weights():
            local = self.distribute_strategy.on_this_host()
            if local is self.distribute_strategy:
                yield
                return
            mesh = local.distribution.device_mesh.backend_mesh
            everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
            # Not `get_variable_layout`: a variable that was moved has no layout.
            shared = [(v, v.value, v._layout) for v in self.model.variables]  # noqa: SLF001
            for variable, value, _ in shared:
                _move(variable, jax.device_put(whole_array(value), everywhere))
            try:
                with local.scope():
                    yield
            finally:
                for variable, value, layout in shared:
                    _move(variable, value, layout)

    @contextlib.contextmanager
    def without_others(self) -> Iterator[None]:
        """See `Trainer.without_others`; the others need not wait."""
        if self.distribute_strategy.workers > 1:
            for variable in self.state().values():
                _move(variable, jax.numpy.asarray(whole_array(variable.value)))
            gather(self.distribute_strategy, 0)  # `shutdown` waits for seconds only
            jax.distributed.shutdown()
        yield


def _move(variable: Any, value: jax.Array, layout: Any = None) -> None:
    """Give a variable a value on other devices.

    Keras has no public way: `assign` divides every value by the layout with which the
    variable was made (keras-team/keras#21194 and #21264 speak of `_layout` too).
    """
    variable._value, variable._layout = value, layout  # noqa: SLF001


def _unpack(data: tuple[Any, ...]) -> Batch:
    images, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
    if weights is None:
        weights = ops.ones(labels.shape[:1])
    return images, labels, ops.cast(weights, "float32")


def _join(parts: Tensor) -> Tensor:
    """[parts, b, ...] -> [parts * b, ...], the inverse of `_divide`."""
    return ops.reshape(ops.swapaxes(parts, 0, 1), (-1, *parts.shape[2:]))
