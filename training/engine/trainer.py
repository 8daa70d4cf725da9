"""The trainer: what training on TensorFlow and on JAX have in common.

`Trainer` is a `keras.Model` around a plain functional model, which shares its weights
and is the one that gets saved. How a training step is computed is in
`tensorflow_trainer` and `jax_trainer`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from keras_vit.common.activity import activity
from keras_vit.typing import Array, Arrays, Inputs, Logits, Tensor

from .late_figures import LateFigures
from .losses import Labels, Loss, dense_labels, make_loss
from .optimizer import check_optimizer
from .progress import EvaluationStopped, Logs, Progress
from .rebatch import Batches, Data, batch_dataset
from .strategy import gather, worker_count


class Trainer(keras.Model):
    """Base class of `TensorFlowTrainer` and `JaxTrainer`.

    Create it, the model and the optimizer in the strategy's scope. `compile` and `fit`
    are then Keras's, with a `tf.data.Dataset` of global batches (images, labels) or
    (images, labels, weights), arrays, or a distributed dataset. `images` may be a
    dictionary of the model's inputs. Every image counts equally (or by its weight),
    also in an incomplete last batch.

    A subclass sets `distribute_strategy`, where Keras does not, and defines
    `make_train_function`, `make_test_function` and `state_arrays`; where workers share
    arrays, also `local_weights` and `without_others`.

    Args:
        model: The plain functional model; it returns logits [B, classes].
        loss: `"softmax"` or `"sigmoid"`; see `losses`. Or a function of labels and the
            model's outputs, giving float32 [B].
        label_smoothing: See `losses`.
        accumulation: Micro-batches into which each replica divides its images.
        clip_norm: Largest global norm of the global batch's gradient, or None.
        adjustment: Added to the logits in the loss, [classes]; see `losses`.

    Attributes:
        progress: The `Progress` of the run.
    """

    train_function: Any
    test_function: Any

    def __init__(
        self,
        model: keras.Model,
        loss: str | Loss = "softmax",
        label_smoothing: float = 0.0,
        accumulation: int = 1,
        clip_norm: float | None = None,
        adjustment: float | Array = 0.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss_of = (
            make_loss(loss, label_smoothing, adjustment)
            if isinstance(loss, str)
            else loss
        )
        self.accumulation = accumulation
        self.clip_norm = clip_norm
        self.loss_metric = keras.metrics.Mean("loss")
        self.progress = Progress()
        self.figures = LateFigures(self.progress)
        self._test_steps_left: int | None = None
        self._metric_arrays: list[Array] = []
        self._averages_swapped = False
        self.built = True

    def call(self, images: Inputs, training: bool | None = None) -> Logits:
        """The plain model's logits [B, classes]."""
        return self.model(images, training=training)

    def compile(
        self,
        optimizer: keras.optimizers.Optimizer,
        metrics: Sequence[str | keras.metrics.Metric] = ("accuracy",),
        steps_per_execution: int = 1,
        jit_compile: bool = False,
    ) -> None:
        """Configure the training.

        Args:
            optimizer: See `optimizer.make_optimizer`; or any Keras optimizer without
                clipping, averaging or accumulation of its own.
            metrics: `"accuracy"` or Keras metrics of labels [B, classes] and logits.
            steps_per_execution: Steps between two returns to Python.
            jit_compile: Whether to compile with XLA: on TensorFlow each replica's
                forward and backward pass; JAX compiles the whole step in any case.

        Raises:
            ValueError: The optimizer clips, averages or accumulates by itself.
        """
        check_optimizer(optimizer)
        self.step_metrics: list[keras.metrics.Metric] = [
            keras.metrics.CategoricalAccuracy("accuracy") if m == "accuracy" else m
            for m in metrics
        ]
        super().compile(
            optimizer,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
            auto_scale_loss=False,  # see `LossScaler`
        )
        optimizer.build(self.model.trainable_variables)

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The loss, then those of `compile`."""
        return [self.loss_metric, *getattr(self, "step_metrics", [])]

    def fit(
        self,
        x: Batches | Array | None = None,
        y: Labels | None = None,
        *,
        batch_size: int | None = None,
        validation_data: Any = None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Keras's `fit`; incomplete batches are padded with copies of weight 0.

        Inside an epoch `on_train_batch_end` gets the figures of the call before; see
        `LateFigures`.
        """
        shuffle = kwargs.pop("shuffle", True)
        data = (x, y, kwargs.pop("sample_weight", None))
        x = self._training_batches(data, batch_size, shuffle)
        if validation_data is not None:
            validation_data = self._test_batches(validation_data, batch_size)
        self.progress.steps_per_epoch = self._count_steps(
            x, kwargs.get("steps_per_epoch")
        )
        self.progress.alone = worker_count(self.distribute_strategy) == 1
        counter = keras.callbacks.LambdaCallback(on_epoch_begin=self._begin_epoch)
        kwargs["callbacks"] = [counter, *kwargs.get("callbacks", ())]
        return super().fit(x, validation_data=validation_data, shuffle=False, **kwargs)

    def evaluate(
        self,
        x: Batches | Array | None = None,
        y: Labels | None = None,
        *,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Keras's `evaluate` of the averaged weights; each image counts once.

        Raises:
            EvaluationStopped: `progress` says that the run must stop.
        """
        self._test_steps_left = kwargs.get("steps")
        if not kwargs.get("_use_cached_eval_dataset"):
            data = (x, y, kwargs.pop("sample_weight", None))
            x, y = self._test_batches(data, batch_size), None
        if not self.progress.skips_evaluation:
            with self.averaged_weights():
                results = super().evaluate(x, y, **kwargs)
        if self.progress.skips_evaluation:
            raise EvaluationStopped
        return results

    def _training_batches(
        self, data: Data, batch_size: int | None, shuffle: bool
    ) -> Batches:
        return batch_dataset(data, batch_size, self._parts, shuffle)

    @property
    def _parts(self) -> int:
        """Number of equal parts into which a training batch is divided."""
        replicas: int = self.distribute_strategy.num_replicas_in_sync
        return replicas * self.accumulation

    def _test_batches(self, data: Any, batch_size: int | None) -> Batches:
        data = data if isinstance(data, tuple) else (data,)
        replicas = self.distribute_strategy.num_replicas_in_sync
        return batch_dataset(data, batch_size, replicas, shuffle=False)

    def _count_steps(self, x: Batches, steps: int | None) -> int | None:
        """Steps of an epoch; None where they are unknown and need not be known."""
        if steps is None and isinstance(x, tf.data.Dataset):
            count = int(x.cardinality())
            steps = count if count > 0 else None
        if steps is None and self.steps_per_execution > 1:
            raise ValueError(
                "`steps_per_epoch` must be given with `steps_per_execution` above 1 "
                "where the dataset does not know its length. Received: "
                f"steps_per_execution={self.steps_per_execution}"
            )
        return steps

    def _begin_epoch(self, epoch: int, logs: Logs | None = None) -> None:
        self.progress.begin_epoch(epoch)
        self.figures.forget()
        if self.progress.step < self.progress.first_step:
            # The run resumes inside this epoch, and Keras has just reset the metrics.
            for variable, array in zip(
                self.metrics_variables, self._metric_arrays, strict=True
            ):
                variable.assign(array)

    def _next_test_steps(self) -> int:
        """Number of batches to evaluate next; the dataset may repeat without end."""
        self.stop_evaluating = self.progress.skips_evaluation
        steps: int = self.steps_per_execution
        if self._test_steps_left is not None:
            steps = min(steps, self._test_steps_left)
            self._test_steps_left -= steps
        return steps

    def _update_metrics(
        self, labels: Labels, logits: Logits, losses: Tensor, weights: Tensor
    ) -> None:
        self.loss_metric.update_state(losses, weights)
        labels = dense_labels(labels, logits.shape[-1])
        for metric in self.step_metrics:
            metric.update_state(labels, logits, weights)

    def state(self) -> dict[str, keras.Variable]:
        """Every variable on which the next step depends, by group and position."""
        known = {id(v) for v in self.metrics_variables}
        groups = {
            # `variables`, unlike `weights`, has the seed generators too.
            "model": [v for v in self.model.variables if id(v) not in known],
            "optimizer": self.optimizer.variables,
            **self._extra_state(),
            "metric": self.metrics_variables,
        }
        return {
            f"{name}_{position}": variable
            for name, group in groups.items()
            for position, variable in enumerate(group)
        }

    def _extra_state(self) -> dict[str, list[keras.Variable]]:
        """Groups of variables that only this kind of trainer has."""
        return {}

    def state_arrays(self) -> Arrays:
        """Copies of the state. With several workers all of them must call it."""
        raise NotImplementedError

    def set_state(self, arrays: Arrays) -> None:
        """Restore what `state_arrays` returned, on every replica."""
        for name, variable in self.state().items():
            variable.assign(arrays[name])
        self._metric_arrays = [
            arrays[name] for name in self.state() if name.startswith("metric")
        ]

    @contextlib.contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Context in which the plain model has the moving averages of its weights.

        It can be nested, as `evaluate` enters it too.
        """
        if self._averages_swapped:
            yield
            return
        self._swap_averages()
        self._averages_swapped = True
        try:
            yield
        finally:
            self._swap_averages()
            self._averages_swapped = False

    @contextlib.contextmanager
    def local_weights(self) -> Iterator[None]:
        """`averaged_weights`, in which this process needs no others to use the model.

        With several workers all of them must enter it. What is assigned in it is lost.
        """
        with self.averaged_weights():
            yield

    @contextlib.contextmanager
    def without_others(self) -> Iterator[None]:
        """Context for what the chief does alone, at the end; the model stays usable.

        With several workers all of them must enter it. As TensorFlow reports a worker
        that ends before the chief as crashed, they leave it together.
        """
        yield
        with activity("waiting for worker 0"):
            gather(self.distribute_strategy, 0)

    def _swap_averages(self) -> None:
        averages = getattr(self.optimizer, "averages", None)
        weights = self.model.trainable_variables if averages else ()
        for weight, average in zip(weights, averages or (), strict=True):
            value = ops.copy(weight.value)
            weight.assign(average.value)
            average.assign(value)


def clipping_factor(norm: Tensor, limit: float | None) -> Tensor:
    """The factor of all gradients that makes their global norm at most `limit`."""
    return 1.0 if limit is None else limit / ops.maximum(norm, limit)
