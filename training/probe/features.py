"""Frozen features: what a model's classifier reads, for all images of a split."""

import collections
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.base import ImageModel

from ..data.labeled_images import Split
from ..data.pipeline import Shard, evaluation_batches
from ..data.read_errors import read_errors
from ..engine.jax_strategy import JaxStrategy
from ..engine.strategy import worker_count
from ..errors import RunError
from ..evaluate import BATCH_SIZE

# Batches on the device before the first one is waited for: the next is prepared while
# one is computed.
IN_FLIGHT = 2


def frozen_model(model: Any) -> keras.Model:
    """The model without its classifier, with which it shares all weights.

    Args:
        model: A `keras_vit.VisionTransformer`, `ResNet` or `ImageClassifier`, with or
            without a classifier.

    Returns:
        A functional model from the same images to features [B, D]: the input of the
        classifier, after the tanh layer of `representation_size` where there is one
        (big_vision's `pre_logits`).

    Raises:
        RunError: The model is none of these, or it does not pool its tokens.
    """
    if not isinstance(model, ImageModel):
        raise RunError(
            "the model must be a VisionTransformer, ResNet or ImageClassifier of "
            f"keras_vit. Received: a {type(model).__name__}"
        )
    output = model.get_layer("head").input if model.classes else model.output
    if len(output.shape) != 2:
        raise RunError(
            "the model must have pooled features [B, D], as with pooling='token', "
            f"'avg' or 'map'. Received: pooling={model.pooling!r}, whose output is "
            f"{output.shape}"
        )
    return keras.Model(model.input, output, name=f"{model.name}_frozen")


class FeatureExtractor:
    """Computes the frozen features of splits, compiled once.

    It reads the weights that the model has at that moment. On several devices they
    share each batch; of several workers, each computes all features.

    Args:
        model: A model that reads pixels from 0 to 255; see `frozen_model`.
        strategy: The strategy in whose scope the model was created; by default the one
            that the model knows, on JAX the current distribution.
        batch_size: Images in a batch, rounded up to a multiple of the devices.

    Attributes:
        network: The `frozen_model`.
        width: D, the number of features.

    Raises:
        RunError: See `frozen_model`.
    """

    def __init__(
        self,
        model: Any,
        strategy: Any = None,
        batch_size: int = BATCH_SIZE,
    ):
        self.model = model
        self.network = frozen_model(model)
        self.width = int(self.network.output_shape[-1])
        self.strategy: Any = strategy or _strategy_of(model)
        workers = worker_count(self.strategy)
        self.devices = self.strategy.num_replicas_in_sync // workers
        self.batch_size = self.devices * math.ceil(batch_size / self.devices)
        self._step = self._jax_step() if _on_jax() else self._tensorflow_step()

    def __call__(self, split: Split) -> np.ndarray[Any, Any]:
        """The features of all images: float32 [n, D]."""
        return np.concatenate(list(self.batches(split)))

    def batches(self, split: Split) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the features of one batch after the other: float32 [b, D]."""
        computed = self._jax_outputs if _on_jax() else self._tensorflow_outputs
        left = len(split)
        with read_errors(split):
            for parts in _delayed(computed(split, math.ceil(left / self.batch_size))):
                batch = np.concatenate([np.asarray(part) for part in parts])[:left]
                left -= len(batch)  # the last batch is padded
                yield batch

    def _data(self, split: Split) -> tf.data.Dataset:
        """Batches of (images, labels, weights), one for each device in turn."""
        return evaluation_batches(
            split, self.batch_size, self.model.preprocessing, Shard(0, 1, self.devices)
        )

    def _tensorflow_outputs(self, split: Split, steps: int) -> Iterator[Any]:
        """Each step's features, one tensor for each replica of this process."""
        # Repeated, because the replicas of a dataset that ends have to agree on that.
        data = self.strategy.distribute_datasets_from_function(
            lambda _: self._data(split).repeat()
        )
        iterator = iter(data)
        for _ in range(steps):
            yield self.strategy.experimental_local_results(self._step(iterator))

    def _tensorflow_step(self) -> Callable[..., Any]:
        # Where XLA helps training (see `training.model.compiles`).
        compiled = bool(tf.config.list_physical_devices("GPU"))

        @tf.function(autograph=False, jit_compile=compiled)
        def forward(images):
            return tf.cast(self.network(images, training=False), tf.float32)

        @tf.function(autograph=False)
        def step(iterator):
            images, *_ = next(iterator)
            return self.strategy.run(forward, args=(images,))

        return step

    def _jax_outputs(self, split: Split, steps: int) -> Iterator[Any]:
        """Each step's features, in a list of one array."""
        import jax

        network = self.network
        weights = [
            [variable.value for variable in variables]
            for variables in (
                network.trainable_variables,
                network.non_trainable_variables,
            )
        ]
        place = None
        distribution = self.strategy.distribution
        if distribution is not None and self.strategy.workers == 1:
            shape = (self.batch_size, *network.input_shape[1:])
            place = distribution.get_data_layout(shape).backend_layout
        data = self._data(split).unbatch().batch(self.batch_size)
        for images, *_ in data.take(steps).as_numpy_iterator():
            yield [self._step(*weights, jax.device_put(images, place))]

    def _jax_step(self) -> Callable[..., Any]:
        import jax

        @jax.jit
        def step(trainable, non_trainable, images):
            features, _ = self.network.stateless_call(
                trainable, non_trainable, images, training=False
            )
            return features.astype("float32")

        return step


def _on_jax() -> bool:
    return keras.backend.backend() == "jax"


def _strategy_of(model: Any) -> Any:
    if _on_jax():
        return JaxStrategy(keras.distribution.distribution())
    return model.distribute_strategy


def _delayed(outputs: Iterator[Any]) -> Iterator[Any]:
    """The same elements, each after `IN_FLIGHT` further ones have been begun."""
    begun: collections.deque[Any] = collections.deque()
    for element in outputs:
        begun.append(element)
        if len(begun) > IN_FLIGHT:
            yield begun.popleft()
    yield from begun
