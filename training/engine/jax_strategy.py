"""The devices of a recipe on JAX, and the recipe's values that JAX does not support."""

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..errors import RecipeError, WorkerLost
from ..recipe import Recipe
from .cluster import parse_cluster, print_waiting
from .fully_sharded import FullySharded

# Seconds after which a worker that no longer answers is lost. JAX's own 100 and 300
# would keep the others, and `launch --restarts`, waiting.
HEARTBEAT_TIMEOUT = 20
# In the message of an error that another worker's end has caused: of Gloo between
# CPUs, of NCCL between GPUs, and of JAX's coordinator.
LOST_WORKER = ("Gloo", "NCCL", "coordination service", "heartbeat", "remote task")


# Functions import JAX themselves: training on TensorFlow does without.


class JaxStrategy:
    """Several devices that share each batch on JAX, of one process or of several.

    It has those methods of a `tf.distribute.Strategy` that training uses. Each process
    feeds its own devices.

    Args:
        distribution: A `keras.distribution.DataParallel` or `FullySharded`, or None for
            one device.

    Attributes:
        workers: Number of processes.
        worker: This process's number, from 0.
    """

    extended = None

    def __init__(self, distribution: Any = None):
        self.distribution = distribution
        self.workers = 1 if distribution is None else distribution.num_processes
        self.worker = 0
        if self.workers > 1:
            import jax

            self.worker = jax.process_index()

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
        """The dataset of this process's parts of the global batches."""
        return pipeline(
            tf.distribute.InputContext(self.workers, self.worker, self.workers)
        )

    def gather(self, number: int) -> list[int]:
        """Collect one number of 64 bits from each process; this waits for all."""
        from jax.experimental import multihost_utils

        halves = np.array([number], np.int64).view(np.uint32)  # JAX has no int64
        gathered = np.asarray(multihost_utils.process_allgather(halves))
        return gathered.reshape(self.workers, 2).view(np.int64)[:, 0].tolist()

    def any_worker(self, stop: bool) -> Any:
        """Whether any process is asked to stop, true or an array; this waits for none.

        Of one process nothing is asked: see `Progress.alone`.
        """
        if self.workers == 1:
            return False
        flags, add = _sum_over_devices(stop)
        return add(flags)


@functools.cache
def _sum_over_devices(stop: bool) -> tuple[Any, Callable[[Any], Any]]:
    """A number for each device of this process, and how to add up those of all."""
    import jax

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("device",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    places = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
    own = np.full(jax.local_device_count(), stop, np.int32)
    flags = jax.make_array_from_process_local_data(places, own)
    return flags, jax.jit(jax.numpy.sum, out_shardings=everywhere)


def whole_array(value: Any) -> np.ndarray[Any, Any]:
    """A copy of an array that is divided among the devices of all processes.

    All processes must call it.
    """
    from jax.experimental import multihost_utils

    if value.is_fully_addressable or value.is_fully_replicated:
        return np.array(value)
    return np.asarray(multihost_utils.process_allgather(value, tiled=True))


def make_jax_strategy(recipe: Recipe) -> JaxStrategy:
    """The strategy of a recipe on JAX.

    Args:
        recipe: `auto`, `mirrored` and `fsdp` use all devices of JAX's default platform;
            with `TF_CONFIG`, or `multi_worker`, those of all processes.

    Raises:
        RecipeError: The recipe needs something that only TensorFlow supports, or the
            other processes cannot be reached.
    """
    _refuse_tensorflow_only(recipe)
    tf.config.set_visible_devices([], "GPU")  # they are JAX's; tf.data needs none
    _join_workers(recipe)
    if recipe.strategy == "fsdp":
        return JaxStrategy(FullySharded())
    several = len(keras.distribution.list_devices()) > 1
    if recipe.strategy == "one_device" or not several:
        return JaxStrategy()
    return JaxStrategy(keras.distribution.DataParallel(auto_shard_dataset=False))


def _join_workers(recipe: Recipe) -> None:
    """Connect this process with the run's others, if it has any."""
    import jax

    tf_config = os.environ.get("TF_CONFIG")
    asked = recipe.strategy == "multi_worker" or tf_config is not None
    alone = recipe.strategy in ("one_device", "mirrored")
    if not asked or alone or jax.distributed.is_initialized():
        return
    known: dict[str, Any] = {}
    if tf_config is not None:
        index, addresses = parse_cluster(tf_config)
        print_waiting(index, len(addresses))
        known["coordinator_address"] = addresses[0]
        known["num_processes"], known["process_id"] = len(addresses), index
    # On CPUs, Gloo confuses the messages of programs that run at the same time.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        jax.distributed.initialize(
            **known,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=HEARTBEAT_TIMEOUT,
        )
    except (ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise RecipeError(
            "the environment variable TF_CONFIG must name this run's workers, except "
            "where JAX knows them, as on a Cloud TPU and in a Slurm job. "
            f"Received: {tf_config!r}: {reason}"
        ) from None


def is_lost_jax_worker(error: Exception) -> bool:
    """Whether an error came because another process of the run has ended."""
    import jax

    return jax.distributed.is_initialized() and any(
        word in str(error) for word in LOST_WORKER
    )


def end_without_others() -> None:
    """Do not wait for lost processes when this one ends: JAX would then abort it."""
    atexit.register(_end)  # before JAX's own function, which it has registered earlier


def _end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(WorkerLost.exit_status)


def _refuse_tensorflow_only(recipe: Recipe) -> None:
    """Raise RecipeError for the first value that JAX does not support."""
    refused = {
        "strategy": ("tpu",),
        "communication": ("nccl", "ring"),
        "precision": ("mixed_float16",),
        "jit_compile": ("off",),
    }
    for name, values in refused.items():
        value = getattr(recipe, name)
        if value in values:
            raise RecipeError(
                f"`{name}` must have another value with KERAS_BACKEND=jax, which "
                "uses TPUs with `auto`, chooses NCCL between GPUs, and trains compiled "
                f"and without loss scaling. Received: {value!r}"
            )
