"""Layers of the pretext models: corruption of patches, and each patch's loss."""

from typing import Any

import keras
from keras import ops

from keras_vit.typing import Images, Logits, Shape, Tensor, Tokens

BITS = 3  # of a color in each channel
LEVELS = 2**BITS
NORM_EPSILON = 1e-6  # of normalized pixels, as in MAE's code


class CorruptPatches(keras.layers.Layer):
    """Replace patch embeddings by a learned [mask] or another patch's (B.1.2).

    Call arguments:
        patches: Tensor [B, N, D].
        indices: int32 [B, N], the patch whose embedding each patch gets; N for [mask].

    Returns:
        Tensor [B, N, D].
    """

    def build(self, patches_shape: Shape, indices_shape: Shape) -> None:
        self.token = _mask_token(self, patches_shape[-1])

    def call(self, patches: Tokens, indices: Tensor) -> Tokens:
        token = _repeated(self.token, patches, 1)
        return _take(ops.concatenate([patches, token], axis=1), indices)


class KeepPatches(keras.layers.Layer):
    """Keep the tokens before the patches and some of the patches.

    Args:
        count: Number n of patches to keep.
        prefix_tokens: Number of tokens before the patches.

    Call arguments:
        tokens: Tensor [B, prefix + N, D].
        indices: int32 [B, N], an order of the patches, of which the first n stay.

    Returns:
        Tensor [B, prefix + n, D].
    """

    def __init__(self, count: int, prefix_tokens: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = count
        self.prefix_tokens = prefix_tokens

    def call(self, tokens: Tokens, indices: Tensor) -> Tokens:
        prefix, patches = ops.split(tokens, [self.prefix_tokens], axis=1)
        kept = _take(patches, indices[:, : self.count])
        return ops.concatenate([prefix, kept], axis=1)


class RestorePatches(keras.layers.Layer):
    """Put visible patches back to their places, and a learned [mask] to the others.

    Args:
        prefix_tokens: Number of tokens before the patches.

    Call arguments:
        tokens: Tensor [B, prefix + n, D], of the first n patches in an order.
        indices: int32 [B, N], this order.

    Returns:
        Tensor [B, prefix + N, D].
    """

    def __init__(self, prefix_tokens: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.prefix_tokens = prefix_tokens

    def build(self, tokens_shape: Shape, indices_shape: Shape) -> None:
        self.token = _mask_token(self, tokens_shape[-1])

    def call(self, tokens: Tokens, indices: Tensor) -> Tokens:
        prefix, patches = ops.split(tokens, [self.prefix_tokens], axis=1)
        token = _repeated(self.token, patches, indices.shape[1] - patches.shape[1])
        patches = ops.concatenate([patches, token], axis=1)
        # The inverse of the order. A sort would have dynamic shapes in XLA.
        own = ops.expand_dims(ops.arange(indices.shape[1], dtype="int32"), -1)
        here = own == ops.expand_dims(indices, 1)  # [B, N, N]
        places = ops.argmax(ops.cast(here, "int32"), axis=-1)
        return ops.concatenate([prefix, _take(patches, places)], axis=1)


def _mask_token(layer: keras.layers.Layer, width: int | None) -> keras.Variable:
    initializer = keras.initializers.RandomNormal(stddev=0.02)
    return layer.add_weight(
        name="mask_token", shape=(1, 1, width), initializer=initializer
    )


def _repeated(token: keras.Variable, patches: Tokens, count: int) -> Tokens:
    """[1, 1, D] -> [B, count, D]."""
    shape = (ops.shape(patches)[0], count, patches.shape[-1])
    return ops.broadcast_to(ops.cast(token, patches.dtype), shape)


def _take(tokens: Tokens, indices: Tensor) -> Tokens:
    """Rows of [B, N, D] by int [B, n]: [B, n, D]."""
    return ops.take_along_axis(tokens, ops.expand_dims(indices, -1), axis=1)


class ColorLosses(keras.layers.Layer):
    """Cross-entropy of each patch's 3-bit colors (B.1.2): 8^C classes, 512 of RGB.

    Args:
        side: Side of a patch in pixels.
        divisions: 1 for a patch's mean color, 4 for those of its 4x4 parts.

    Call arguments:
        predictions: float32 [B, N, divisions^2 * 8^C], logits.
        images: float32 [B, H, W, C], pixels from 0 to 255.

    Returns:
        float32 [B, N, 2]: mean loss of a patch's colors, share of right predictions.
    """

    def __init__(self, side: int, divisions: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.side = side
        self.divisions = divisions

    def call(self, predictions: Logits, images: Images) -> Tensor:
        codes = color_codes(images, self.side, self.divisions)  # [B, N, colors]
        classes = LEVELS ** images.shape[-1]
        logits = ops.reshape(predictions, (-1, *codes.shape[1:], classes))
        losses = keras.losses.sparse_categorical_crossentropy(
            codes, logits, from_logits=True
        )
        right = ops.cast(ops.argmax(logits, axis=-1) == codes, "float32")
        return ops.stack([ops.mean(losses, axis=-1), ops.mean(right, axis=-1)], axis=-1)


def color_codes(images: Images, side: int, divisions: int) -> Tensor:
    """Each patch's colors of 3 bits in each channel, the first one the highest.

    Args:
        images: float32 [B, H, W, C], pixels from 0 to 255.
        side: Side of a patch in pixels.
        divisions: Number of colors along it.

    Returns:
        int32 [B, N, divisions^2], below 8^C.
    """
    channels = images.shape[-1]
    pixels = split_patches(images, side)
    part = side // divisions
    shape = (-1, pixels.shape[1], divisions, part, divisions, part, channels)
    means = ops.mean(ops.reshape(pixels, shape), axis=(3, 5))
    levels = ops.clip(ops.floor(means * (LEVELS / 256)), 0, LEVELS - 1)
    places = [LEVELS**place for place in reversed(range(channels))]
    codes = ops.sum(levels * ops.convert_to_tensor(places, "float32"), axis=-1)
    return ops.cast(ops.reshape(codes, (-1, pixels.shape[1], divisions**2)), "int32")


class PixelLosses(keras.layers.Layer):
    """Mean error of each patch's pixels.

    Args:
        side: Side of a patch in pixels.
        power: 2 for squared errors (B.1.2, MAE), 1 for absolute ones (SimMIM).
        normalize: Whether each patch's pixels are normalized by their mean and
            variance (MAE, section 4.1).

    Call arguments:
        predictions: float32 [B, N, side * side * C].
        images: float32 [B, H, W, C], normalized pixels.

    Returns:
        float32 [B, N, 1].
    """

    def __init__(self, side: int, power: int, normalize: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.side = side
        self.power = power
        self.normalize = normalize

    def call(self, predictions: Tokens, images: Images) -> Tensor:
        targets = split_patches(images, self.side)
        if self.normalize:
            mean, deviation = patch_statistics(targets)
            targets = (targets - mean) / deviation
        errors = ops.abs(predictions - targets) ** self.power
        return ops.mean(errors, axis=-1, keepdims=True)


def patch_statistics(patches: Tokens) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each patch's pixels [B, N, 1], as MAE's code has them.

    The variance is the unbiased one, over pixels and channels together.
    """
    count = patches.shape[-1]
    mean = ops.mean(patches, axis=-1, keepdims=True)
    variance = ops.var(patches, axis=-1, keepdims=True) * (count / max(count - 1, 1))
    return mean, ops.sqrt(variance + NORM_EPSILON)


def split_patches(images: Images, side: int) -> Tokens:
    """[B, H, W, C] -> [B, N, side * side * C], row by row."""
    _, height, width, channels = images.shape
    rows, columns = height // side, width // side
    x = ops.reshape(images, (-1, rows, side, columns, side, channels))
    x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
    return ops.reshape(x, (-1, rows * columns, side * side * channels))


def join_patches(patches: Tokens, grid: tuple[int, int], side: int) -> Images:
    """[B, N, side * side * C] -> [B, H, W, C], the inverse of `split_patches`."""
    rows, columns = grid
    channels = patches.shape[-1] // side**2
    x = ops.reshape(patches, (-1, rows, columns, side, side, channels))
    x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
    return ops.reshape(x, (-1, rows * side, columns * side, channels))
