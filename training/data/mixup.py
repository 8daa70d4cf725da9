"""Mixup and CutMix of pairs of images and their labels.

Mixed images are rounded to bytes like all others, as the model normalizes them.
"""

import tensorflow as tf

from ..augmentation_config import CHANGES_LABELS, AugmentationConfig, marked
from ..errors import RecipeError
from .augment import CUT, MIX, for_purpose
from .image_operations import rectangle


def mixes(config: AugmentationConfig) -> bool:
    """Whether images are mixed at all."""
    return bool(marked(CHANGES_LABELS, config))


def check_pairs(config: AugmentationConfig, batch_size: int, replicas: int) -> None:
    """Raise RecipeError where images are mixed, but a replica's batch size is odd."""
    if mixes(config) and batch_size // replicas % 2:
        raise RecipeError(
            "`batch_size` must give each replica an even number of images, as mixup "
            f"and cutmix take pairs. Received: {batch_size} for {replicas} replicas"
        )


def mix_pair(
    images: tf.Tensor, labels: tf.Tensor, seeds: tf.Tensor, config: AugmentationConfig
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mix each of two images with the other, with independent ratios.

    Where both mixup and cutmix are on, `config.cutmix_share` of the images take cutmix.
    Images are uint8 [2, H, W, C], labels float32 [2, classes], before and after.
    """
    first, second = tf.unstack(images)
    one, share = mix(first, second, seeds[0], config)
    two, other_share = mix(second, first, seeds[1], config)
    shares = tf.stack([share, other_share])[:, tf.newaxis]
    labels = shares * labels + (1 - shares) * labels[::-1]
    return tf.stack([one, two]), labels


def mix(
    image: tf.Tensor, other: tf.Tensor, seed: tf.Tensor, config: AugmentationConfig
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mix one image, uint8 [H, W, C], with another one.

    Returns:
        The mixed image, and the share of `image` in it, a float32 scalar.
    """
    ratio, choice = for_purpose(seed, MIX), for_purpose(seed, CUT)

    def with_mixup() -> tuple[tf.Tensor, tf.Tensor]:
        return mixup(image, other, ratio, config.mixup)

    def with_cutmix() -> tuple[tf.Tensor, tf.Tensor]:
        return cutmix(image, other, ratio, config.cutmix)

    if not config.cutmix:
        return with_mixup()
    if not config.mixup:
        return with_cutmix()
    cut = tf.random.stateless_uniform([], choice) < config.cutmix_share
    mixed: tuple[tf.Tensor, tf.Tensor] = tf.cond(cut, with_cutmix, with_mixup)
    return mixed


def mixup(
    image: tf.Tensor, other: tf.Tensor, seed: tf.Tensor, alpha: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mixup: the weighted mean, with a Beta(alpha, alpha) weight (arXiv:1710.09412).

    Arguments and results are those of `mix`.
    """
    ratio = beta(seed, alpha)
    start = tf.cast(other, tf.float32)
    mixed = start + ratio * (tf.cast(image, tf.float32) - start)
    return tf.cast(tf.round(mixed), tf.uint8), ratio


def cutmix(
    image: tf.Tensor, other: tf.Tensor, seed: tf.Tensor, alpha: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """CutMix: replace a rectangle of the image by that of `other` (arXiv:1905.04899).

    Its area is 1 - Beta(alpha, alpha) of the image's, with the image's aspect ratio and
    a uniform center. It is clipped at the border, before the share is computed.

    Arguments and results are those of `mix`.
    """
    ratio_seed, place_seed = tf.unstack(tf.random.split(seed, 2))
    sides = tf.cast(image.shape[:2], tf.float32)
    size = tf.cast(tf.sqrt(1 - beta(ratio_seed, alpha)) * sides, tf.int32)
    center = tf.cast(tf.random.stateless_uniform([2], place_seed) * sides, tf.int32)
    begin = tf.maximum(center - size // 2, 0)
    end = tf.minimum(center - size // 2 + size, image.shape[:2])
    mask = rectangle(image.shape, begin, end)
    cut = tf.cast(tf.reduce_prod(end - begin), tf.float32)
    return image * (1 - mask) + other * mask, 1 - cut / tf.reduce_prod(sides)


def beta(seed: tf.Tensor, alpha: float) -> tf.Tensor:
    """Draw a float32 scalar from Beta(alpha, alpha), by two gamma variates.

    These are float64: in float32 a small alpha would make both the smallest positive
    number, and their ratio one half.
    """
    one, other = tf.unstack(
        tf.random.stateless_gamma([2], seed, alpha, dtype=tf.float64)
    )
    return tf.cast(one / (one + other), tf.float32)
