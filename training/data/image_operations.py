"""Deterministic image operations of RandAugment and AutoAugment.

Most are those of tf-models-official (`official.vision.ops.augment`); the rest, and the
scale of the levels, follow the first published code (tensorflow/tpu, autoaugment.py)
and its copy in big_vision (pp/archive/autoaugment.py), with which the AugReg models
were trained. There AutoAugment's levels go up to 10, and RandAugment's magnitude is a
level too, so that a magnitude of 15 rotates by 45 degrees.
"""

import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias

import tensorflow as tf

from ..errors import TrainingError

GRAY = 128  # fills what has no source pixel
CUTOUT, TRANSLATE = 40, 100  # pixels at level 10, of RandAugment in both codes

Level: TypeAlias = float | tf.Tensor  # a float32 scalar


@functools.cache
def official() -> ModuleType:
    """tf-models-official's module of image operations.

    Raises:
        TrainingError: It is not installed.
    """
    try:
        from official.vision.ops import augment
    except ImportError as error:
        raise TrainingError(
            "randaugment and autoaugment need the image operations of tf-models-"
            f'official: pip install -c constraints.txt -e ".[models]" ({error})'
        ) from None
    module: ModuleType = augment
    return module


def blend(degenerate: tf.Tensor, image: tf.Tensor, factor: Level) -> tf.Tensor:
    """Blend: `degenerate` at factor 0, `image` at 1, extrapolated above; clipped."""
    start = tf.cast(degenerate, tf.float32)
    mixed = start + factor * (tf.cast(image, tf.float32) - start)
    return tf.cast(tf.clip_by_value(mixed, 0.0, 255.0), tf.uint8)


def brightness(image: tf.Tensor, factor: Level) -> tf.Tensor:
    """Change the brightness; black at factor 0."""
    return blend(tf.zeros_like(image), image, factor)


def color(image: tf.Tensor, factor: Level) -> tf.Tensor:
    """Change the saturation; gray at factor 0."""
    return blend(tf.image.rgb_to_grayscale(image), image, factor)


def contrast(image: tf.Tensor, factor: Level) -> tf.Tensor:
    """Change the contrast; at factor 0 the mean of the gray image, as in Pillow."""
    gray = tf.image.rgb_to_grayscale(image) if image.shape[-1] == 3 else image
    mean = tf.floor(tf.reduce_mean(tf.cast(gray, tf.float32)))
    return blend(mean, image, factor)


def sharpness(image: tf.Tensor, factor: Level) -> tf.Tensor:
    """Change the sharpness; smoothed at factor 0."""
    return blend(official().sharpness(image, 0.0), image, factor)


def solarize(image: tf.Tensor, threshold: tf.Tensor | int = 128) -> tf.Tensor:
    """Invert the values from `threshold` on."""
    high = tf.cast(image >= tf.cast(threshold, tf.uint8), tf.uint8)
    return tf.bitwise.bitwise_xor(image, 255 * high)  # a tenth of the time of tf.where


def transform(image: tf.Tensor, matrix: list[Level]) -> tf.Tensor:
    """Apply an affine transform, two rows of a matrix from output to input pixels."""
    row = tf.stack([tf.cast(number, tf.float32) for number in (*matrix, 0.0, 0.0)])
    return official().transform(image, row, fill_mode="constant", fill_value=GRAY)


def affine_warp(image: tf.Tensor, matrix: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
    """Warp the image about its center; bilinear, the border is repeated.

    The pixel at p takes the value at center + matrix (p - center) + shift, of rows and
    columns: float32 [2, 2] and [2]. Unlike `transform` it rounds to the nearest value,
    and needs TensorFlow alone.
    """
    center = (tf.cast(image.shape[:2], tf.float32) - 1) / 2
    begin = center + shift - tf.linalg.matvec(matrix, center)
    (yy, yx), (xy, xx) = (tf.unstack(row) for row in tf.unstack(matrix))
    warped = tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.cast(image, tf.float32)[tf.newaxis],
        transforms=[[xx, xy, begin[1], yx, yy, begin[0], 0.0, 0.0]],
        output_shape=image.shape[:2],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="NEAREST",
    )
    return tf.cast(tf.round(warped[0]), tf.uint8)


def rotate(image: tf.Tensor, degrees: Level) -> tf.Tensor:
    """Rotate about the center."""
    angle = tf.cast(degrees, tf.float32) * (math.pi / 180)
    cos, sin = tf.cos(angle), tf.sin(angle)
    y, x = ((tf.cast(side, tf.float32) - 1) / 2 for side in image.shape[:2])
    return transform(
        image, [cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y]
    )


def rectangle(shape: tf.TensorShape, begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """A rectangular mask, uint8 [H, W, C]: 1 inside, 0 outside.

    `begin`, int32 [2], is the first row and column inside, `end` the first after it;
    both may be outside of the image.
    """
    height, width, channels = shape
    rows, columns = tf.range(height), tf.repeat(tf.range(width), channels)
    inside = [
        tf.cast((places >= begin[axis]) & (places < end[axis]), tf.uint8)
        for axis, places in enumerate((rows, columns))
    ]
    mask = inside[0][:, tf.newaxis] * inside[1]  # [H, W * C]
    return tf.reshape(mask, shape)


def translate(image: tf.Tensor, pixels: Level, axis: int) -> tf.Tensor:
    """Translate the image by -`pixels` along an axis.

    It takes a tenth of the time of the equivalent `transform`.
    """
    pixels = tf.cast(tf.round(pixels), tf.int32)
    before, after = tf.maximum(-pixels, 0), tf.maximum(pixels, 0)
    padding, begin = [[0, 0], [0, 0], [0, 0]], [0, 0, 0]
    padding[axis], begin[axis] = [before, after], after
    padded = tf.pad(image, padding, constant_values=GRAY)
    return tf.slice(padded, begin, image.shape)


def solarize_add(image: tf.Tensor, addition: tf.Tensor) -> tf.Tensor:
    """Brighten the values below 128, up to 255."""
    dark = tf.cast(image < 128, tf.uint8)
    return image + dark * tf.minimum(255 - image, tf.cast(addition, tf.uint8))


def cutout(image: tf.Tensor, half: Level, center: tf.Tensor) -> tf.Tensor:
    """Fill a square of side 2 * half, clipped at the border, with gray.

    The center, float32 [2] in [0, 1), is relative to the image's sides.
    """
    middle = tf.cast(center * tf.cast(image.shape[:2], tf.float32), tf.int32)
    square = rectangle(image.shape, middle - half, middle + half)
    return image * (1 - square) + GRAY * square


def _whole(level: Level, at_ten: int) -> tf.Tensor:
    """The level, scaled so that 10 becomes `at_ten`, rounded down as in the codes."""
    return tf.cast(tf.floor(level * (at_ten / 10)), tf.int32)


def _enhancing(operation: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    return lambda image, level, sign, center: operation(image, level * 0.18 + 0.1)


def _posterize(
    image: tf.Tensor, level: Level, sign: tf.Tensor, center: tf.Tensor
) -> tf.Tensor:
    # More bits are a weaker change: so it is in both codes, unlike in the paper.
    bits = tf.clip_by_value(_whole(level, 4), 1, 8)
    return official().posterize(image, tf.cast(bits, tf.uint8))


def _solarize(
    image: tf.Tensor, level: Level, sign: tf.Tensor, center: tf.Tensor
) -> tf.Tensor:
    # The reference's constant is a byte: 384, of magnitude 15, has always been 128.
    return solarize(image, _whole(level, 256) % 256)


def _solarize_add(
    image: tf.Tensor, level: Level, sign: tf.Tensor, center: tf.Tensor
) -> tf.Tensor:
    return solarize_add(image, tf.minimum(_whole(level, 110), 255))


# Name to operation: from the image uint8 [H, W, 3], the level, the sign +1 or -1, and
# two random numbers float32 [2] in [0, 1), to an image of the same shape. RandAugment
# chooses among all of them: another row would change its recipes. What is no part of it
# is a row of `augment.CHANGES`.
OPERATIONS: dict[str, Callable[..., tf.Tensor]] = {
    "AutoContrast": lambda image, *_: official().autocontrast(image),
    "Equalize": lambda image, *_: official().equalize(image),
    "Invert": lambda image, *_: 255 - image,
    "Rotate": lambda image, level, sign, _: rotate(image, sign * level * 3.0),
    "Posterize": _posterize,
    "Solarize": _solarize,
    "Color": _enhancing(color),
    "Contrast": _enhancing(contrast),
    "Brightness": _enhancing(brightness),
    "Sharpness": _enhancing(sharpness),
    "ShearX": lambda image, level, sign, _: transform(
        image, [1.0, sign * level * 0.03, 0.0, 0.0, 1.0, 0.0]
    ),
    "ShearY": lambda image, level, sign, _: transform(
        image, [1.0, 0.0, 0.0, sign * level * 0.03, 1.0, 0.0]
    ),
    "TranslateX": lambda image, level, sign, _: translate(
        image, sign * level * (TRANSLATE / 10), axis=1
    ),
    "TranslateY": lambda image, level, sign, _: translate(
        image, sign * level * (TRANSLATE / 10), axis=0
    ),
    "Cutout": lambda image, level, _, center: cutout(
        image, _whole(level, CUTOUT), center
    ),
    "SolarizeAdd": _solarize_add,
}


def gaussian_blur(image: tf.Tensor, sigma: Level, radius: int = 6) -> tf.Tensor:
    """Blur with a Gaussian of standard deviation `sigma` pixels; reflects the border.

    Args:
        image: uint8 [H, W, C].
        sigma: At most a third of `radius`.
        radius: Pixels on each side that count.
    """
    weights = tf.exp(-0.5 * (tf.range(-radius, radius + 1.0) / sigma) ** 2)
    weights = tf.reshape(weights / tf.reduce_sum(weights), [-1, 1, 1, 1])
    kernel = tf.repeat(weights, image.shape[-1], axis=2)  # [2 * radius + 1, 1, C, 1]
    padding = [[radius, radius], [radius, radius], [0, 0]]
    blurred = tf.pad(tf.cast(image, tf.float32), padding, "REFLECT")[tf.newaxis]
    for one_axis in (kernel, tf.transpose(kernel, [1, 0, 2, 3])):
        blurred = tf.nn.depthwise_conv2d(blurred, one_axis, [1, 1, 1, 1], "VALID")
    return tf.cast(tf.round(blurred[0]), tf.uint8)
