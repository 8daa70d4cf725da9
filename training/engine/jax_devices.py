"""The devices that JAX computes on, and what of a recipe JAX cannot do."""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ..errors import RecipeError
from ..recipe import Recipe


class JaxStrategy:
    """One device, or several with a piece of each batch, where JAX computes.

    It has what is asked of a `tf.distribute.Strategy`: one process feeds all devices,
    and JAX cuts the global batch.

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
        """Inside, variables are made on, and batches sent to, all devices."""
        if self.distribution is None:
            return contextlib.nullcontext()
        return self.distribution.scope()

    def distribute_datasets_from_function(self, pipeline: Callable[..., Any]):
        """The pipeline of global batches."""
        return pipeline(tf.distribute.InputContext())


def make_jax_strategy(recipe: Recipe) -> JaxStrategy:
    """The devices of a recipe.

    Args:
        recipe: `auto` and `mirrored` are all devices of the kind that JAX prefers.

    Raises:
        RecipeError: The recipe needs something that only TensorFlow does.
    """
    _refuse_tensorflow_only(recipe)
    tf.config.set_visible_devices([], "GPU")  # they are JAX's; tf.data needs none
    if recipe.strategy == "one_device" or len(keras.distribution.list_devices()) == 1:
        return JaxStrategy()
    return JaxStrategy(keras.distribution.DataParallel(auto_shard_dataset=False))


def _refuse_tensorflow_only(recipe: Recipe) -> None:
    """Raises RecipeError with the first thing that JAX cannot do."""
    refused = {
        "strategy": ("multi_worker", "tpu"),
        "precision": ("mixed_float16",),
        "jit_compile": ("off",),
    }
    for name, values in refused.items():
        value = getattr(recipe, name)
        if value in values:
            raise RecipeError(
                f"`{name}` must be something else with KERAS_BACKEND=jax, which trains "
                "in one process, on all devices it sees, compiled and without loss "
                f"scaling. Received: {value!r}"
            )
    if recipe.strategy == "auto" and "TF_CONFIG" in os.environ:
        raise RecipeError(
            "the environment variable TF_CONFIG must be absent with KERAS_BACKEND=jax, "
            "which trains in one process"
        )
