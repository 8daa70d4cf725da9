"""The model that a recipe describes."""

import dataclasses
import math
import sys
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeAlias

import keras

import keras_vit
from keras_vit.base import ImageModel
from keras_vit.opening import holds_own_model
from keras_vit.option_rows import OF_THE_RUN, rows
from keras_vit.options import REQUIRED, EncoderOptions, ViTOptions
from keras_vit.typing import Config
from keras_vit.weights.building import build_preset, copy_weights, rebuild

from ..engine.lora import enable_lora
from ..engine.rematerialize import rematerialize_blocks
from ..errors import RecipeError, RunError
from ..model_config import IMAGE_SIZE, ModelConfig
from .convnets import build_cnn, build_resnet
from .model_reading import read_model

# Builds a model from the recipe's `model`, the arguments of every model, and a dtype.
Builder: TypeAlias = Callable[[ModelConfig, Config, str], ImageModel]
VIT_ROWS = {
    **rows(EncoderOptions),
    **{name: rows(ViTOptions)[name] for name in REQUIRED},
}


class Architecture(NamedTuple):
    """A value of `model.architecture`."""

    options: Collection[str]  # the fields of `model` that it has
    build: Builder  # with weights where the recipe names some


def build_model(
    config: ModelConfig, class_names: tuple[str, ...] | None, dtype: str = "float32"
) -> ImageModel:
    """The recipe's model: raw pixels in, float32 logits out, the classes named.

    Args:
        config: The recipe's `model`.
        class_names: One name for each class; None for features instead of logits,
            which only a Vision Transformer has.
        dtype: A dtype policy, the recipe's `precision`.

    Returns:
        A `keras_vit.VisionTransformer`, `ResNet` or `ImageClassifier`, with random,
        published or own weights. The classifier begins at zero (section 3.2), or at
        random with `head_stddev`, unless the weights have one for as many classes; a
        run's `.keras` file names its classes, which must then be these.

    Raises:
        RecipeError: The sizes do not fit each other, an option is not one of this
            architecture, or the weights cannot be loaded.
    """
    architecture = ARCHITECTURES[config.architecture]
    _refuse_foreign_settings(config, architecture.options)
    try:
        common = {
            "classes": None if class_names is None else len(class_names),
            "class_names": class_names,
            "head_bias_init": config.head_bias_init,
            "preprocessing": make_preprocessing(config),
        }
        model = architecture.build(config, common, dtype)
    except (ValueError, ImportError) as error:
        hint = WITHOUT_DOWNLOAD if isinstance(error.__cause__, OSError) else ""
        raise RecipeError(f"model: {' '.join(str(error).split())}{hint}") from error
    if config.head_stddev and class_names is not None:
        kernel = model.get_layer("head").kernel
        if not keras.ops.any(kernel):
            stddev = config.head_stddev
            kernel.assign(keras.random.normal(kernel.shape, stddev=stddev))
    return model


def make_preprocessing(config: ModelConfig) -> keras_vit.ImagePreprocessing:
    """The layer from pixels to the model's first real one.

    Raises:
        ValueError: `image_size` is not one or two positive numbers.
    """
    size = config.image_size or IMAGE_SIZE
    if config.image_size is None and _is_own(config):
        size = _own_model(config, ImageModel).image_size
    return keras_vit.ImagePreprocessing(
        size,
        mean=_in_bytes(config.pixel_mean),
        std=_in_bytes(config.pixel_std),
        interpolation=config.interpolation,
        antialias=config.antialias,
        crop_fraction=config.crop_fraction,
        resize=config.resize,
    )


def _in_bytes(value: float | tuple[float, ...]) -> float | list[float]:
    """Scale a value from [0, 1] to [0, 255], rounding away floating-point noise."""
    if isinstance(value, (list, tuple)):
        return [round(255 * share, 9) for share in value]
    return round(255 * value, 9)


def _refuse_foreign_settings(config: ModelConfig, options: Collection[str]) -> None:
    """Raise RecipeError for settings that this architecture does not support."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in options and value is not None and value != field.default:
            raise RecipeError(
                f"`model.{field.name}` must be left out for {config.architecture}, "
                f"which has no such option. Received: {value!r}"
            )


def _build_backbone(build: Builder) -> Builder:
    """`build`, or a model that begins with the weights of a run's `.keras` file."""

    def build_or_copy(config: ModelConfig, common: Config, dtype: str) -> ImageModel:
        if not _is_own(config):
            return build(config, common, dtype)
        own = _own_model(config, keras_vit.ImageClassifier)
        model = build(dataclasses.replace(config, weights=None), common, dtype)
        copy_weights(own, model)
        return model

    return build_or_copy


def _images(config: ModelConfig, common: Config, dtype: str) -> Config:
    return common | {
        "image_size": common["preprocessing"].image_size,
        "channels": config.channels,
        "dtype": dtype,
    }


def _build_bit(config: ModelConfig, common: Config, dtype: str) -> ImageModel:
    arguments = _images(config, common, dtype) | {"pooling": "avg"}
    if config.resnet_blocks is not None:
        arguments |= {
            "blocks": config.resnet_blocks,
            "width_factor": config.resnet_width_factor,
        }
    return _build(keras_vit.ResNet, config, arguments)


def _build_vit(config: ModelConfig, common: Config, dtype: str) -> ImageModel:
    """What the recipe leaves at its default is as variant and weights have it."""
    arguments = _images(config, common, dtype)
    arguments["pooling"] = config.pooling
    if config.pooling is None and not _is_own(config):
        arguments["pooling"] = "token"
    structure = {}
    for name, row in VIT_ROWS.items():
        value = getattr(config, name)
        default = value == getattr(ModelConfig, name)
        free = config.weights is None or row.adaptable
        if OF_THE_RUN in row.marks or (free and not default):
            arguments[name] = value
        elif not default:
            structure[name] = value
    model = _build(keras_vit.VisionTransformer, config, arguments)
    _check_structure(config, model, structure)
    if config.lora_rank is not None:
        enable_lora(model, config.lora_rank, config.lora_layers)
    if config.rematerialize:
        rematerialize_blocks(model)
    return model


def _check_structure(config: ModelConfig, model: ImageModel, structure: Config) -> None:
    """Raise RecipeError for another structure than that of the weights."""
    for name, value in structure.items():
        wanted = getattr(model, name)
        if name == "layer_scale" and wanted is not None:
            continue  # its value is only the initial one
        if value != wanted:
            raise RecipeError(
                f"`model.{name}` must be {wanted!r}, as the weights "
                f"{config.weights!r} have it. Received: {value!r}"
            )


def _build(
    model_class: type[ImageModel], config: ModelConfig, arguments: Config
) -> ImageModel:
    """A model of `keras_vit`, with the weights that the recipe names."""
    weights = config.weights
    if _is_own(config):
        return _from_own_model(model_class, config, arguments)
    if weights is not None:
        return build_preset(model_class, weights, arguments, variant=config.variant)
    if config.variant is not None:
        model: ImageModel = model_class.from_variant(config.variant, **arguments)
        return model
    return model_class(**arguments)


def _is_own(config: ModelConfig) -> bool:
    """Whether the weights are those of a run, its `.keras` file or a served version."""
    return config.weights is not None and holds_own_model(config.weights)


def _from_own_model(
    model_class: type[ImageModel], config: ModelConfig, arguments: Config
) -> ImageModel:
    """A new model that begins with the weights of a run's `.keras` file.

    What the recipe leaves at its default is as the file has it.
    """
    own = _own_model(config, model_class)
    # The loss reads logits; the data are pixels from 0 to 255.
    changes: Config = {
        "classifier_activation": None,
        "include_preprocessing": True,
    }
    changes |= arguments
    _warn_of_another_size(config, own.image_size, changes["image_size"])
    if changes["pooling"] is None:
        changes["pooling"] = own.pooling or ("token" if own.class_token else "avg")
    model = rebuild(own, **changes)
    for layer in model.layers:  # what is frozen the recipe says, not the file
        layer.trainable = True
    return model


def _warn_of_another_size(
    config: ModelConfig, own: tuple[int, int], size: tuple[int, int]
) -> None:
    """Say what it costs to use a model at another image size than its own."""
    if size != own:
        area = math.prod(size) / math.prod(own)
        print(
            f"warning: `model.image_size` is {_sides(size)}, {config.weights} was "
            f"trained with {_sides(own)}: {area:.2g} times the pixels, and at least "
            "that much time for a step. --model.image_size null keeps its size",
            file=sys.stderr,
        )


def _sides(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _own_model(config: ModelConfig, model_class: type[ImageModel]) -> ImageModel:
    """What the `.keras` file holds."""
    try:
        own = read_model(str(config.weights))
    except RunError as error:
        raise RecipeError(f"`model.weights`: {error}") from None
    if not isinstance(own, model_class):
        raise RecipeError(
            f"`model.weights` must be the file of a {model_class.__name__} for "
            f"{config.architecture}. Received: {config.weights!r} of a "
            f"{type(own).__name__}"
        )
    return own


WITHOUT_DOWNLOAD = (
    ". `--model.weights` takes a file that you have; --recipe folder_small trains on a "
    "folder from scratch"
)
_COMMON = (
    *("architecture", "weights", "image_size", "channels"),
    *("head_bias_init", "head_stddev"),
    *("interpolation", "antialias", "crop_fraction", "resize"),
)
_SCALE = ("pixel_mean", "pixel_std")
ARCHITECTURES = {
    "vit": Architecture(rows(ModelConfig), _build_vit),
    "bit": Architecture(
        (*_COMMON, *_SCALE, "variant", "resnet_blocks", "resnet_width_factor"),
        _build_bit,
    ),
    "resnet": Architecture((*_COMMON, "variant"), _build_backbone(build_resnet)),
    "cnn": Architecture(
        (*_COMMON, *_SCALE, "width", "depth", "dropout"), _build_backbone(build_cnn)
    ),
}
