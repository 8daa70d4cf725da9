"""`model.fit` that is right under every tf.distribute strategy: one Model subclass.

Keras 3.15 clips each replica's gradient before the sum over replicas, looks for
overflow on one replica only, gives every replica the same dropout mask, and raises on
accumulation, `steps_per_execution` and MultiWorkerMirroredStrategy. Here a step is

    each replica    forward and backward pass of its images, in micro-batches
    all replicas    one all-reduce: the sums of gradients and of the images' weights
    each replica    divide, look for overflow, clip at the global norm
    all replicas    the optimizer's update of each copy of the weights

The trainer wraps a plain model, which shares its weights and is what gets saved.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .loss_scaling import LossScaler
from .losses import dense_labels, make_loss
from .optimizer import average_pairs, check_optimizer
from .rebatch import batch_dataset, unpack

ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)
MASK_OFFSET = 7919  # between the dropout seeds of two replicas


class Trainer(keras.Model):
    """Trains a plain model: gradients of the global batch, under any strategy.

    Make it, the model and the optimizer in the strategy's scope. Then `compile` and
    `fit` are Keras's, with a `tf.data.Dataset` of global batches (images, labels) or
    (images, labels, weights), arrays, or a distributed dataset. Every image weighs
    the same (or its weight), also in an incomplete last batch.

    Args:
        model: The plain functional model; it returns logits [B, classes].
        loss: `"softmax"` or `"sigmoid"`; see `losses`.
        label_smoothing: See `losses`.
        accumulation: Micro-batches into which each replica divides its images.
        clip_norm: Largest global norm of the global batch's gradient, or None.
    """

    train_function: Any
    test_function: Any

    def __init__(
        self,
        model: keras.Model,
        loss: str = "softmax",
        label_smoothing: float = 0.0,
        accumulation: int = 1,
        clip_norm: float | None = None,
    ):
        super().__init__()
        self.model = model
        self.loss_of = make_loss(loss, label_smoothing)
        self.accumulation = accumulation
        self.clip_norm = clip_norm
        self.loss_metric = keras.metrics.Mean("loss")
        self.scaler: LossScaler | None = None
        if model.dtype_policy.compute_dtype == "float16":
            self.scaler = LossScaler()
        self.stop_requested = False  # set by a signal, on any worker
        self.stopping = False  # what all workers have agreed on
        self.epoch_step = 0
        self.steps_per_epoch: int | None = None
        self.skip_steps = 0
        self.test_steps_left: int | None = None
        self.replica_batch_size: int | None = None
        self.metric_arrays: list[np.ndarray[Any, Any]] = []
        self.averages_swapped = False
        self.built = True
        self.statistics = [
            statistic
            for layer in model._flatten_layers()
            if isinstance(layer, keras.layers.BatchNormalization)
            for statistic in (layer.moving_mean, layer.moving_variance)
        ]
        self._separate_dropout_masks()

    def call(self, images, training=None):
        """The plain model's logits [B, classes]."""
        return self.model(images, training=training)

    def compile(
        self,
        optimizer,
        metrics=("accuracy",),
        steps_per_execution: int = 1,
        jit_compile: bool = False,
    ):
        """Says how to train.

        Args:
            optimizer: See `optimizer.make_optimizer`; any Keras optimizer without
                clipping, averaging or accumulation of its own will do.
            metrics: `"accuracy"` or Keras metrics of labels [B, classes] and logits.
            steps_per_execution: Steps between two returns to Python.
            jit_compile: Whether XLA compiles each replica's forward and backward pass.

        Raises:
            ValueError: The optimizer has clipping or the like of its own.
        """
        check_optimizer(optimizer)
        self.step_metrics = [
            keras.metrics.CategoricalAccuracy("accuracy") if m == "accuracy" else m
            for m in metrics
        ]
        super().compile(
            optimizer,
            steps_per_execution=steps_per_execution,
            jit_compile=False,
            auto_scale_loss=False,  # see `LossScaler`
        )
        self.forward_backward = self._forward_backward
        if jit_compile:
            self.forward_backward = tf.function(
                self._forward_backward, jit_compile=True, autograph=False
            )
        # In a function, because only there several workers can add up what each has.
        self.metric_totals = tf.function(
            lambda: [tf.identity(v.value) for v in self._metric_variables()],
            autograph=False,
        )
        optimizer.build(self.model.trainable_variables)

    @property
    def metrics(self):
        """The loss, then those of `compile`."""
        return [self.loss_metric, *getattr(self, "step_metrics", [])]

    def fit(self, x=None, y=None, *, batch_size=None, validation_data=None, **kwargs):
        """Keras's `fit`; an incomplete last batch is filled with copies of weight 0."""
        shuffle = kwargs.pop("shuffle", True)
        data = (x, y, kwargs.pop("sample_weight", None))
        x = batch_dataset(data, batch_size, self._parts, shuffle)
        self._note_batch_size(x)
        if validation_data is not None:
            validation_data = self._whole_batches(validation_data, batch_size)
        self.steps_per_epoch = self._check_steps(x, kwargs.get("steps_per_epoch"))
        counter = keras.callbacks.LambdaCallback(on_epoch_begin=self._begin_epoch)
        kwargs["callbacks"] = [counter, *kwargs.get("callbacks", ())]
        return super().fit(x, validation_data=validation_data, shuffle=False, **kwargs)

    def evaluate(self, x=None, y=None, *, batch_size=None, **kwargs):
        """Keras's `evaluate` of the averaged weights; each image counts once."""
        self.test_steps_left = kwargs.get("steps")
        if not kwargs.get("_use_cached_eval_dataset"):
            data = (x, y, kwargs.pop("sample_weight", None))
            x, y = self._whole_batches(data, batch_size), None
        with self.averaged_weights():
            return super().evaluate(x, y, **kwargs)

    @property
    def _parts(self) -> int:
        """Into how many equal parts a batch is divided."""
        return self.distribute_strategy.num_replicas_in_sync * self.accumulation

    def _note_batch_size(self, dataset):
        """Keeps a replica's share: TensorFlow forgets it for several workers."""
        size = None
        if isinstance(dataset, tf.data.Dataset):
            size = dataset.element_spec[1].shape[0]
            size //= self.distribute_strategy.num_replicas_in_sync
        if size != self.replica_batch_size:
            self.replica_batch_size = size
            self.train_function = None

    def _check_steps(self, x, steps: int | None) -> int | None:
        """The steps of an epoch; None where they cannot be known and need not."""
        if steps is None and isinstance(x, tf.data.Dataset):
            count = int(x.cardinality())
            steps = count if count > 0 else None
        if steps is None and self.steps_per_execution > 1:
            raise ValueError(
                "`steps_per_epoch` must be given with `steps_per_execution` above 1, "
                "where the dataset does not know its length. Received: "
                f"steps_per_execution={self.steps_per_execution}"
            )
        return steps

    def _whole_batches(self, data, batch_size):
        data = data if isinstance(data, tuple) else (data,)
        replicas = self.distribute_strategy.num_replicas_in_sync
        return batch_dataset(data, batch_size, replicas, shuffle=False)

    def _begin_epoch(self, epoch, logs=None):
        self.epoch_step = 0
        if self.skip_steps:  # Keras has just reset the metrics
            for variable, array in zip(
                self._metric_variables(), self.metric_arrays, strict=True
            ):
                variable.assign(array)

    # One step, on one replica.

    def _train_replica(self, batch, stop):
        images, labels, weights = unpack(batch)
        if labels.shape[0] is None:
            for tensor in (images, labels, weights):
                tensor.set_shape([self.replica_batch_size, *tensor.shape[1:]])
        gradients, count, losses, logits = self._gradients(images, labels, weights)
        self._update_metrics(labels, logits, losses, weights)
        stop = tf.identity(stop)  # on this replica's device and in this loop's body
        replica = tf.distribute.get_replica_context()
        *gradients, count, stop = replica.all_reduce("sum", [*gradients, count, stop])
        self._average_statistics(replica)
        if self.scaler is not None:
            count *= self.scaler.scale
        # Where all images of a batch weigh 0, so does its gradient.
        gradients = [tf.math.divide_no_nan(g, count) for g in gradients]
        gradients, norm = clip_by_global_norm(gradients, self.clip_norm)
        replica.merge_call(self._apply, args=(gradients, tf.math.is_finite(norm)))
        return norm, stop

    def _average_statistics(self, replica):
        """Makes the moving averages of batch normalisation one again.

        Each replica normalises by its own images, as in stock Keras and in PyTorch.
        """
        if not self.statistics or replica.num_replicas_in_sync == 1:
            return
        own = [tf.identity(variable.value) for variable in self.statistics]
        for variable, mean in zip(
            self.statistics, replica.all_reduce("mean", own), strict=True
        ):
            variable.assign(mean)

    def _apply(self, strategy, gradients, finite):
        """Updates the weights, in cross-replica context."""

        def update():
            # Not `optimizer.apply`, which would sum over the replicas once more.
            rate = self.optimizer.learning_rate
            for variable, gradient in zip(
                self.model.trainable_variables, gradients, strict=True
            ):
                strategy.extended.update(
                    variable.value,
                    lambda v, g: self.optimizer.update_step(g, v, rate),
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

    def _gradients(self, images, labels, weights):
        """Sums over the replica's images, one micro-batch after the other.

        Returns:
            Gradients of the sum of weighted losses and the sum of weights, both divided
            by the size of a micro-batch; each image's loss [b] and logits [b, classes].
        """
        if self.accumulation == 1:
            return self.forward_backward(images, labels, weights)
        parts = [self._divide(tensor) for tensor in (images, labels, weights)]
        gradients, count, losses, logits = self.forward_backward(*(p[0] for p in parts))
        all_losses = tf.TensorArray(tf.float32, self.accumulation).write(0, losses)
        all_logits = tf.TensorArray(tf.float32, self.accumulation).write(0, logits)

        def add(index, gradients, count, all_losses, all_logits):
            part = self.forward_backward(*(p[index] for p in parts))
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

    def _divide(self, tensor):
        size = tensor.shape[0] // self.accumulation
        return tf.reshape(tensor, [self.accumulation, size, *tensor.shape[1:]])

    def _forward_backward(self, images, labels, weights):
        with tf.GradientTape() as tape:
            logits = tf.cast(self.model(images, training=True), tf.float32)
            losses = self.loss_of(labels, logits)
            objective = self._weighted_sum(losses, weights)
        gradients = tape.gradient(
            objective,
            [v.value for v in self.model.trainable_variables],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return gradients, self._share(weights), losses, logits

    def _weighted_sum(self, losses, weights):
        total = tf.reduce_sum(losses * weights) / weights.shape[0]
        if self.model.losses:
            total += tf.add_n(self.model.losses) * self._share(weights)
        return total if self.scaler is None else total * self.scaler.scale

    def _share(self, weights):
        # Divided by the size, so that half precision holds the sum as it would a mean.
        return tf.reduce_sum(weights) / weights.shape[0]

    def _test_replica(self, batch):
        images, labels, weights = unpack(batch)
        logits = tf.cast(self.model(images, training=False), tf.float32)
        losses = self.loss_of(labels, logits)
        self._update_metrics(labels, logits, losses, weights)

    def _update_metrics(self, labels, logits, losses, weights):
        self.loss_metric.update_state(losses, weights)
        labels = dense_labels(labels, logits.shape[-1])
        for metric in self.step_metrics:
            metric.update_state(labels, logits, weights)

    # Steps, on all replicas.

    def make_train_function(self, force=False):
        """What Keras's `fit` calls for `steps_per_execution` steps."""
        if self.train_function is not None and not force:
            return
        strategy = self.distribute_strategy

        @tf.autograph.experimental.do_not_convert
        def step(batch, stop):
            results = strategy.run(self._train_replica, args=(batch, stop))
            return [strategy.experimental_local_results(r)[0] for r in results]

        @tf.function(reduce_retracing=True)
        def execute(iterator, steps, stop):
            for _ in tf.range(steps - 1):
                step(next(iterator), stop)
            norm, stop = step(next(iterator), stop)
            return {**self.get_metrics_result(), "gradient_norm": norm}, stop

        @tf.function(reduce_retracing=True, autograph=False)
        def execute_on(batch, stop):
            norm, stop = step(batch, stop)
            return {**self.get_metrics_result(), "gradient_norm": norm}, stop

        def train_function(iterator):
            steps = self._next_steps()
            if self.skip_steps >= self.epoch_step:
                return self.get_metrics_result()
            stop = tf.constant(float(self.stop_requested))
            if isinstance(iterator, ITERATORS):
                logs, stop = execute(iterator, tf.constant(steps), stop)
            else:
                logs, stop = execute_on(self._next_batch(iterator), stop)
            self.skip_steps = 0
            self.stopping = bool(stop > 0)
            return logs

        self.train_function = train_function

    def _next_batch(self, iterator):
        """A batch for `strategy.run`, also where Keras gives one of arrays."""
        batch = next(iterator)
        if isinstance(iterator, ITERATORS):
            return batch
        arrays = tuple(array for array in batch if array is not None)
        batch = (tf.data.Dataset.from_tensors(arrays),)
        batch = batch_dataset(batch, None, self._parts, shuffle=False)
        return next(
            iter(self.distribute_strategy.experimental_distribute_dataset(batch))
        )

    def _next_steps(self) -> int:
        """How many steps come next; counts them."""
        steps = self.steps_per_execution
        if self.steps_per_epoch is not None:
            steps = min(steps, self.steps_per_epoch - self.epoch_step)
        self.epoch_step += steps
        return steps

    def _next_test_steps(self) -> int:
        """How many batches of an evaluation come next; data may repeat for ever."""
        steps = self.steps_per_execution
        if self.test_steps_left is not None:
            steps = min(steps, self.test_steps_left)
            self.test_steps_left -= steps
        return steps

    def make_test_function(self, force=False):
        """What Keras's `evaluate` calls for `steps_per_execution` batches."""
        if self.test_function is not None and not force:
            return
        strategy = self.distribute_strategy

        @tf.function(reduce_retracing=True, autograph=False)
        def execute(batch):
            strategy.run(self._test_replica, args=(batch,))

        def test_function(iterator):
            for step in range(self._next_test_steps()):
                try:
                    batch = self._next_batch(iterator)
                except (StopIteration, tf.errors.OutOfRangeError):
                    if step == 0:
                        raise
                    break
                execute(batch)
            return self.get_metrics_result()

        self.test_function = test_function

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Nothing: all is built. Keras's own cannot see a PerReplica (keras#20585)."""

    # State.

    def _metric_variables(self):
        return [v for metric in self.metrics for v in metric.variables]

    def state(self) -> dict[str, keras.Variable]:
        """Every variable on which the next step depends, by its place."""
        metrics = self._metric_variables()
        known = {id(v) for v in metrics}
        groups = {
            # `variables`, unlike `weights`, has the seed generators too.
            "model": [v for v in self.model.variables if id(v) not in known],
            "optimizer": self.optimizer.variables,
            "scaler": [] if self.scaler is None else self.scaler.variables,
            "metric": metrics,
        }
        return {
            f"{name}_{place}": variable
            for name, group in groups.items()
            for place, variable in enumerate(group)
        }

    def state_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of the state. With several workers all must call it together."""
        state = self.state()
        totals = iter(self.metric_totals())
        return {
            name: keras.ops.convert_to_numpy(
                next(totals) if name.startswith("metric") else v.value
            )
            for name, v in state.items()
        }

    def set_state(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        """Puts back what `state_arrays` gave, on every replica."""
        for name, variable in self.state().items():
            variable.assign(arrays[name])
        self.metric_arrays = [arrays[n] for n in self.state() if n.startswith("metric")]
        self._separate_dropout_masks()

    def _separate_dropout_masks(self):
        """Gives each replica seeds of its own, counted from the first one's."""
        weights = {id(weight) for weight in self.model.weights}
        seeds = [v.value for v in self.model.variables if id(v) not in weights]
        if not seeds:
            return

        def separate(first):
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            for seed, value in zip(seeds, first, strict=True):
                offset = tf.cast(replica * MASK_OFFSET, value.dtype)
                seed.assign(value + tf.stack([offset, tf.zeros_like(offset)]))

        first = [tf.identity(seed) for seed in seeds]
        self.distribute_strategy.run(
            tf.function(separate, autograph=False), args=(first,)
        )

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Inside, the plain model holds the moving averages of its weights.

        Also inside another such block, as `evaluate` opens one.
        """
        if self.averages_swapped:
            yield
            return
        self._swap_averages()
        self.averages_swapped = True
        try:
            yield
        finally:
            self._swap_averages()
            self.averages_swapped = False

    def _swap_averages(self):
        for weight, average in average_pairs(
            self.optimizer, self.model.trainable_variables
        ):
            value = tf.identity(weight.value)
            weight.assign(average.value)
            average.assign(value)


def clip_by_global_norm(gradients, limit: float | None):
    """Shrinks all gradients by one factor, so that their global norm keeps a limit.

    Returns:
        The gradients, and their norm before (not finite where one of them is not).
    """
    norm = tf.linalg.global_norm(gradients)
    if limit is None:
        return gradients, norm
    factor = limit / tf.maximum(norm, limit)
    return [gradient * factor for gradient in gradients], norm
