"""Augmentation policies: RandAugment, AutoAugment, 3-Augment and color jitter.

All are pure functions of an image, uint8 [H, W, C] (of a policy RGB), and a seed, an
integer [2]. Of several operations only the chosen one is computed.
"""

import tensorflow as tf

from ..augmentation_config import AugmentationConfig
from .image_operations import (
    OPERATIONS,
    Level,
    brightness,
    color,
    contrast,
    gaussian_blur,
    official,
    solarize,
)

STRONGEST = 30.0  # magnitude; see AugmentationConfig
BLUR = (0.1, 2.0)  # standard deviations of 3-Augment's blur, in pixels


def apply_policy(
    image: tf.Tensor, seed: tf.Tensor, config: AugmentationConfig
) -> tf.Tensor:
    """Apply `config.policy` to an image of static shape."""
    shape = image.shape
    policies = {
        "randaugment": lambda rgb: randaugment(
            rgb, seed, config.layers, config.magnitude, config.magnitude_std
        ),
        "autoaugment": lambda rgb: autoaugment(rgb, seed),
        "three_augment": lambda rgb: three_augment(rgb, seed),
    }
    if config.policy == "none":
        return image
    # The operations need RGB; of a gray image they change all channels alike.
    rgb = tf.image.grayscale_to_rgb(image) if shape[-1] == 1 else image
    changed = policies[config.policy](rgb)
    return tf.ensure_shape(changed[..., : shape[-1]], shape)


def randaugment(
    image: tf.Tensor,
    seed: tf.Tensor,
    layers: int,
    magnitude: float,
    magnitude_std: float = 0.0,
) -> tf.Tensor:
    """RandAugment: apply `layers` operations in a row (arXiv:1909.13719).

    Each is one of the sixteen `OPERATIONS`, chosen uniformly, and has the same
    magnitude (0 to 30), and a random sign where it has a direction; as in big_vision's
    `randaug`, with which AugReg's magnitudes were chosen. `magnitude_std` is that of
    normal noise added to each magnitude (timm's mstd), clipped to [0, 30].
    """
    numbers = tf.random.stateless_uniform([layers, 4], seed)
    magnitudes = [magnitude] * layers
    if magnitude_std:
        changed = tf.random.stateless_normal(
            [layers], tf.random.split(seed, 1)[0], magnitude, magnitude_std
        )
        magnitudes = tf.unstack(tf.clip_by_value(changed, 0.0, STRONGEST))
    for row, level in zip(tf.unstack(numbers), magnitudes, strict=True):
        choice = tf.cast(row[0] * len(OPERATIONS), tf.int32)
        image = _operation(image, choice, tf.convert_to_tensor(level), row)
    return image


@tf.function(autograph=False)
def _operation(
    image: tf.Tensor, choice: tf.Tensor, level: Level, numbers: tf.Tensor
) -> tf.Tensor:
    """Apply one of `OPERATIONS`, or none if `choice` is their number.

    A graph of its own for each size of image: every operation takes a tenth of a second
    to trace. Of the four random `numbers` in [0, 1) the first is not used.
    """
    sign = tf.where(numbers[1] < 0.5, -1.0, 1.0)
    branches = [
        lambda operation=operation: tf.ensure_shape(
            operation(image, level, sign, numbers[2:]), image.shape
        )
        for operation in OPERATIONS.values()
    ]
    return tf.switch_case(choice, [*branches, lambda: image])


def autoaugment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """AutoAugment: apply one of the 25 pairs of operations found on ImageNet.

    Table 9 of arXiv:1805.09501: each operation of a pair has its own probability and
    level.
    """
    policy = official().AutoAugment.policy_reduced_imagenet()
    names = list(OPERATIONS)
    table = [
        [(names.index(name), probability, level) for name, probability, level in pair]
        for pair in policy
    ]
    numbers = tf.random.stateless_uniform([1 + 2 * 4], seed)
    pair = tf.constant(table, tf.float32)[tf.cast(numbers[0] * len(table), tf.int32)]
    rows = tf.reshape(numbers[1:], [2, 4])
    for (index, probability, level), row in zip(
        (tf.unstack(each) for each in tf.unstack(pair)), tf.unstack(rows), strict=True
    ):
        choice = tf.where(row[0] < probability, index, len(names))
        image = _operation(image, tf.cast(choice, tf.int32), level, row)
    return image


def three_augment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """3-Augment of DeiT III: grayscale, solarize at 128 or blur, chosen uniformly.

    arXiv:2204.07118, section 3; the blur's deviation is uniform in 0.1 to 2 pixels.
    """
    numbers = tf.random.stateless_uniform([2], seed)
    low, high = BLUR
    branches = [
        lambda: tf.image.grayscale_to_rgb(tf.image.rgb_to_grayscale(image)),
        lambda: solarize(image),
        lambda: gaussian_blur(image, low + numbers[1] * (high - low)),
    ]
    return tf.switch_case(tf.cast(numbers[0] * len(branches), tf.int32), branches)


def color_jitter(image: tf.Tensor, seed: tf.Tensor, largest: float) -> tf.Tensor:
    """Color jitter: change brightness, contrast and saturation in a random order.

    Each factor is uniform in 1 - largest to 1 + largest (torchvision's ColorJitter). A
    gray image has no saturation.
    """
    operations = [brightness, contrast, color][: 3 if image.shape[-1] == 3 else 2]
    count, shape = len(operations), image.shape
    numbers = tf.random.stateless_uniform([2, count], seed)
    factors = 1 + largest * (2 * numbers[0] - 1)
    for choice in tf.unstack(tf.argsort(numbers[1])):
        branches = [
            lambda operation=operation, place=place, image=image: operation(
                image, factors[place]
            )
            for place, operation in enumerate(operations)
        ]
        image = tf.ensure_shape(tf.switch_case(choice, branches), shape)
    return image
