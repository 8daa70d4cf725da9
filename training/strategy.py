"""Where the computation runs: one device, or copies of the model on several."""

import tensorflow as tf

from .errors import RecipeError


def make_strategy(name: str) -> tf.distribute.Strategy:
    """The `tf.distribute` strategy of this name.

    Args:
        name: `one_device` (the first GPU, else the CPU), `mirrored` (one copy of the
            model on each GPU; on each logical CPU device where there is no GPU), or
            `auto` (`mirrored` where there are several GPUs).

    Returns:
        The strategy.
    """
    gpus = tf.config.list_logical_devices("GPU")
    if name == "one_device" or (name == "auto" and len(gpus) < 2):
        return tf.distribute.get_strategy()
    devices = gpus or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def check_batch_size(strategy: tf.distribute.Strategy, batch_size: int) -> None:
    """Raises RecipeError unless the replicas get equally many images each."""
    replicas = strategy.num_replicas_in_sync
    if batch_size % replicas:
        raise RecipeError(
            "`batch_size` must be a multiple of the number of replicas. "
            f"Received: batch_size={batch_size}, {replicas} replicas"
        )
