"""Image files to pixels in TensorFlow operations, for training and for serving.

The one module of this package that needs TensorFlow, which it imports when a function
is first called. Every function can stand in a `tf.data` pipeline and in a SavedModel.
"""

import os
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from keras_vit.preprocessing import ImagePreprocessing

__all__ = ["decode_and_resize", "decode_image", "load_image", "resize_image"]

CHANNELS = (1, 3)


def decode_image(image_bytes, channels: int = 3):
    """Decodes a JPEG, PNG, GIF, BMP or WebP file.

    An animation gives its first frame, 16 bits are reduced to 8, transparency is
    dropped, CMYK becomes RGB. Rotation stored as EXIF is not applied.

    Args:
        image_bytes: Scalar string tensor: the file's contents.
        channels: 3 for RGB, 1 for gray (luma of ITU-R BT.601).

    Returns:
        uint8 tensor [h, w, channels].

    Raises:
        ValueError: `channels` is neither 1 nor 3.
        tf.errors.InvalidArgumentError: Not an image, or a damaged one.
    """
    import tensorflow as tf

    if channels not in CHANNELS:
        raise ValueError(f"`channels` must be 1 or 3. Received: channels={channels}")
    # Always through RGB: each decoder has its own idea of gray, and GIF and BMP none.
    image = tf.io.decode_image(image_bytes, channels=3, expand_animations=False)
    image = tf.ensure_shape(image, [None, None, 3])
    return tf.image.rgb_to_grayscale(image) if channels == 1 else image


def resize_image(image, preprocessing: "ImagePreprocessing"):
    """Resizes and crops one image by the model's own policy.

    Args:
        image: Tensor [h, w, C], 0 to 255.
        preprocessing: The layer that holds size, interpolation and crop.

    Returns:
        uint8 tensor [H, W, C], rounded to the nearest, so that it does not matter
        whether a client, the training pipeline or the server resized the image.
    """
    import tensorflow as tf

    channels = image.shape[-1]
    height, width = preprocessing.image_size
    top, left = preprocessing.crop_offset
    image = tf.image.resize(
        image,
        preprocessing.resize_size,
        method=preprocessing.interpolation,
        antialias=preprocessing.antialias,
    )
    image = image[top : top + height, left : left + width]
    image = tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)
    return tf.ensure_shape(image, [height, width, channels])


def decode_and_resize(image_bytes, preprocessing: "ImagePreprocessing", channels=3):
    """`decode_image`, then `resize_image`: a file to the model's input.

    Args:
        image_bytes: Scalar string tensor: the file's contents.
        preprocessing: The layer that holds size, interpolation and crop.
        channels: 3 or 1.

    Returns:
        uint8 tensor [H, W, channels].
    """
    return resize_image(decode_image(image_bytes, channels), preprocessing)


def load_image(path: str | os.PathLike[str], channels: int = 3) -> np.ndarray[Any, Any]:
    """Reads one image file.

    Args:
        path: The file.
        channels: 3 or 1.

    Returns:
        uint8 array [h, w, channels].

    Raises:
        ValueError: The file cannot be read or decoded; the message names it.
    """
    import tensorflow as tf

    try:
        with open(path, "rb") as file:
            image_bytes = file.read()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        return decode_image(tf.constant(image_bytes), channels).numpy()
    except tf.errors.InvalidArgumentError as error:
        reason = error.message.split(" [Op:")[0].split("}} ")[-1]
        raise ValueError(f"{path}: not a readable image: {reason}") from None
