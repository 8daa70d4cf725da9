"""Input checks in the graph: shapes, batch and image sizes, finite values.

TensorFlow Serving does not compare inputs with the SignatureDef, so every check is an
operation. All of them fail with INVALID_ARGUMENT, the one code of TensorFlow's
assertions. That is right for non-finite outputs too: a retry, as after UNAVAILABLE,
would give the same.
"""

from collections.abc import Sequence

import tensorflow as tf

from keras_vit.image_files.formats import count_pixels


def checked_batch(
    batch: tf.Tensor, name: str, shape: Sequence[int], max_images: int
) -> tf.Tensor:
    """Check that a batch is [B, *shape], B from 1 to `max_images`."""
    batch = tf.ensure_shape(batch, [None, *shape])
    images = tf.shape(batch)[0]
    fits = (images >= 1) & (images <= max_images)
    text = f"`{name}` must hold 1 to {max_images} images. Received:"
    with tf.control_dependencies([tf.debugging.Assert(fits, [text, images])]):
        return tf.identity(batch)


def checked_sizes(files: tf.Tensor, name: str, max_bytes: int) -> tf.Tensor:
    """Check that each of the files [B], B > 0, has 1 to `max_bytes` bytes."""
    sizes = tf.strings.length(files)
    fits = (sizes >= 1) & (sizes <= max_bytes)
    bad = _first_false(fits)
    text = f"Each image of `{name}` must have 1 to {max_bytes} bytes. Received:"
    message = [text, sizes[bad], "bytes at index", bad]
    check = tf.debugging.Assert(tf.reduce_all(fits), message)
    with tf.control_dependencies([check]):
        return tf.identity(files)


def checked_pixels(
    data: tf.Tensor, index: tf.Tensor, name: str, max_pixels: int
) -> tf.Tensor:
    """Check that the file at an index announces 1 to `max_pixels` pixels."""
    pixels = count_pixels(data, "At index", index)
    fits = (pixels >= 1) & (pixels <= max_pixels)
    text = (
        f"Each image of `{name}` must have 1 to {max_pixels} pixels, height times "
        "width. Received:"
    )
    message = [text, tf.as_string(pixels), "pixels at index", index]
    check = tf.debugging.Assert(fits, message)
    with tf.control_dependencies([check]):
        return tf.identity(data)


def checked_finite(batch: tf.Tensor, text: str) -> tf.Tensor:
    """Check that all values of a batch [B, ...] are finite; `text` is the message."""
    rows = tf.reshape(tf.math.is_finite(batch), [tf.shape(batch)[0], -1])
    fits = tf.reduce_all(rows, axis=1)
    message = [text, "At index", _first_false(fits)]
    check = tf.debugging.Assert(tf.reduce_all(fits), message)
    with tf.control_dependencies([check]):
        return tf.identity(batch)


def _first_false(fits: tf.Tensor) -> tf.Tensor:
    return tf.argmin(tf.cast(fits, tf.int32), output_type=tf.int32)
