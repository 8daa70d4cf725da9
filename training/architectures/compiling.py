"""A recipe's model ready to be trained: its task, optimizer, loss and compilation."""

import keras
import numpy as np
import tensorflow as tf

from keras_vit.typing import Array

from ..engine.determinism import has_max_pooling
from ..engine.losses import Loss
from ..engine.optimizer import make_optimizer
from ..engine.schedule import make_schedule
from ..engine.trainer import Trainer
from ..probe.head_only import HeadModel
from ..recipe import Recipe
from ..self_supervision.pretext import PatchAccuracy, PretextModel, masked_loss


def model_to_train(model: keras.Model, recipe: Recipe) -> keras.Model:
    """The model itself, its `HeadModel`, or the `PretextModel` around it."""
    if recipe.data.cache_features:
        return HeadModel(model)
    if recipe.supervised:
        return model
    return PretextModel(model, recipe.self_supervision)


def compile_trainer(
    model: keras.Model,
    recipe: Recipe,
    total_steps: int,
    steps_per_epoch: float,
    labels: Array | None = None,
) -> Trainer:
    """A trainer of `model_to_train`'s model; `logit_adjustment` needs the `labels`."""
    adjustment: float | Array = 0.0
    if recipe.logit_adjustment and labels is not None:
        adjustment = recipe.logit_adjustment * log_shares(labels, model.classes)
    loss: str | Loss = recipe.loss
    metrics: tuple[str | keras.metrics.Metric, ...] = ("accuracy",)
    if not recipe.supervised:
        loss = masked_loss
        metrics = (PatchAccuracy(),) if recipe.self_supervision.predicts_colors else ()
    trainer = trainer_class()(
        model,
        loss,
        recipe.label_smoothing,
        recipe.accumulation,
        recipe.optimizer.clip_norm,
        adjustment,
    )
    learning_rate = make_schedule(recipe, total_steps, steps_per_epoch)
    trainer.compile(
        make_optimizer(recipe.optimizer, learning_rate, model, total_steps),
        metrics,
        steps_per_execution=recipe.steps_per_execution,
        jit_compile=compiles(recipe, model) and recipe.strategy != "tpu",
    )
    return trainer


def log_shares(labels: Array, classes: int) -> Array:
    """Logarithm of each class's share of the images, float32 [classes].

    A class without images counts as one with a single image.
    """
    counts = np.maximum(np.bincount(labels, minlength=classes), 1)
    shares: Array = np.log(counts / counts.sum()).astype("float32")
    return shares


def trainer_class() -> type[Trainer]:
    """The trainer of the Keras backend in use."""
    if keras.backend.backend() == "jax":
        from ..engine.jax_trainer import JaxTrainer

        return JaxTrainer
    from ..engine.tensorflow_trainer import TensorFlowTrainer

    return TensorFlowTrainer


def compiles(recipe: Recipe, model: keras.Model) -> bool:
    """Whether XLA compiles: where it was measured to help, unless the recipe says so.

    On CPUs it is slower than oneDNN (`benchmarks/train_step.py`). A TPU compiles the
    whole step by itself.
    """
    if recipe.strategy == "tpu" or recipe.jit_compile != "auto":
        return recipe.strategy == "tpu" or recipe.jit_compile == "on"
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    return on_gpu and not (recipe.deterministic and has_max_pooling(model))
