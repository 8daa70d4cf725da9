"""Training on TensorFlow: `fit` that is correct under every `tf.distribute` strategy.

Keras 3.15 clips each replica's gradient before the sum over replicas, checks for
overflow on one replica only, gives every replica the same dropout mask, and raises on
accumulation, `steps_per_execution` and MultiWorkerMirroredStrategy. Here a step is

    each replica    forward and backward pass of its images, in micro-batches
    all replicas    one all-reduce: the sums of gradients, images' weights and metrics
    each replica    divide, check for overflow, clip at the global norm
    all replicas    the optimizer's update of each copy of the weights
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_vit.nested_layers import all_layers
from keras_vit.typing import Arrays

from .figure_vector import FigureVector
from .forward_pass import stateless_forward, weights_of
from .late_figures import Figures
from .loss_scaling import LossScaler
from .micro_batches import MicroBatchGradients
from .rebatch import Batch, Batches, Data, batch_dataset, unpack
from .traced_once import TracedOnce
from .trainer import Trainer, clipping_factor

ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)
STOP = "stop"  # among the figures of a step: above 0 where a worker must stop
MASK_OFFSET = 7919  # between the dropout seeds of two replicas
# Bytes that are reduced at once, the last layers' gradients first: communication begins
# before the backward pass has ended, and needs no copy of all gradients.
PACKS = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=50 * 2**20)


class TensorFlowTrainer(Trainer):
    """A `Trainer` for KERAS_BACKEND=tensorflow and any `tf.distribute` strategy."""

    def __init__(self, model: keras.Model, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        self.scaler: LossScaler | None = None
        if model.dtype_policy.compute_dtype == "float16":
            self.scaler = LossScaler()
        self.replica_batch_size: int | None = None
        self.statistics = [
            statistic
            for layer in all_layers(model)
            if isinstance(layer, keras.layers.BatchNormalization)
            for statistic in (layer.moving_mean, layer.moving_variance)
        ]
        self._separate_dropout_masks()

    def compile(
        self,
        optimizer: keras.optimizers.Optimizer,
        metrics: Sequence[str | keras.metrics.Metric] = ("accuracy",),
        steps_per_execution: int = 1,
        jit_compile: bool = False,
    ) -> None:
        """See `Trainer.compile`."""
        super().compile(optimizer, metrics, steps_per_execution)
        self.gradients = MicroBatchGradients(
            self.model, self.loss_of, self.scaler, self.accumulation, jit_compile
        )
        self.forward = TracedOnce(stateless_forward(self.model), jit_compile=False)
        # In a function, because only there several workers can add up what each has.
        self._metric_totals = tf.function(
            lambda: [tf.identity(v.value) for v in self.metrics_variables],
            autograph=False,
        )

    def _training_batches(
        self, data: Data, batch_size: int | None, shuffle: bool
    ) -> Batches:
        dataset = super()._training_batches(data, batch_size, shuffle)
        # TensorFlow forgets the size of a replica's batch where there are several
        # workers.
        size = None
        if isinstance(dataset, tf.data.Dataset):
            size = dataset.element_spec[1].shape[0]
            size //= self.distribute_strategy.num_replicas_in_sync
        if size != self.replica_batch_size:
            self.replica_batch_size = size
            self.train_function = None
        return dataset

    # One step, on one replica.

    def train_replica(self, batch: Batch, stop: tf.Tensor) -> dict[str, tf.Tensor]:
        """One training step on one replica.

        Args:
            batch: The replica's images, labels and, if there are any, weights.
            stop: float32 scalar, above 0 where this worker was asked to stop.

        Returns:
            The figures of all replicas: the metrics, the gradient's global norm before
            clipping, and the sum of `stop`.
        """
        images, labels, weights = unpack(batch)
        if labels.shape[0] is None:
            for tensor in tf.nest.flatten((images, labels, weights)):
                tensor.set_shape([self.replica_batch_size, *tensor.shape[1:]])
        gradients, count, losses, logits = self.gradients(images, labels, weights)
        self._update_metrics(labels, logits, losses, weights)
        stop = tf.identity(stop)  # on this replica's device and in this loop's body
        replica = tf.distribute.get_replica_context()
        gradients, totals, count, stop = replica.all_reduce(
            "sum", [gradients, self._own_totals(replica), count, stop], PACKS
        )
        self._average_statistics(replica)
        if self.scaler is not None:
            count *= self.scaler.scale
        # Where all images of a batch weigh 0, so does its gradient.
        share = tf.math.divide_no_nan(1.0, count)
        norm = tf.linalg.global_norm(gradients) * share
        share *= clipping_factor(norm, self.clip_norm)
        gradients = [gradient * share for gradient in gradients]
        replica.merge_call(self._apply, args=(gradients, tf.math.is_finite(norm)))
        return {**self._results_of(totals), "gradient_norm": norm, STOP: stop}

    def _own_totals(self, replica: tf.distribute.ReplicaContext) -> list[tf.Tensor]:
        """What this replica adds to the sums that are the metrics' variables.

        Read outside of a replica, each would be an all-reduce of its own.
        """
        first = tf.cast(replica.replica_id_in_sync_group == 0, tf.float32)
        shares = {
            "sum": 1.0,
            "mean": 1.0 / replica.num_replicas_in_sync,
            "only_first_replica": first,
        }
        return [
            shares[v.aggregation] * tf.cast(v.value, tf.float32)
            for v in self.metrics_variables
        ]

    def _results_of(self, totals: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        """The metrics' results, given the sums of their variables."""
        mapping = list(zip(self.metrics_variables, totals, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            results: dict[str, tf.Tensor] = self.get_metrics_result()
        return results

    def _average_statistics(self, replica: tf.distribute.ReplicaContext) -> None:
        """Average the moving statistics of batch normalization over the replicas.

        Each replica normalizes by its own images, as in stock Keras and in PyTorch.
        """
        if not self.statistics or replica.num_replicas_in_sync == 1:
            return
        own = [tf.identity(variable.value) for variable in self.statistics]
        for variable, mean in zip(
            self.statistics, replica.all_reduce("mean", own), strict=True
        ):
            variable.assign(mean)

    def _apply(
        self,
        strategy: tf.distribute.Strategy,
        gradients: Sequence[tf.Tensor],
        finite: tf.Tensor,
    ) -> None:
        """Update the weights, in cross-replica context."""

        def update() -> None:
            # Not `optimizer.apply`, which would sum over the replicas once more.
            rate = self.optimizer.learning_rate

            def update_one(variable: tf.Variable, gradient: tf.Tensor) -> None:
                # Else the decay of all weights is computed before the first gradient.
                with tf.control_dependencies([gradient]):
                    self.optimizer.update_step(gradient, variable, rate)

            for variable, gradient in zip(
                self.model.trainable_variables, gradients, strict=True
            ):
                strategy.extended.update(
                    variable.value,
                    update_one,
                    args=(gradient,),
                    group=False,
                )
            self.optimizer.iterations.assign_add(1)

        if self.scaler is None:
            update()
        else:
            finite = strategy.experimental_local_results(finite)[0]
            tf.cond(finite, update, lambda: None)
            self.scaler.update(finite)

    def test_replica(self, batch: Batch) -> None:
        """Add one batch of an evaluation to the metrics, on one replica."""
        images, labels, weights = unpack(batch)
        logits = self.forward(*weights_of(self.model), images)
        losses = self.loss_of(labels, logits)
        self._update_metrics(labels, logits, losses, weights)

    # Steps, on all replicas.

    def make_train_function(self, force: bool = False) -> None:
        """Create the function that `fit` calls for `steps_per_execution` steps."""
        if self.train_function is not None and not force:
            return
        strategy = self.distribute_strategy
        vector = FigureVector()

        @tf.autograph.experimental.do_not_convert
        def step(batch: Batch, stop: tf.Tensor) -> tf.Tensor:
            results = strategy.run(self.train_replica, args=(batch, stop))
            return vector.pack(
                {
                    name: strategy.experimental_local_results(value)[0]
                    for name, value in results.items()
                }
            )

        def read(packed: tf.Tensor) -> Figures:
            figures = vector.unpack(packed)
            return figures, bool(figures.pop(STOP) > 0)

        execute = _over_iterator(step, self.steps_per_execution > 1)
        execute_on = tf.function(step, reduce_retracing=True, autograph=False)

        def train_function(iterator: Iterator[Batch]) -> dict[str, Any]:
            steps = self.progress.advance(self.steps_per_execution)
            if self.progress.skipping:
                return self.progress.logs or self.get_metrics_result()
            # One process alone need not ask the others.
            asking = self.progress.stop_requested and not self.progress.alone
            stop = tf.constant(float(asking))
            if isinstance(iterator, ITERATORS):
                packed = execute(iterator, tf.constant(steps), stop)
            else:
                packed = execute_on(self._next_batch(iterator), stop)
            return self.figures.after(steps, lambda: read(packed))

        self.train_function = train_function

    def make_test_function(self, force: bool = False) -> None:
        """Create the function that `evaluate` calls for several batches."""
        if self.test_function is not None and not force:
            return
        strategy = self.distribute_strategy

        @tf.function(reduce_retracing=True, autograph=False)
        def execute(batch: Batch) -> None:
            strategy.run(self.test_replica, args=(batch,))

        def test_function(iterator: Iterator[Batch]) -> dict[str, tf.Tensor]:
            for step in range(self._next_test_steps()):
                try:
                    batch = self._next_batch(iterator)
                except (StopIteration, tf.errors.OutOfRangeError):
                    if step == 0:
                        raise
                    break
                execute(batch)
            results: dict[str, tf.Tensor] = self.get_metrics_result()
            return results

        self.test_function = test_function

    def _next_batch(self, iterator: Iterator[Batch]) -> Batch:
        """A batch for `strategy.run`, also where Keras iterates over arrays."""
        batch = next(iterator)
        if isinstance(iterator, ITERATORS):
            return batch
        arrays = tuple(array for array in batch if array is not None)
        batch = (tf.data.Dataset.from_tensors(arrays),)
        batch = batch_dataset(batch, None, self._parts, shuffle=False)
        return next(
            iter(self.distribute_strategy.experimental_distribute_dataset(batch))
        )

    def _maybe_symbolic_build(
        self, iterator: Any = None, data_batch: Any = None
    ) -> None:
        """Do nothing: all is built, and Keras fails on a PerReplica (keras#20585)."""

    # State.

    def _extra_state(self) -> dict[str, list[keras.Variable]]:
        return {"scaler": [] if self.scaler is None else self.scaler.variables}

    def state_arrays(self) -> Arrays:
        """See `Trainer.state_arrays`."""
        state = self.state()
        totals = iter(self._metric_totals())
        return {
            name: keras.ops.convert_to_numpy(
                next(totals) if name.startswith("metric") else v.value
            )
            for name, v in state.items()
        }

    def set_state(self, arrays: Arrays) -> None:
        """See `Trainer.set_state`."""
        super().set_state(arrays)
        self._separate_dropout_masks()

    def _separate_dropout_masks(self) -> None:
        """Give each replica its own seeds, as offsets from the first replica's."""
        weights = {id(weight) for weight in self.model.weights}
        seeds = [v.value for v in self.model.variables if id(v) not in weights]
        if not seeds:
            return

        def separate(first: list[tf.Tensor]) -> None:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            for seed, value in zip(seeds, first, strict=True):
                offset = tf.cast(replica * MASK_OFFSET, value.dtype)
                seed.assign(value + tf.stack([offset, tf.zeros_like(offset)]))

        first = [tf.identity(seed) for seed in seeds]
        self.distribute_strategy.run(
            tf.function(separate, autograph=False), args=(first,)
        )


def _over_iterator(
    step: Callable[[Batch, tf.Tensor], tf.Tensor], several: bool
) -> Callable[[Iterator[Batch], tf.Tensor, tf.Tensor], tf.Tensor]:
    """A graph of one step, or of as many as asked for, that returns the last's figures.

    Args:
        step: From a batch and whether to stop to the figures, a vector.
        several: Whether there may be more than one step.
    """

    @tf.function(reduce_retracing=True)
    def execute(
        iterator: Iterator[Batch], steps: tf.Tensor, stop: tf.Tensor
    ) -> tf.Tensor:
        if not several:
            return step(next(iterator), stop)
        figures = tf.zeros([0])
        for _ in tf.range(steps):
            tf.autograph.experimental.set_loop_options(
                shape_invariants=[(figures, tf.TensorShape([None]))]
            )
            figures = step(next(iterator), stop)
        return figures

    traced: Callable[..., tf.Tensor] = execute
    return traced
