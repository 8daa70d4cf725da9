"""A model's outputs for many images, computed on all devices of its strategy."""

import collections
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit import ImagePreprocessing
from keras_vit.base import ImageModel
from keras_vit.typing import Array, Inputs, Tensor

from ..data.labeled_images import Split
from ..data.pipeline import Shard, evaluation_batches
from ..data.read_errors import read_errors
from ..errors import RunError
from .jax_strategy import AnyStrategy, JaxStrategy
from .rebatch import Batches
from .strategy import worker_count
from .traced_once import TracedOnce

BATCH_SIZE = 256
# Batches on the devices before the first one is waited for: the next is prepared while
# one is computed.
IN_FLIGHT = 2


class ForwardPass:
    """The forward pass of evaluation, compiled once.

    It reads the weights that the model has at that moment. The devices share each
    batch, and the last one is padded, so that all have one static size. Of several
    workers, each computes all outputs, with its own devices.

    Args:
        network: A functional model with one output.
        strategy: The strategy in whose scope its weights were created; by default that
            of `strategy_of`.
        batch_size: Images in a batch, rounded up to a multiple of the devices.
    """

    def __init__(
        self,
        network: keras.Model,
        strategy: AnyStrategy | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        self.network = network
        strategy = strategy or strategy_of(network)
        if isinstance(strategy, JaxStrategy):
            strategy = strategy.on_this_host()
        self.strategy: Any = strategy  # of the backend in use
        self.workers = worker_count(self.strategy)
        self.devices = self.strategy.num_replicas_in_sync // self.workers
        self.batch_size = self.devices * math.ceil(batch_size / self.devices)
        self._step = self._jax_step() if _on_jax() else self._tensorflow_step()
        # The split that was read last, and its batches on the devices: to prepare them
        # takes longer than to compute the outputs of a few images.
        self._read: tuple[Split, ImagePreprocessing] | None = None
        self._batches: Batches | None = None

    def __call__(self, inputs: Inputs) -> Array:
        """The outputs for an array [n, ...], or for a dictionary of them: float32."""
        count = len(keras.tree.flatten(inputs)[0])
        batches = self._distributed(lambda shard: self._array_data(inputs, shard))
        return np.concatenate(list(self._outputs(batches, count)))

    def of_split(
        self, split: Split, preprocessing: ImagePreprocessing
    ) -> Iterator[Array]:
        """Yield the outputs for one batch of a split after the other: float32 [b, ...].

        Raises:
            DataError: An image cannot be read.
        """
        if self._read is None or not _same(self._read, (split, preprocessing)):
            self._read = split, preprocessing
            self._batches = self._distributed(
                lambda shard: evaluation_batches(
                    split, self.batch_size, preprocessing, shard
                )
            )
        with read_errors(split):
            yield from self._outputs(self._batches, len(split))

    def _array_data(self, inputs: Inputs, shard: Shard) -> tf.data.Dataset:
        """A shard's batches of arrays, as `evaluation_batches` has those of images."""
        count = len(keras.tree.flatten(inputs)[0])
        rows = np.arange(self.batch_size * math.ceil(count / self.batch_size))
        rows = rows.reshape(
            -1, shard.count, shard.replicas, self.batch_size // shard.pieces
        )
        rows = rows[:, shard.index].reshape(-1, rows.shape[-1])
        batches = keras.tree.map_structure(
            lambda array: np.asarray(array)[np.minimum(rows, count - 1)], inputs
        )
        with tf.device("CPU"):
            return tf.data.Dataset.from_tensor_slices((batches,))

    def _distributed(self, data: Callable[[Shard], tf.data.Dataset]) -> Batches:
        """Each process's batches; on JAX, all of them."""
        if _on_jax():
            return data(Shard())

        def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
            hosts = context.num_input_pipelines if self.workers == 1 else 1
            index = context.input_pipeline_id if self.workers == 1 else 0
            # Repeated, because the replicas of a dataset that ends have to agree on
            # that.
            return data(Shard(index, hosts, self.devices // hosts)).repeat()

        return self.strategy.distribute_datasets_from_function(pipeline)

    def _outputs(self, batches: Batches, count: int) -> Iterator[Array]:
        """The first `count` outputs, batch by batch."""
        computed = self._jax_outputs if _on_jax() else self._tensorflow_outputs
        steps = math.ceil(count / self.batch_size)
        for parts in _delayed(computed(batches, steps)):
            batch = np.concatenate([np.asarray(part) for part in parts])[:count]
            count -= len(batch)
            yield batch

    def _tensorflow_outputs(
        self, batches: Batches, steps: int
    ) -> Iterator[Sequence[Tensor]]:
        """Each step's outputs, one tensor for each replica of this process."""
        iterator = iter(batches)
        for _ in range(steps):
            yield self.strategy.experimental_local_results(self._step(iterator))

    def _tensorflow_step(self) -> Callable[..., Tensor]:
        # Where XLA helps training (see `training.architectures.compiling.compiles`).
        compiled = bool(tf.config.list_physical_devices("GPU"))

        forward = TracedOnce(stateless_forward(self.network), compiled)

        def on_replica(inputs: Inputs) -> tf.Tensor:
            return forward(*weights_of(self.network), inputs)

        def step(iterator: Iterator[tuple[Any, ...]]) -> Tensor:
            inputs, *_ = next(iterator)
            return self.strategy.run(on_replica, args=(inputs,))

        traced: Callable[..., Tensor] = tf.function(step, autograph=False)
        return traced

    def _jax_outputs(self, batches: Batches, steps: int) -> Iterator[Sequence[Tensor]]:
        """Each step's outputs, in a list of one array."""
        weights = weights_of(self.network)
        for inputs, *_ in batches.take(steps).as_numpy_iterator():
            with self.strategy.scope():
                inputs = keras.tree.map_structure(self._placed, inputs)
                outputs = self._step(*weights, inputs)
            yield [outputs]

    def _placed(self, array: Array) -> Tensor:
        """An array on the devices that share it."""
        import jax

        distribution = self.strategy.distribution
        if distribution is None:
            return jax.device_put(array)
        return jax.device_put(
            array, distribution.get_data_layout(array.shape).backend_layout
        )

    def _jax_step(self) -> Callable[..., Tensor]:
        import jax

        return jax.jit(stateless_forward(self.network))


def stateless_forward(network: keras.Model) -> Callable[..., Tensor]:
    """The forward pass of evaluation as a function of weights and inputs.

    Returns:
        A function of the two lists of `weights_of`, and of inputs [b, ...]; it returns
        the network's output in float32.
    """

    def forward(
        trainable: list[Tensor], non_trainable: list[Tensor], inputs: Inputs
    ) -> Tensor:
        outputs, _ = network.stateless_call(
            trainable, non_trainable, inputs, training=False
        )
        return keras.ops.cast(outputs, "float32")

    return forward


def weights_of(network: keras.Model) -> list[list[Tensor]]:
    """The values of the trainable variables, and those of all others."""
    both = network.trainable_variables, network.non_trainable_variables
    return [[variable.value for variable in variables] for variables in both]


def preprocessing_of(model: ImageModel) -> ImagePreprocessing:
    """The layer by which a model reads pixels from 0 to 255.

    Raises:
        RunError: It has none.
    """
    if model.preprocessing is None:
        raise RunError(
            "the model must read pixels from 0 to 255, by a layer of its own. "
            f"Received: {model.name} with include_preprocessing=False"
        )
    return model.preprocessing


def even_batches(count: int, most: int = BATCH_SIZE) -> int:
    """The size of batches that are at most `most`, of which none is mostly padding."""
    return math.ceil(count / math.ceil(count / most))


def strategy_of(model: keras.Model) -> AnyStrategy:
    """The strategy that a model knows; on JAX that of the current distribution."""
    if _on_jax():
        return JaxStrategy(keras.distribution.distribution())
    return model.distribute_strategy


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Whether two tuples hold the same objects."""
    return all(a is b for a, b in zip(one, other, strict=True))


def _on_jax() -> bool:
    return bool(keras.backend.backend() == "jax")


def _delayed(outputs: Iterator[Sequence[Tensor]]) -> Iterator[Sequence[Tensor]]:
    """The same elements, each after `IN_FLIGHT` further ones have been begun."""
    begun: collections.deque[Sequence[Tensor]] = collections.deque()
    for element in outputs:
        begun.append(element)
        if len(begun) > IN_FLIGHT:
            yield begun.popleft()
    yield from begun
