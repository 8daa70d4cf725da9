"""The devices of a recipe on JAX, and the recipe's values that JAX does not support."""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ..errors import RecipeError
from ..recipe import Recipe


class JaxStrategy:
    """Data parallelism on JAX: one device, or several that share each batch.

    It has those methods of a `tf.distribute.Strategy` that training uses. One process
    feeds all devices, and JAX divides the global batch.

    Args:
        distribution: A `keras.distribution.DataParallel`, or None for one device.
    """

    cluster_resolver = None
    extended = None

    def __init__(self, distribution: keras.distribution.DataParallel | None = None):
        self.distribution = distribution

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of devices."""
        return self.distribution.num_model_replicas if self.distribution else 1

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Context in which variables and batches are placed on all devices."""
        if self.distribution is None:
            return contextlib.nullcontext()
        return self.distribution.scope()

    def distribute_datasets_from_function(self, pipeline: Callable[..., Any]):
        """The dataset of global batches."""
        return pipeline(tf.distribute.InputContext())


def make_jax_strategy(recipe: Recipe) -> JaxStrategy:
    """The strategy of a recipe on JAX.

    Args:
        recipe: `auto` and `mirrored` use all devices of JAX's default platform.

    Raises:
        RecipeError: The recipe needs something that only TensorFlow supports.
    """
    _refuse_tensorflow_only(recipe)
    tf.config.set_visible_devices([], "GPU")  # they are JAX's; tf.data needs none
    if recipe.strategy == "one_device" or len(keras.distribution.list_devices()) == 1:
        return JaxStrategy()
    return JaxStrategy(keras.distribution.DataParallel(auto_shard_dataset=False))


def _refuse_tensorflow_only(recipe: Recipe) -> None:
    """Raise RecipeError for the first value that JAX does not support."""
    refused = {
        "strategy": ("multi_worker", "tpu"),
        "precision": ("mixed_float16",),
        "jit_compile": ("off",),
    }
    for name, values in refused.items():
        value = getattr(recipe, name)
        if value in values:
            raise RecipeError(
                f"`{name}` must have another value with KERAS_BACKEND=jax, which "
                "trains in one process, on all visible devices, compiled and without "
                f"loss scaling. Received: {value!r}"
            )
    if recipe.strategy == "auto" and "TF_CONFIG" in os.environ:
        raise RecipeError(
            "the environment variable TF_CONFIG must not be set with "
            "KERAS_BACKEND=jax, which trains in one process"
        )
