"""Attention rollout of a model's images, as pictures."""

import keras
import numpy as np
from PIL import Image

from keras_vit.typing import Array

from ..engine.forward_pass import ForwardPass, even_batches, strategy_of

# Small, as attention weights need memory that grows with the square of the tokens.
BATCH_SIZE = 8


def has_attention(model: keras.Model) -> bool:
    """Whether all patches attend to each other.

    Not in a ResNet, with axial attention, or in another backbone.
    """
    return getattr(model, "attention", None) == "full"


def attention_maps(model: keras.Model, images: Array) -> Array:
    """Each patch's share in the model's answer, by attention rollout.

    The images, at least one, are resized for the model: uint8 [n, H, W, C].

    Returns:
        float32 [n, h, w], where the sum of each map is 1.
    """
    rollout = model.attention_rollout_model()
    size = even_batches(len(images), BATCH_SIZE)
    return ForwardPass(rollout, strategy_of(model), size)(images)


def heat_map(attention: Array, size: tuple[int, int]) -> Array:
    """A map [h, w] as colors from dark (its smallest value) to bright (its largest).

    Returns:
        uint8 [H, W, 3].
    """
    low, high = attention.min(), attention.max()
    scaled = (attention - low) / max(high - low, np.finfo("float32").tiny)
    large = Image.fromarray(scaled.astype("float32")).resize(
        size[::-1], Image.Resampling.BICUBIC
    )
    from matplotlib import colormaps

    colors = colormaps["inferno"](np.clip(np.asarray(large), 0, 1))
    rgb: Array = (255 * colors[..., :3]).round().astype("uint8")
    return rgb
