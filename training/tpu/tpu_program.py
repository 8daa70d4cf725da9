"""The train step of JAX's trainer, lowered and compiled for devices that are elsewhere.

The weights exist as shapes alone, so that a model may be larger than this machine.
"""

import time
from typing import Any, NamedTuple

import jax
import keras

from keras_vit.devices import Platform, making_graphs_for

from ..engine.fully_sharded import FullySharded
from ..engine.trainer import Trainer
from ..recipe import Recipe
from ..self_supervision.pretext import PretextModel


class Program(NamedTuple):
    """A compiled train step."""

    state: int  # bytes of weights, optimizer slots and images on each chip
    temporary: int  # bytes of gradients and activations there
    compiling: float  # seconds that the compiler took


def lower_train_step(
    recipe: Recipe, make_trainer: Any, devices: Any, platform: Platform
) -> Any:
    """Lower the train step as `fit` runs it on so many devices.

    Args:
        recipe: Its `strategy` fsdp divides the weights; others keep all on each device.
        make_trainer: Makes the recipe's trainer.
        devices: Those of a topology, or as many of this machine.
        platform: What the program is lowered for, whatever this machine has.

    Returns:
        The `jax.stages.Lowered` program.
    """
    distribution: Any
    if recipe.strategy == "fsdp":
        distribution = FullySharded(devices)
    else:
        distribution = keras.distribution.DataParallel(
            devices=devices, auto_shard_dataset=False
        )
    trainers: list[Trainer] = []
    with making_graphs_for(platform), distribution.scope():
        jax.eval_shape(lambda: trainers.append(make_trainer(recipe)))
        [trainer] = trainers
        state = tuple(
            [
                _shape(v.shape, v.dtype, distribution.get_variable_layout(v))
                for v in variables
            ]
            for variables in (
                trainer.trainable_variables,
                trainer.non_trainable_variables,
                trainer.optimizer.variables,
                trainer.metrics_variables,
            )
        )
        batch = jax.tree.map(
            lambda tensor: _shape(
                tensor.shape, tensor.dtype, distribution.get_data_layout(tensor.shape)
            ),
            _batch(trainer.model, recipe.batch_size),
        )
        places = jax.tree.map(lambda array: array.sharding, state)
        step = jax.jit(
            trainer.train_step, donate_argnums=0, out_shardings=(None, places)
        )
        name = "cuda" if platform == "gpu" else platform
        return step.trace(state, batch).lower(lowering_platforms=(name,))


def teraflop(recipe: Recipe, make_trainer: Any) -> float:
    """10^12 floating-point operations of a step, of all its images.

    Those of a compiled program are too few: XLA counts the body of a loop once, and
    makes loops of the products with weights that it gathers. In the program for one
    device of this machine only the micro-batches are one.
    """
    [device, *_] = keras.distribution.list_devices()
    costs = lower_train_step(recipe, make_trainer, [device], "cpu").cost_analysis()
    return costs["flops"] * recipe.accumulation / 1e12


def compile_train_step(lowered: Any) -> Program:
    """Compile a lowered step with the compiler of its devices."""
    began = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - began
    memory = compiled.memory_analysis()
    return Program(
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        seconds,
    )


def _batch(model: keras.Model, size: int) -> Any:
    """Shapes and types of a batch: images and labels."""
    encoder = getattr(model, "encoder", model)
    shape = (size, *encoder.preprocessing.image_size, encoder.channels)
    images: Any = jax.ShapeDtypeStruct(shape, "uint8")
    labels = jax.ShapeDtypeStruct((size, model.output_shape[1]), "float32")
    if isinstance(model, PretextModel):
        indices = jax.ShapeDtypeStruct(labels.shape, "int32")
        images = {"images": images, "patch_indices": indices}
    return images, labels


def _shape(shape, dtype, layout) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=layout.backend_layout)
