"""The model that a recipe describes, and the trainer around it."""

from typing import Any

import keras

import keras_vit

from .errors import RecipeError
from .optimizer import make_optimizer, make_schedule
from .recipe import SIZES, ModelConfig, Recipe


def build_model(
    config: ModelConfig, class_names: tuple[str, ...]
) -> keras_vit.VisionTransformer:
    """The recipe's model: raw pixels in, logits out, with the names of the classes.

    Raises:
        RecipeError: The sizes do not fit each other.
    """
    arguments: dict[str, Any] = {
        "image_size": config.image_size,
        "channels": config.channels,
        "classes": len(class_names),
        "class_names": class_names,
        "head": config.head,
        "class_token": config.class_token,
        "dropout": config.dropout,
        "stochastic_depth": config.stochastic_depth,
        "position_stddev": config.position_stddev,
    }
    sizes = {name: getattr(config, name) for name in SIZES}
    arguments |= {name: size for name, size in sizes.items() if size is not None}
    try:
        arguments["preprocessing"] = make_preprocessing(config)
        if config.variant is None:
            return keras_vit.VisionTransformer(**arguments)
        return keras_vit.VisionTransformer.from_variant(config.variant, **arguments)
    except ValueError as error:
        raise RecipeError(f"model: {error}") from None


def make_preprocessing(config: ModelConfig) -> keras_vit.ImagePreprocessing:
    """The layer from pixels to the model's first real one.

    Raises:
        ValueError: `image_size` is not one or two positive numbers.
    """
    return keras_vit.ImagePreprocessing(
        config.image_size,
        mean=config.pixel_mean,
        std=config.pixel_std,
        interpolation=config.interpolation,
        antialias=config.antialias,
        crop_fraction=config.crop_fraction,
    )


def compile_trainer(model: keras.Model, recipe: Recipe, steps: int) -> keras.Model:
    """A model that shares the weights of `model` and knows how to train them.

    Only `model` is saved: its file must open where only keras_vit is imported, and
    without the optimizer.

    Args:
        model: The plain model.
        recipe: Optimizer, schedule and loss.
        steps: Steps in an epoch.
    """
    trainer = keras.Model(model.inputs, model.outputs)
    learning_rate = make_schedule(recipe, steps)
    trainer.compile(
        make_optimizer(recipe.optimizer, learning_rate, model),
        keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=recipe.label_smoothing
        ),
        metrics=["accuracy"],
        jit_compile=False,  # on CPU slower than oneDNN, and wrong under a strategy
    )
    return trainer
