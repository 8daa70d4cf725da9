"""Distribution strategies: one device, several, several machines, or a TPU."""

import contextlib
import os
from collections.abc import Iterator

import keras
import tensorflow as tf

from ..data.mixup import check_pairs
from ..errors import RecipeError, RunError, WorkerLost, require
from ..recipe import DataConfig, Recipe, Strategy
from .cluster import parse_cluster, print_waiting
from .determinism import ask_for_determinism
from .jax_strategy import (
    AnyStrategy,
    JaxStrategy,
    end_without_others,
    is_lost_jax_worker,
    make_jax_strategy,
)
from .job import launched_job
from .sigterm import keep_handler
from .tpu_runtime import check_variables

# What TensorFlow raises on the remaining workers when one ends.
LOST_WORKER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


def make_strategy(recipe: Recipe) -> AnyStrategy:
    """Make the `tf.distribute` strategy of a recipe, before anything is computed.

    Args:
        recipe: `strategy`, `tpu`, `batch_size` and `accumulation` are used. `auto` is
            multi_worker where `TF_CONFIG` is set, mirrored where there are several
            GPUs, else one_device (the first GPU, else the CPU). Without GPUs, mirrored
            uses the logical CPU devices. fsdp needs JAX, for which see
            `make_jax_strategy`.

    Returns:
        The strategy; with KERAS_BACKEND=jax a `JaxStrategy`.

    Raises:
        RecipeError: `TF_CONFIG` is malformed, the workers have different numbers of
            GPUs, a TPU cannot be reached, or the replicas and micro-batches do not
            divide the batch.
    """
    strategy = open_strategy(recipe)
    check_batch_size(strategy, recipe)
    return strategy


def open_strategy(recipe: Recipe, alone: bool = False) -> AnyStrategy:
    """`make_strategy`, whatever `batch_size` is.

    Args:
        recipe: See `make_strategy`.
        alone: Whether this process waits for no other one, as in evaluation.
    """
    if keras.backend.backend() == "jax":
        ask_for_determinism(recipe)
        return make_jax_strategy(recipe, alone)
    if not alone:
        _refuse_others()
    return _make_tensorflow_strategy(recipe)


def evaluation_strategy(
    name: Strategy = "auto", tpu: str | None = None, deterministic: bool = False
) -> AnyStrategy:
    """The devices of a command that does not train; it waits for no other worker.

    Args:
        name: The recipe's `strategy`; `auto` and `multi_worker` are all GPUs of this
            machine, on JAX its TPU too, else one device.
        tpu: The recipe's `tpu`.
        deterministic: Whether a deterministic run follows in this process.

    Raises:
        RecipeError: See `make_strategy`.
    """
    if name in ("auto", "multi_worker"):
        on_jax = keras.backend.backend() == "jax"  # where one device may be mirrored
        several = on_jax or len(tf.config.list_logical_devices("GPU")) > 1
        name = "mirrored" if several else "one_device"
    unread = DataConfig("digits")
    recipe = Recipe(data=unread, strategy=name, tpu=tpu, deterministic=deterministic)
    return open_strategy(recipe, alone=True)


def _refuse_others() -> None:
    """Raise RecipeError in one of several processes that `TF_CONFIG` does not name."""
    job = launched_job()
    if job.processes > 1 and "TF_CONFIG" not in os.environ:
        raise RecipeError(
            "the environment variable TF_CONFIG must name the workers where several "
            "processes are started together, except with KERAS_BACKEND=jax: each of "
            "them would train alone, and write the run's folder. Start independent "
            "runs as jobs of one process, such as srun --ntasks=1. Received: no "
            f"TF_CONFIG, {job.processes} processes of {job.launcher}"
        )


def _make_tensorflow_strategy(recipe: Recipe) -> tf.distribute.Strategy:
    name = recipe.strategy
    if name == "fsdp":
        raise RecipeError(
            "`strategy` fsdp needs the environment variable KERAS_BACKEND=jax: "
            f"TensorFlow keeps all weights on each device. Received: {name!r}"
        )
    if name == "tpu":
        return _tpu_strategy(recipe.tpu)
    if name == "multi_worker" or (name == "auto" and "TF_CONFIG" in os.environ):
        return _multi_worker_strategy(recipe.communication)
    gpus = tf.config.list_logical_devices("GPU")
    if name == "one_device" or (name == "auto" and len(gpus) < 2):
        return tf.distribute.get_strategy()
    devices = gpus or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def _multi_worker_strategy(communication: str) -> tf.distribute.Strategy:
    """The strategy of several processes.

    TensorFlow's own choice is a ring over gRPC, with GPUs too.
    """
    index, addresses = parse_cluster(os.environ.get("TF_CONFIG"))
    print_waiting(index, len(addresses))
    if communication == "auto":
        own = tf.config.list_physical_devices("GPU")
        communication = "nccl" if own else "ring"
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=_communication_by(communication)
    )
    keep_handler()
    count = _gpus_of_each_worker(len(addresses))
    require(
        communication == "ring" or count > 0,
        "communication",
        "auto or ring for workers without GPUs",
        communication,
    )
    if index == 0:
        gpus = f" x {count} GPU{'s' * (count > 1)}" if count else ""
        names = {"nccl": "NCCL", "ring": "a ring over gRPC"}
        print(f"{len(addresses)} workers{gpus}, {names[communication]}")
    return strategy


def _communication_by(name: str) -> tf.distribute.experimental.CommunicationOptions:
    return tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation(
            name.upper()
        )
    )


def _gpus_of_each_worker(workers: int) -> int:
    """The number of GPUs of each worker, before any of them computes.

    Raises:
        RecipeError: The workers have different numbers; TensorFlow would hang.
    """
    devices = tf.config.list_logical_devices("GPU")  # those of all workers
    tasks = [tf.DeviceSpec.from_string(device.name).task for device in devices]
    counts = [tasks.count(worker) for worker in range(workers)]
    if len(set(counts)) > 1:
        raise RecipeError(
            "all workers must have the same number of GPUs. Received: workers 0 to "
            f"{workers - 1} with {', '.join(map(str, counts))}"
        )
    return counts[0]


def _tpu_strategy(name: str | None) -> tf.distribute.Strategy:
    check_variables(name)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(name or "")
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, OSError, tf.errors.OpError) as error:
        reason = str(error).strip().split("\n")[0]
        raise RecipeError(
            "`tpu` must be the name of a Cloud TPU, or `local` on a TPU VM. "
            f"Received: {name!r}: {reason}"
        ) from None
    return tf.distribute.TPUStrategy(resolver)


def gather(strategy: AnyStrategy, number: int) -> list[int]:
    """Collect one number from each worker; this waits for all of them."""
    if worker_count(strategy) == 1:
        return [number]
    if isinstance(strategy, JaxStrategy):
        return strategy.gather(number)

    # By the same means in all, whatever their recipes' `communication`.
    def own() -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        value = tf.constant([number], tf.int64)
        return replica.all_gather(value, 0, _communication_by("ring"))

    gathered = tf.function(strategy.run, autograph=False)(own)
    return [int(value) for value in strategy.experimental_local_results(gathered)[0]]


def check_workers(strategy: AnyStrategy, fingerprint: str) -> None:
    """Raise RecipeError unless all workers have the same recipe and `TF_CONFIG`.

    Args:
        strategy: The strategy, before any other use.
        fingerprint: The recipe's `checkpoint.fingerprint`.
    """
    try:
        numbers = gather(strategy, int(fingerprint[:15], 16))
    except tf.errors.InternalError as error:
        if "joining a group with size" not in error.message:
            raise
        raise RecipeError(
            "TF_CONFIG must name the same workers on each of them. "
            f"Received: {os.environ['TF_CONFIG']}, and others on another worker"
        ) from None
    if len(set(numbers)) > 1:
        raise RecipeError(
            "all workers must have the same recipe. Received: a recipe of fingerprint "
            f"{fingerprint} on this worker, and others on other workers"
        )


def check_same_step(strategy: AnyStrategy, step: int) -> None:
    """Raise RunError unless all workers resume from the same step."""
    steps = gather(strategy, step)
    if len(set(steps)) > 1:
        raise RunError(
            "all workers must see the same run's folder. Received: checkpoints of "
            f"steps {', '.join(map(str, steps))}"
        )


@contextlib.contextmanager
def lost_workers() -> Iterator[None]:
    """Convert errors about a worker that has ended to WorkerLost."""
    try:
        yield
    except tf.errors.OpError as error:
        aborted = "Collective ops is aborted" in error.message
        lost = aborted or isinstance(error, LOST_WORKER_ERRORS)
        if not lost or "TF_CONFIG" not in os.environ:
            raise
        reason = error.message.rpartition("Collective ops is aborted by:")[2]
        raise _worker_lost(reason) from None
    except (ValueError, RuntimeError) as error:  # JAX's are one of these
        if keras.backend.backend() != "jax" or not is_lost_jax_worker(error):
            raise
        end_without_others()
        raise _worker_lost(str(error)) from None


def _worker_lost(reason: str) -> WorkerLost:
    return WorkerLost(
        "another worker has ended: restart all workers with --resume "
        f"({' '.join(reason.split())[:150]})"
    )


def is_chief(strategy: AnyStrategy) -> bool:
    """Whether this process is worker 0, which writes the files."""
    if isinstance(strategy, JaxStrategy):
        return strategy.worker == 0
    resolver = strategy.cluster_resolver
    return resolver is None or not resolver.task_type or resolver.task_id == 0


def worker_count(strategy: AnyStrategy) -> int:
    """Number of processes that train together; TensorFlow has one for all of a TPU."""
    if isinstance(strategy, JaxStrategy):
        return strategy.workers
    resolver = strategy.cluster_resolver
    of_tpu = isinstance(resolver, tf.distribute.cluster_resolver.TPUClusterResolver)
    if resolver is None or of_tpu or not resolver.task_type:
        return 1
    return len(resolver.cluster_spec().as_dict()["worker"])


def check_batch_size(strategy: AnyStrategy, recipe: Recipe) -> None:
    """Raise RecipeError unless replicas and micro-batches divide the batch evenly."""
    replicas = strategy.num_replicas_in_sync
    if recipe.batch_size % (replicas * recipe.accumulation):
        raise RecipeError(
            "`batch_size` must be a multiple of the number of replicas times "
            f"`accumulation`. Received: batch_size={recipe.batch_size}, {replicas} "
            f"replicas, accumulation={recipe.accumulation}"
        )
    check_pairs(recipe.augmentation, recipe.batch_size, replicas)
