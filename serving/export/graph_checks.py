"""Input checks in the graph: shapes, batch and image sizes, finite values.

TensorFlow Serving does not compare inputs with the SignatureDef, so every check is an
operation. All of them fail with INVALID_ARGUMENT, the one code of TensorFlow's
assertions. That is right for non-finite outputs too: a retry, as after UNAVAILABLE,
would give the same.
"""

from collections.abc import Sequence

import tensorflow as tf

from keras_vit.image_files.formats import count_pixels


def require(condition: tf.Tensor, *message: str | tf.Tensor) -> tf.Operation:
    """Create an operation that fails unless a scalar is true.

    Args:
        condition: bool scalar.
        *message: Texts, and int32 tensors with the received values, in brackets.
    """
    return tf.debugging.Assert(condition, message)


def checked_batch(
    batch: tf.Tensor, name: str, shape: Sequence[int], max_images: int
) -> tf.Tensor:
    """Check that a batch has the shape and 1 to `max_images` rows.

    Args:
        batch: The input.
        name: The name of the input.
        shape: Of each row.
        max_images: The limit.

    Returns:
        Tensor [B, *shape].
    """
    batch = tf.ensure_shape(batch, [None, *shape])
    images = tf.shape(batch)[0]
    fits = (images >= 1) & (images <= max_images)
    text = f"`{name}` must hold 1 to {max_images} images. Received:"
    with tf.control_dependencies([require(fits, text, images)]):
        return tf.identity(batch)


def checked_sizes(files: tf.Tensor, name: str, max_bytes: int) -> tf.Tensor:
    """Check that each file has 1 to `max_bytes` bytes.

    Args:
        files: string tensor [B], not empty.
        name: The name of the input.
        max_bytes: The limit.

    Returns:
        string tensor [B].
    """
    sizes = tf.strings.length(files)
    fits = (sizes >= 1) & (sizes <= max_bytes)
    bad = _first_false(fits)
    text = f"Each image of `{name}` must have 1 to {max_bytes} bytes. Received:"
    check = require(tf.reduce_all(fits), text, sizes[bad], "bytes at index", bad)
    with tf.control_dependencies([check]):
        return tf.identity(files)


def checked_pixels(
    data: tf.Tensor, index: tf.Tensor, name: str, max_pixels: int
) -> tf.Tensor:
    """Check that a file's header announces 1 to `max_pixels` pixels.

    Args:
        data: Scalar string tensor.
        index: Index of the file in the input: int32 scalar.
        name: The name of the input.
        max_pixels: The limit.

    Returns:
        Scalar string tensor.
    """
    pixels = count_pixels(data, "At index", index)
    fits = (pixels >= 1) & (pixels <= max_pixels)
    text = (
        f"Each image of `{name}` must have 1 to {max_pixels} pixels, height times "
        "width. Received:"
    )
    check = require(fits, text, tf.as_string(pixels), "pixels at index", index)
    with tf.control_dependencies([check]):
        return tf.identity(data)


def checked_finite(batch: tf.Tensor, text: str) -> tf.Tensor:
    """Check that all values of a batch are finite.

    Args:
        batch: float tensor [B, ...], not empty.
        text: The error message; the index of the first bad row follows it.

    Returns:
        The same tensor.
    """
    rows = tf.reshape(tf.math.is_finite(batch), [tf.shape(batch)[0], -1])
    fits = tf.reduce_all(rows, axis=1)
    check = require(tf.reduce_all(fits), text, "At index", _first_false(fits))
    with tf.control_dependencies([check]):
        return tf.identity(batch)


def _first_false(fits: tf.Tensor) -> tf.Tensor:
    return tf.argmin(tf.cast(fits, tf.int32), output_type=tf.int32)
