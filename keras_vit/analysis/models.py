"""What the analyses need of a model, and its outputs for many images."""

import math
import weakref
from collections.abc import Callable
from typing import TypeAlias

import keras
import numpy as np

from keras_vit.errors import NotApplicableError
from keras_vit.keras_classes import Model
from keras_vit.typing import Array, Images
from keras_vit.vit import VisionTransformer

# Images in a batch: attention needs memory that grows with the square of the tokens.
BATCH_SIZE = 8


def describe(model: object) -> str:
    """A model as error messages name it."""
    return f"{type(model).__name__} {getattr(model, 'name', '')!r}"


def check_vision_transformer(model: object) -> None:
    """Raise NotApplicableError for another model than a VisionTransformer."""
    if not isinstance(model, VisionTransformer):
        raise NotApplicableError(
            f"`model` must be a VisionTransformer. Received: {describe(model)}"
        )


def check_full_attention(model: keras.Model) -> None:
    """Raise NotApplicableError unless all tokens attend to each other."""
    check_vision_transformer(model)
    if model.attention != "full":
        raise NotApplicableError(
            "`model` must have attention='full', in which all patches attend to each "
            f"other. Received: attention={model.attention!r}"
        )


_Key: TypeAlias = tuple[Callable[..., Model], tuple[int, ...]]
_PARTS: weakref.WeakKeyDictionary[keras.Model, dict[_Key, Model]] = (
    weakref.WeakKeyDictionary()
)


def outputs_of(
    model: VisionTransformer,
    make_part: Callable[..., Model],
    arguments: tuple[int, ...],
    images: Images,
    batch_size: int,
) -> list[Array]:
    """Outputs of a part of a model for many images, computed batch by batch.

    The part is kept as long as the model: Keras never removes the branch that a part
    is from the model's graph, so that a part for each call would fill the memory of a
    long training; and its function is traced once.

    Args:
        make_part: Makes a part of it, such as `attention_rollout_model`.
        images: [n, H, W, C], as the model reads them.
        batch_size: Images in a batch; rounded up to a multiple of the devices.

    Returns:
        One float array [n, ...] for each output.

    Raises:
        ValueError: There are no images, or they have another size than the model's.
    """
    parts = _PARTS.setdefault(model, {})
    if (make_part, arguments) not in parts:
        parts[make_part, arguments] = make_part(model, *arguments)
    part = parts[make_part, arguments]
    images = np.asarray(images)
    if images.shape[1:] != part.input_shape[1:] or not len(images):
        height, width, channels = part.input_shape[1:]
        raise ValueError(
            f"`images` must have the shape (n, {height}, {width}, {channels}), with n "
            f"at least 1. Received: images.shape={images.shape}"
        )
    size = _divisible(min(batch_size, len(images)), part)
    # Whole batches only: XLA compiles for each size, and devices share each.
    padded = np.concatenate([images, images[-1:].repeat(-len(images) % size, 0)])
    outputs = part.predict(padded, batch_size=size, verbose=0)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    return [output[: len(images)] for output in outputs]


def _divisible(batch_size: int, part: Model) -> int:
    """A batch size, rounded up to a multiple of the devices that share a batch."""
    distribution = keras.distribution.distribution()
    devices = 1 if distribution is None else distribution.num_model_replicas
    if keras.backend.backend() == "tensorflow":
        devices = part.distribute_strategy.num_replicas_in_sync
    return devices * math.ceil(batch_size / devices)
