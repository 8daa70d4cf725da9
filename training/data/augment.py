"""Augmentation of single training images, as pure functions of a seed.

All operations are stateless: the same seed gives the same pixels, whatever runs in
parallel and whether or not the run was interrupted. A new augmentation is a field of
the recipe's `AugmentationConfig` and a row of `CHANGES`; those that mix images, and so
change labels, are in `mixup`.

Images are uint8, [h, w, C] before and [H, W, C] after `resize`; seeds are int64 [2].
"""

import math
from collections.abc import Callable

import tensorflow as tf

from keras_vit import ImagePreprocessing, decoding

from ..augmentation_config import AugmentationConfig
from ..errors import require
from .augmentation_policies import apply_policy, color_jitter
from .image_operations import affine_warp, rectangle
from .labeled_images import Split

CROP_RATIOS = (3 / 4, 4 / 3)
CROP_PADDING = 4  # pixels, of the simple crop
ERASED_AREAS, ERASED_RATIOS = (0.02, 1 / 3), (0.3, 1 / 0.3)

# Of an example's random numbers: the last 8 bits of its seed. `masking` has others.
PURPOSES = range(9)
CROP, FLIP, SHIFT, POLICY, JITTER, ERASE, MIX, CUT, WARP = PURPOSES


def example_seed(
    seed: int, epoch: tf.Tensor, index: tf.Tensor, copy: tf.Tensor | int = 0
) -> tf.Tensor:
    """The seeds of images in an epoch, each packed into two integers.

    Args:
        seed: The run's seed, below 2**31.
        epoch: Integer, below 2**32.
        index: int64 of any shape, the index of each image, below 2**39.
        copy: Of the same shape, which of the image's repeats it is, below 2**16.

    Returns:
        int64 [..., 2].
    """
    index = tf.cast(index, tf.int64)
    run = tf.cast(epoch, tf.int64) + seed * 2**32
    example = index * 2**24 + tf.cast(copy, tf.int64) * 2**8
    return tf.stack([tf.broadcast_to(run, tf.shape(example)), example], axis=-1)


def for_purpose(seed: tf.Tensor, purpose: int) -> tf.Tensor:
    """Derive the seed of one operation."""
    return seed + tf.constant([0, purpose], tf.int64)


def augment(
    split: Split,
    index: tf.Tensor,
    seed: tf.Tensor,
    config: AugmentationConfig,
    preprocessing: ImagePreprocessing,
) -> tf.Tensor:
    """Read, resize and augment one image of a split: uint8 [H, W, C]."""
    image = read(split, index, seed, config)
    if not split.fitted:
        image = resize(image, seed, config, preprocessing)
    return change(image, seed, config)


def read(
    split: Split, index: tf.Tensor, seed: tf.Tensor, config: AugmentationConfig
) -> tf.Tensor:
    """Read the image, or a random crop of it: uint8 [h, w, C]."""
    if config.crop_min_area == 1:
        return split.read(index)
    crop = for_purpose(seed, CROP)
    return split.read_part(
        index, lambda shape: crop_window(shape, crop, config.crop_min_area)
    )


def resize(
    image: tf.Tensor,
    seed: tf.Tensor,
    config: AugmentationConfig,
    preprocessing: ImagePreprocessing,
) -> tf.Tensor:
    """Resize the image to the model's size: uint8 [H, W, C]."""
    if config.simple_crop:
        return simple_crop(image, for_purpose(seed, CROP), preprocessing)
    if config.crop_from:
        crop = for_purpose(seed, CROP)
        return resized_crop(image, crop, preprocessing, config.crop_from)
    if config.crop_min_area < 1:
        preprocessing = _with_resize(preprocessing, "plain")
    return fit_to_model(image, preprocessing)


def change(image: tf.Tensor, seed: tf.Tensor, config: AugmentationConfig) -> tf.Tensor:
    """Flip, move, change colors and erase: uint8 [H, W, C] to the same shape."""
    for fields, apply in CHANGES.items():
        if any(getattr(config, field) not in (0, "none") for field in fields):
            image = apply(image, seed, config)
    return image


def fit_to_model(image: tf.Tensor, preprocessing: ImagePreprocessing) -> tf.Tensor:
    """Resize and crop the image as in evaluation and serving: uint8 [H, W, C]."""
    unchanged = preprocessing.crop_fraction == 1.0
    if unchanged and tuple(image.shape[:2]) == preprocessing.image_size:
        return image
    return decoding.resize_image(image, preprocessing)


def _with_resize(preprocessing: ImagePreprocessing, policy: str) -> ImagePreprocessing:
    """The same resampling with another resize policy, without a center crop."""
    return ImagePreprocessing(
        preprocessing.image_size,
        interpolation=preprocessing.interpolation,
        antialias=preprocessing.antialias,
        resize=policy,
    )


def crop_window(shape: tf.Tensor, seed: tf.Tensor, min_area: float) -> tf.Tensor:
    """Choose an inception crop: at least `min_area` of the image, sides 3:4 to 4:3.

    Returns:
        int32 [4]: top, left, height, width.
    """
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.zeros([1, 0, 4]),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=CROP_RATIOS,
        area_range=(min_area, 1.0),
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], size[:2]], axis=0)


def simple_crop(
    image: tf.Tensor, seed: tf.Tensor, preprocessing: ImagePreprocessing
) -> tf.Tensor:
    """DeiT III's simple crop: resize the shorter side, pad 4 pixels, crop at random."""
    whole = _with_resize(preprocessing, "small")
    size = decoding.resized_size(image, whole)
    image = decoding.resample(image, size, preprocessing)
    border = [CROP_PADDING, CROP_PADDING]
    image = tf.pad(image, [border, border, [0, 0]], "REFLECT")
    shape = [*whole.image_size, image.shape[-1]]
    return tf.image.stateless_random_crop(image, shape, seed)


def resized_crop(
    image: tf.Tensor, seed: tf.Tensor, preprocessing: ImagePreprocessing, side: int
) -> tf.Tensor:
    """BiT-HyperRule's crop: resize to a square of `side`, crop at a random position.

    Raises:
        RecipeError: `side` is smaller than the model's size.
    """
    size = preprocessing.image_size
    wanted = f"0, or at least model.image_size ({max(size)})"
    require(side >= max(size), "augmentation.crop_from", wanted, side)
    image = decoding.resample(image, [side, side], preprocessing)
    return tf.image.stateless_random_crop(image, [*size, image.shape[-1]], seed)


def random_flip(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Flip the image left to right with probability 0.5."""
    mirrored = tf.random.stateless_uniform([], seed) < 0.5
    # Not image[:, ::-1], which takes twenty times as long.
    flipped = tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)
    return tf.ensure_shape(flipped, image.shape)


def random_shift(image: tf.Tensor, seed: tf.Tensor, largest: int) -> tf.Tensor:
    """Shift the image by whole pixels, and repeat its border.

    Each shift is a rounded uniform number from -largest to largest, so that with a
    largest shift of one pixel, half of the images do not move along each axis.
    """
    shift = tf.cast(_random_pixels(seed, largest), tf.int32)
    for axis in (0, 1):
        side = image.shape[axis]
        source = tf.clip_by_value(tf.range(side) + shift[axis], 0, side - 1)
        image = tf.gather(image, source, axis=axis)
    return image


def random_warp(
    image: tf.Tensor, seed: tf.Tensor, config: AugmentationConfig
) -> tf.Tensor:
    """Rotate the image about its center, change its size and shift it, in one warp.

    The angle and the change of either side are uniform; the shift is that of
    `random_shift`. Values between pixels are bilinear, and the border is repeated.
    """
    numbers = tf.random.stateless_uniform([3], for_purpose(seed, WARP), -1.0, 1.0)
    angle = numbers[0] * math.radians(config.rotate)
    sides = 1 + numbers[1:] * config.scale
    shift = _random_pixels(for_purpose(seed, SHIFT), config.shift)
    cos, sin = tf.cos(angle), tf.sin(angle)
    matrix = tf.stack([[cos, sin], [-sin, cos]]) / sides[:, tf.newaxis]
    return affine_warp(image, matrix, shift)


def _random_pixels(seed: tf.Tensor, largest: int) -> tf.Tensor:
    """Rows and columns of a shift: float32 [2], whole numbers."""
    shift = tf.random.stateless_uniform([2], seed, -float(largest), float(largest))
    return tf.round(shift)


def random_erase(
    image: tf.Tensor, seed: tf.Tensor, probability: float, trials: int = 10
) -> tf.Tensor:
    """Fill a rectangle with uniform noise (arXiv:1708.04896).

    The area is uniform in 2 to 33 % of the image, the logarithm of height : width
    uniform in that of 0.3 to 3.33 (timm's choice, which DeiT used). Where none of the
    trials fits into the image, it is not changed.
    """
    seeds = tf.unstack(tf.random.split(seed, 3))
    numbers = tf.random.stateless_uniform([4, trials], seeds[0])

    def erase() -> tf.Tensor:
        begin, size = _first_that_fits(numbers, image.shape)
        noise = tf.random.stateless_uniform(
            image.shape, seeds[1], minval=0, maxval=256, dtype=tf.int32
        )
        mask = rectangle(image.shape, begin, begin + size)
        return image * (1 - mask) + tf.cast(noise, tf.uint8) * mask

    chosen = tf.random.stateless_uniform([], seeds[2]) < probability
    return tf.ensure_shape(tf.cond(chosen, erase, lambda: image), image.shape)


def _first_that_fits(
    numbers: tf.Tensor, shape: tf.TensorShape
) -> tuple[tf.Tensor, tf.Tensor]:
    """Begin and size, int32 [2] each, of a rectangle; its size is 0 if none fits.

    Args:
        numbers: float32 [4, trials] in [0, 1): area, ratio, row and column.
        shape: The image's shape.
    """
    sides = tf.cast(shape[:2], tf.float32)
    areas, logs = ERASED_AREAS, [math.log(ratio) for ratio in ERASED_RATIOS]
    area = tf.reduce_prod(sides) * (areas[0] + numbers[0] * (areas[1] - areas[0]))
    ratio = tf.exp(logs[0] + numbers[1] * (logs[1] - logs[0]))
    sizes = tf.round(tf.sqrt(tf.stack([area * ratio, area / ratio], axis=1)))
    fits = tf.reduce_all(sizes < sides, axis=1)
    first = tf.argmax(tf.cast(fits, tf.int32))
    size = tf.where(tf.reduce_any(fits), sizes[first], tf.zeros(2))
    begin = tf.floor(numbers[2:, first] * (sides - size + 1))
    return tf.cast(begin, tf.int32), tf.cast(size, tf.int32)


def _move(image: tf.Tensor, seed: tf.Tensor, config: AugmentationConfig) -> tf.Tensor:
    if config.rotate or config.scale:
        return random_warp(image, seed, config)
    return random_shift(image, for_purpose(seed, SHIFT), config.shift)


# In this order: the fields, of which one switches it on, and a function of the image
# uint8 [H, W, C], the example's seed and the config.
CHANGES: dict[tuple[str, ...], Callable[..., tf.Tensor]] = {
    ("flip",): lambda image, seed, _: random_flip(image, for_purpose(seed, FLIP)),
    ("rotate", "scale", "shift"): _move,
    ("policy",): lambda image, seed, config: apply_policy(
        image, for_purpose(seed, POLICY), config
    ),
    ("color_jitter",): lambda image, seed, config: color_jitter(
        image, for_purpose(seed, JITTER), config.color_jitter
    ),
    ("erase",): lambda image, seed, config: random_erase(
        image, for_purpose(seed, ERASE), config.erase
    ),
}
