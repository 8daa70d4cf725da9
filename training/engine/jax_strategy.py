"""The devices of a recipe on JAX, and the recipe's values that JAX does not support."""

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from keras_vit.typing import Array

from ..errors import RecipeError, WorkerLost
from ..recipe import Recipe
from .cluster import parse_cluster, print_waiting
from .fully_sharded import FullySharded
from .gpus import VISIBLE
from .job import Job, this_job

if TYPE_CHECKING:
    import jax

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

    def __init__(self, distribution: Any = None) -> None:
        self.distribution = distribution
        self.workers, self.worker = 1, 0
        if distribution is not None:
            import jax

            devices = distribution.device_mesh.backend_mesh.devices.flat
            self.workers = len({device.process_index for device in devices})
            self.worker = jax.process_index() if self.workers > 1 else 0

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of devices."""
        return self.distribution.num_model_replicas if self.distribution else 1

    def on_this_host(self) -> "JaxStrategy":
        """The strategy of what this process computes without the others."""
        return self if self.workers == 1 else _data_parallel(_local_devices())

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Context in which variables and batches are placed on all devices."""
        if self.distribution is None:
            return contextlib.nullcontext()
        scope: contextlib.AbstractContextManager[None] = self.distribution.scope()
        return scope

    def distribute_datasets_from_function(
        self, pipeline: Callable[[tf.distribute.InputContext], tf.data.Dataset]
    ) -> tf.data.Dataset:
        """The dataset of this process's parts of the global batches."""
        return pipeline(
            tf.distribute.InputContext(self.workers, self.worker, self.workers)
        )

    def gather(self, number: int) -> list[int]:
        """Collect one number of 64 bits from each process; this waits for all."""
        from jax.experimental import multihost_utils

        halves = np.array([number], np.int64).view(np.uint32)  # JAX has no int64
        gathered = np.asarray(multihost_utils.process_allgather(halves))
        numbers: list[int] = (
            gathered.reshape(self.workers, 2).view(np.int64)[:, 0].tolist()
        )
        return numbers

    def any_worker(self, stop: bool) -> "bool | jax.Array":
        """Whether any process is asked to stop, true or an array; this waits for none.

        A single process is not asked: see `Progress.alone`.
        """
        if self.workers == 1:
            return False
        flags, add = _sum_over_devices(stop)
        return add(flags)


# The strategies of both backends, which have the methods of a `JaxStrategy`.
AnyStrategy: TypeAlias = tf.distribute.Strategy | JaxStrategy


@functools.cache
def _sum_over_devices(
    stop: bool,
) -> "tuple[jax.Array, Callable[[jax.Array], jax.Array]]":
    """A number for each device of this process, and how to add up those of all."""
    import jax

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("device",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    places = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
    own = np.full(jax.local_device_count(), stop, np.int32)
    flags = jax.make_array_from_process_local_data(places, own)
    return flags, jax.jit(jax.numpy.sum, out_shardings=everywhere)


def whole_array(value: "jax.Array") -> Array:
    """A copy of an array that is divided among the devices of all processes.

    All processes must call it.
    """
    from jax.experimental import multihost_utils

    if value.is_fully_addressable or value.is_fully_replicated:
        return np.array(value)
    return np.asarray(multihost_utils.process_allgather(value, tiled=True))


def make_jax_strategy(recipe: Recipe, alone: bool = False) -> JaxStrategy:
    """The strategy of a recipe on JAX.

    Args:
        recipe: `auto`, `multi_worker` and `fsdp` use all devices of JAX's default
            platform, of all processes of the run: those of `TF_CONFIG` or of
            `this_job`. `mirrored` uses those of this process.
        alone: Whether this process waits for no other one, whatever the recipe says.

    Raises:
        RecipeError: The recipe needs something that only TensorFlow supports, the
            other processes cannot be reached, or the recipe leaves them out.
    """
    _refuse_tensorflow_only(recipe)
    _hide_gpus_from_tensorflow()
    if not alone:
        _join_workers(recipe)
    local = alone or recipe.strategy == "mirrored"
    devices = _local_devices() if local else keras.distribution.list_devices()
    if recipe.strategy == "fsdp":
        strategy = JaxStrategy(FullySharded(devices))
    elif recipe.strategy == "one_device" or len(devices) == 1:
        strategy = JaxStrategy()
    else:
        strategy = _data_parallel(devices)
    if not alone and strategy.workers == 1:
        import jax

        _refuse_others(recipe, jax.process_count())
    return strategy


def _hide_gpus_from_tensorflow() -> None:
    """Leave the GPUs to JAX; tf.data needs none."""
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:  # TensorFlow has started
        gpus = tf.config.get_visible_devices("GPU")
        raise RecipeError(
            "with KERAS_BACKEND=jax TensorFlow must leave the GPUs to JAX: call "
            '`tf.config.set_visible_devices([], "GPU")` before TensorFlow is used. '
            f"Received: TensorFlow has started with {len(gpus)}"
        ) from None


def _data_parallel(devices: list[str]) -> JaxStrategy:
    return JaxStrategy(
        keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    )


def _local_devices() -> list[str]:
    """The devices of this process, named as `keras.distribution.list_devices` does."""
    import jax

    return [f"{device.platform}:{device.id}" for device in jax.local_devices()]


def _join_workers(recipe: Recipe) -> None:
    """Connect this process with the run's others, if it has any."""
    import jax

    tf_config, job = os.environ.get("TF_CONFIG"), this_job()
    if recipe.strategy in ("one_device", "mirrored"):
        _refuse_others(recipe, job.processes)
        return
    asked = recipe.strategy == "multi_worker" or tf_config is not None
    if not (asked or job.processes > 1) or jax.distributed.is_initialized():
        return
    known = _workers_of(job) if tf_config is None else _workers_in(tf_config)
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
            "where JAX knows them, as on a Cloud TPU and in a Slurm job; with mpirun, "
            "JAX_COORDINATOR_ADDRESS can be the host of process 0 and a free port. "
            f"Received: TF_CONFIG={tf_config!r}, {job.processes} processes of "
            f"{job.launcher}: {reason}"
        ) from None


def _workers_in(tf_config: str) -> dict[str, Any]:
    """What `jax.distributed.initialize` has to know of the workers in `TF_CONFIG`."""
    index, addresses = parse_cluster(tf_config)
    print_waiting(index, len(addresses))
    return {
        "coordinator_address": addresses[0],
        "num_processes": len(addresses),
        "process_id": index,
        # Of a job in which they were started, JAX would take one GPU for each.
        "cluster_detection_method": "deactivate",
    }


def _workers_of(job: Job) -> dict[str, Any]:
    """What `jax.distributed.initialize` does not find out, or not right, of a job."""
    if job.process is None:
        return {}
    print_waiting(job.process, job.processes)
    known: dict[str, Any] = {
        "num_processes": job.processes,
        "process_id": job.process,
    }
    if "JAX_LOCAL_DEVICE_IDS" not in os.environ:
        # Of the GPUs that several processes see, each has the one of its number. JAX
        # would also take one of all, where a process is alone (jax#16788), and a second
        # where the launcher shows it only its own (jax#23452).
        one = "," not in os.environ.get(VISIBLE, ",")
        number = job.number_on_node
        known["local_device_ids"] = [] if number is None or one else [number]
    return known


def _refuse_others(recipe: Recipe, processes: int) -> None:
    """Raise RecipeError where this process, which trains alone, belongs to several."""
    if processes > 1:
        raise RecipeError(
            "`strategy` must be auto, multi_worker or fsdp, before JAX is used for "
            "anything else, where several processes train together: each of them "
            "would write the run's folder. Start independent runs as jobs of one "
            f"process, such as srun --ntasks=1. Received: {recipe.strategy!r}, "
            f"{processes} processes"
        )


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
