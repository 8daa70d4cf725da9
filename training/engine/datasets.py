"""Distributed datasets: each worker's pipeline of its shard of every batch."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..data.labeled_images import Split
from ..data.masking import Masking
from ..data.pipeline import (
    Shard,
    evaluation_batches,
    resized_once,
    training_batches,
)
from ..recipe import Recipe
from .forward_pass import BATCH_SIZE
from .jax_strategy import AnyStrategy
from .rebatch import Batches
from .trainer import Trainer

BATCHES = 2  # on a GPU ahead of the step


def training_data(
    trainer: Trainer, recipe: Recipe, split: Split, first_step: int, total_steps: int
) -> Batches:
    """The distributed training batches from `first_step` on, for `model.fit`."""
    preprocessing = trainer.model.preprocessing
    images = resized_once(split, recipe, preprocessing)
    masking = None if recipe.supervised else Masking.of(trainer.model.encoder, recipe)
    return _distributed(
        trainer.distribute_strategy,
        lambda shard: training_batches(
            images, recipe, preprocessing, first_step, total_steps, shard, masking
        ),
    )


def validation_arguments(
    trainer: Trainer, recipe: Recipe, split: Split | None
) -> dict[str, Any]:
    """Arguments of `model.fit` to validate on a split; none without one."""
    if split is None:
        return {}
    preprocessing = trainer.model.preprocessing
    replicas = trainer.distribute_strategy.num_replicas_in_sync
    size = replicas * math.ceil(BATCH_SIZE / replicas)
    masking = None if recipe.supervised else Masking.of(trainer.model.encoder, recipe)
    data = _distributed(
        trainer.distribute_strategy,
        lambda shard: evaluation_batches(split, size, preprocessing, shard, masking),
    )
    return {
        "validation_data": data,
        "validation_steps": math.ceil(len(split) / size),
    }


def _distributed(
    strategy: AnyStrategy,
    batches: Callable[[Shard], tf.data.Dataset],
) -> Batches:
    """Each worker's own pipeline, repeated without end.

    With a dataset that ends, several workers would have to agree at each step whether
    there is another batch, and the batch size would not be static.
    """

    def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        pipelines = context.num_input_pipelines
        replicas = context.num_replicas_in_sync // pipelines
        return batches(Shard(context.input_pipeline_id, pipelines, replicas)).repeat()

    data = strategy.distribute_datasets_from_function(pipeline)
    gpus = tf.config.list_logical_devices("GPU")
    if isinstance(data, tf.data.Dataset) and gpus:
        # Else a step begins with the copy of its batch; strategies copy ahead anyway.
        device = gpus[0].name
        data = data.apply(tf.data.experimental.prefetch_to_device(device, BATCHES))
    return data
