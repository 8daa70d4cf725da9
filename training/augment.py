"""Random changes of one training image, as pure functions of a seed.

Stateless operations only: the same seed gives the same pixels, whatever runs in
parallel and whether the run was interrupted.
"""

import tensorflow as tf

from keras_vit import ImagePreprocessing, decoding

from .recipe import AugmentationConfig

CROP_RATIOS = (3 / 4, 4 / 3)


def example_seed(seed: int, epoch: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """The seed of one image in one epoch: int64 [2]."""
    pair = tf.stack([tf.constant(seed, tf.int64), epoch])
    return tf.random.experimental.stateless_fold_in(pair, index)


def augment(
    image: tf.Tensor,
    seed: tf.Tensor,
    config: AugmentationConfig,
    preprocessing: ImagePreprocessing,
) -> tf.Tensor:
    """Crops, resizes, mirrors and shifts one image at random.

    Args:
        image: uint8 [h, w, C].
        seed: Integer [2]; see `example_seed`.
        config: What to do.
        preprocessing: The model's layer: size and resampling.

    Returns:
        uint8 [H, W, C].
    """
    crop_seed, flip_seed, shift_seed = tf.unstack(
        tf.random.experimental.stateless_split(seed, 3)
    )
    if config.crop_min_area < 1:
        image = random_crop(image, crop_seed, config.crop_min_area)
        preprocessing = ImagePreprocessing(
            preprocessing.image_size,
            interpolation=preprocessing.interpolation,
            antialias=preprocessing.antialias,
        )
    image = fit_to_model(image, preprocessing)
    if config.flip:
        image = tf.image.stateless_random_flip_left_right(image, flip_seed)
    if config.shift:
        image = random_shift(image, shift_seed, config.shift)
    return image


def fit_to_model(image: tf.Tensor, preprocessing: ImagePreprocessing) -> tf.Tensor:
    """The image as evaluation and serving see it: uint8 [H, W, C]."""
    unchanged = preprocessing.crop_fraction == 1.0
    if unchanged and tuple(image.shape[:2]) == preprocessing.image_size:
        return image
    return decoding.resize_image(image, preprocessing)


def random_crop(image: tf.Tensor, seed: tf.Tensor, min_area: float) -> tf.Tensor:
    """A part of the image, at least `min_area` of it, sides 3:4 to 4:3."""
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(image),
        bounding_boxes=tf.zeros([1, 0, 4]),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=CROP_RATIOS,
        area_range=(min_area, 1.0),
        use_image_if_no_bounding_boxes=True,
    )
    return tf.slice(image, begin, size)


def random_shift(image: tf.Tensor, seed: tf.Tensor, largest: int) -> tf.Tensor:
    """Moves the image by whole pixels; the border that comes in is repeated.

    Each shift is a rounded uniform number from -largest to largest, so that with a
    largest shift of one pixel, half of the images stay where they are along each axis.
    """
    shift = tf.random.stateless_uniform([2], seed, -float(largest), float(largest))
    shift = tf.cast(tf.round(shift), tf.int32)
    for axis in (0, 1):
        side = image.shape[axis]
        source = tf.clip_by_value(tf.range(side) + shift[axis], 0, side - 1)
        image = tf.gather(image, source, axis=axis)
    return image
