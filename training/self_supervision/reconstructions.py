"""What a pretext model predicts of images' masked patches, as pictures."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.typing import Array

from ..data.masking import Masking
from .pretext import DIVISIONS, PretextModel
from .pretext_layers import BITS, LEVELS, join_patches, patch_statistics, split_patches

HIDDEN = 128  # the gray of masked patches


def reconstructions(
    model: PretextModel, masking: Masking, images: Sequence[Array]
) -> list[tuple[Array, Array, Array]]:
    """Images, what is visible of them, and what the model predicts of the rest.

    The masks are those of the first images in evaluation. With normalized pixels each
    predicted patch gets the mean and deviation of the true one, as in MAE's pictures.

    Returns:
        For each image itself, the visible patches, and these with the predicted ones:
        uint8 [H, W, C].
    """
    pixels = np.stack(images).astype("float32")
    masks = [masking.of_evaluated(tf.constant(i, tf.int64)) for i in range(len(pixels))]
    indices = np.stack([indices for indices, _ in masks])
    masked = np.stack([mask for _, mask in masks])[..., np.newaxis] > 0
    grid = model.encoder.grid
    side = pixels.shape[1] // grid[0]
    patches = np.asarray(split_patches(pixels, side))
    predictions = model.predictions(pixels, indices)
    if model.config.predicts_colors:
        divisions = DIVISIONS[model.config.target]
        predicted = _colors(predictions, side, divisions, pixels.shape[-1])
    else:
        predicted = _pixels(model, predictions, pixels, side)

    def whole(parts: Array) -> Array:
        joined: Array = np.asarray(join_patches(parts.astype("float32"), grid, side))
        return joined.round().clip(0, 255).astype("uint8")

    visible = whole(np.where(masked, HIDDEN, patches))
    filled = whole(np.where(masked, predicted, patches))
    return list(zip(whole(patches), visible, filled, strict=True))


def _colors(predictions: Array, side: int, divisions: int, channels: int) -> Array:
    """The most probable colors, each at the middle of its level: [B, N, pixels]."""
    shape = (*predictions.shape[:2], divisions**2, LEVELS**channels)
    codes = predictions.reshape(shape).argmax(-1)
    places = LEVELS ** np.arange(channels)[::-1]
    levels = codes[..., np.newaxis] // places % LEVELS
    colors = (levels + 0.5) * 2 ** (8 - BITS)
    colors = colors.reshape(*predictions.shape[:2], divisions, divisions, channels)
    part = side // divisions
    pixels: Array = colors.repeat(part, 2).repeat(part, 3)
    return pixels.reshape(*predictions.shape[:2], -1)


def _pixels(model: PretextModel, predictions: Array, images: Array, side: int) -> Array:
    """Predicted pixels from 0 to 255: [B, N, pixels]."""
    layer = model.preprocessing
    if model.config.task == "mae" and model.config.normalize_pixels:
        mean, deviation = patch_statistics(
            split_patches(layer(images, fitted=True), side)
        )
        predictions = predictions * np.asarray(deviation) + np.asarray(mean)
    channels = images.shape[-1]
    shape = (*predictions.shape[:2], side * side, channels)
    mean, std = (np.broadcast_to(v, channels) for v in (layer.mean, layer.std))
    pixels: Array = predictions.reshape(shape) * std + mean
    return pixels.reshape(predictions.shape)
