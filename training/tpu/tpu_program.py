"""The train step of JAX's trainer, lowered and compiled for devices that are elsewhere.

The weights exist as shapes alone, so that a model may be larger than this machine.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import keras

from keras_vit.devices import Platform, making_graphs_for
from keras_vit.typing import Inputs

from ..engine.fully_sharded import FullySharded
from ..engine.trainer import Trainer
from ..recipe import Recipe
from ..self_supervision.pretext import PretextModel

Distribution: TypeAlias = (
    keras.distribution.DataParallel | keras.distribution.ModelParallel
)


class Program(NamedTuple):
    """A compiled train step."""

    state: int  # bytes of weights, optimizer slots and images on each chip
    temporary: int  # bytes of gradients and activations there
    compiling: float  # seconds that the compiler took


def lower_train_step(
    recipe: Recipe,
    make_trainer: Callable[[Recipe], Trainer],
    devices: Sequence[Any],
    platform: Platform,
) -> jax.stages.Lowered:
    """Lower the train step as `fit` runs it on so many devices.

    Args:
        recipe: Its `strategy` fsdp divides the weights; others keep all on each device.
        make_trainer: Makes the recipe's trainer.
        devices: Those of a topology, or as many of this machine.
        platform: What the program is lowered for, whatever this machine has.

    Returns:
        The `jax.stages.Lowered` program.
    """
    distribution: Distribution
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
        state = _state(trainer, distribution)
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
        lowered: jax.stages.Lowered = step.trace(state, batch).lower(
            lowering_platforms=(name,)
        )
        return lowered


def _state(
    trainer: Trainer, distribution: Distribution
) -> tuple[list[jax.ShapeDtypeStruct], ...]:
    """Shapes, types and layouts of what a step changes; see `JaxTrainer.train_step`."""
    groups = (
        trainer.trainable_variables,
        trainer.non_trainable_variables,
        trainer.optimizer.variables,
        trainer.metrics_variables,
    )
    return tuple(
        [_shape(v.shape, v.dtype, distribution.get_variable_layout(v)) for v in group]
        for group in groups
    )


def teraflop(recipe: Recipe, make_trainer: Callable[[Recipe], Trainer]) -> float:
    """10^12 floating-point operations of a step, of all its images.

    Those of a compiled program are too few: XLA counts the body of a loop once, and
    makes loops of the products with weights that it gathers. In the program for one
    device of this machine only the micro-batches are one.
    """
    [device, *_] = keras.distribution.list_devices()
    lowered = lower_train_step(recipe, make_trainer, [device], "cpu")
    costs: Any = lowered.cost_analysis()
    flops: float = costs["flops"]
    return flops * recipe.accumulation / 1e12


def compile_train_step(lowered: jax.stages.Lowered) -> Program:
    """Compile a lowered step with the compiler of its devices."""
    began = time.perf_counter()
    compiled = lowered.compile()
    seconds = time.perf_counter() - began
    memory: Any = compiled.memory_analysis()
    return Program(
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        seconds,
    )


def _batch(model: keras.Model, size: int) -> tuple[Inputs, jax.ShapeDtypeStruct]:
    """Shapes and types of a batch: images and labels."""
    encoder = getattr(model, "encoder", model)
    shape = (size, *encoder.preprocessing.image_size, encoder.channels)
    images: Inputs = jax.ShapeDtypeStruct(shape, "uint8")
    labels = jax.ShapeDtypeStruct((size, model.output_shape[1]), "float32")
    if isinstance(model, PretextModel):
        indices = jax.ShapeDtypeStruct(labels.shape, "int32")
        images = {"images": images, "patch_indices": indices}
    return images, labels


def _shape(
    shape: tuple[int, ...], dtype: str, layout: keras.distribution.TensorLayout
) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=layout.backend_layout)
