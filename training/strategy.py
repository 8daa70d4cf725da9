"""Where the computation runs: one device, several, several machines, a TPU."""

import json
import os
from typing import Any

import tensorflow as tf

from .errors import RecipeError
from .recipe import Recipe


def make_strategy(recipe: Recipe) -> tf.distribute.Strategy:
    """The `tf.distribute` strategy of a recipe; call it before anything is computed.

    Args:
        recipe: `strategy`, `tpu`, `batch_size` and `accumulation` are used. `auto` is
            multi_worker where `TF_CONFIG` says so, mirrored where there are several
            GPUs, else one_device (the first GPU, else the CPU). Without GPUs, mirrored
            takes the logical CPU devices.

    Returns:
        The strategy.

    Raises:
        RecipeError: `TF_CONFIG` is malformed, a TPU cannot be reached, or the replicas
            and micro-batches do not divide the batch.
    """
    strategy = _make(recipe)
    check_batch_size(strategy, recipe)
    return strategy


def _make(recipe: Recipe) -> tf.distribute.Strategy:
    name = recipe.strategy
    if name == "tpu":
        return _tpu_strategy(recipe.tpu)
    if name == "multi_worker" or (name == "auto" and "TF_CONFIG" in os.environ):
        cluster_task(os.environ.get("TF_CONFIG"))
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus = tf.config.list_logical_devices("GPU")
    if name == "one_device" or (name == "auto" and len(gpus) < 2):
        return tf.distribute.get_strategy()
    devices = gpus or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def _tpu_strategy(name: str | None) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(name or "")
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, tf.errors.OpError) as error:
        reason = str(error).strip().split("\n")[0]
        raise RecipeError(
            "`tpu` must be the name of a Cloud TPU, or `local` on a TPU VM. "
            f"Received: {name!r}: {reason}"
        ) from None
    return tf.distribute.TPUStrategy(resolver)


def cluster_task(tf_config: str | None) -> tuple[int, int]:
    """The number of this worker, and how many there are, as `TF_CONFIG` says.

    Raises:
        RecipeError: It is absent or malformed.
    """
    try:
        config: Any = json.loads(tf_config or "")
        workers, task = config["cluster"]["worker"], config["task"]
        index = task["index"]
        addresses = isinstance(workers, list) and all(":" in w for w in workers)
        ok = (
            addresses
            and isinstance(index, int)
            and 0 <= index < len(workers)
            and task["type"] == "worker"
            and set(config["cluster"]) == {"worker"}
        )
    except (ValueError, KeyError, TypeError):
        ok = False
    if not ok:
        raise RecipeError(
            "the environment variable TF_CONFIG must be JSON such as "
            '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, '
            '"task": {"type": "worker", "index": 0}}, with only workers and an index '
            f"of one of them. Received: {tf_config!r}"
        )
    return index, len(workers)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one that writes files: worker 0."""
    resolver = strategy.cluster_resolver
    return resolver is None or not resolver.task_type or resolver.task_id == 0


def check_batch_size(strategy: tf.distribute.Strategy, recipe: Recipe) -> None:
    """Raises RecipeError unless all replicas and micro-batches get equally much."""
    replicas = strategy.num_replicas_in_sync
    if recipe.batch_size % (replicas * recipe.accumulation):
        raise RecipeError(
            "`batch_size` must be a multiple of the number of replicas times "
            f"`accumulation`. Received: batch_size={recipe.batch_size}, {replicas} "
            f"replicas, accumulation={recipe.accumulation}"
        )
