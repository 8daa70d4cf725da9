"""The formats of image files that are read: JPEG, PNG, GIF, BMP, WebP."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.image_files.bmp import bmp_pixels, decode_bmp
from keras_vit.image_files.gif import decode_gif, gif_pixels
from keras_vit.image_files.operations import header_bytes, integer
from keras_vit.image_files.orientation import (
    jpeg_orientation,
    png_orientation,
    stored_window,
    upright,
    upright_shape,
    webp_orientation,
)
from keras_vit.image_files.webp import decode_webp, webp_pixels

UNKNOWN = "Unknown image file format. One of JPEG, PNG, GIF, BMP, WebP required."
# Pillow's transform, bit for bit; the faster one of TensorFlow's default is up to 21
# levels away from it, and saves nothing that can be measured.
_DCT = "INTEGER_ACCURATE"

_SIGNATURES = {
    "jpeg": b"\xff\xd8\xff",
    "png": b"\x89PNG\r\n\x1a\n",
    "gif": b"GIF8",
    "bmp": b"BM",
    "webp": b"RIFF",
}


def by_format(
    data: tf.Tensor,
    *detail: str | tf.Tensor,
    **branches: Callable[[], Any],
) -> Any:
    """Call the function for a file's format.

    Args:
        data: Scalar string tensor: the file's contents.
        *detail: What follows the message where the format is unknown.
        **branches: A function for each of jpeg, png, gif, bmp and webp.

    Raises:
        tf.errors.InvalidArgumentError: The file is of another format.
    """
    kinds = {
        name: tf.strings.substr(data, 0, len(signature)) == signature
        for name, signature in _SIGNATURES.items()
    }
    kinds["webp"] &= tf.reduce_all(header_bytes(data)[8:12] == list(b"WEBP"))
    known = tf.debugging.Assert(tf.reduce_any(list(kinds.values())), [UNKNOWN, *detail])
    with tf.control_dependencies([known]):
        kind = tf.argmax(tf.stack(list(kinds.values())), output_type=tf.int32)
    return tf.switch_case(kind, [branches[name] for name in kinds])


@tf.autograph.experimental.do_not_convert
def decode(data: tf.Tensor) -> tf.Tensor:
    """Decode an image file: uint8 [h, w, 3], upright."""
    return upright(*_decode_stored(data))


@tf.autograph.experimental.do_not_convert
def decode_part(
    data: tf.Tensor, choose_window: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Decode a part of an image file; of a JPEG only that part.

    Args:
        data: Scalar string tensor: the file's contents.
        choose_window: From the shape of the upright image, int32 [3], to int32 [4]:
            top, left, height and width of the part.

    Returns:
        uint8 [height, width, 3], upright.
    """

    def stored_part(shape, orientation):
        shape = upright_shape(shape, orientation)
        return stored_window(choose_window(shape), shape, orientation)

    def of_jpeg():
        orientation = jpeg_orientation(data)
        window = stored_part(tf.image.extract_jpeg_shape(data), orientation)
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3, dct_method=_DCT)
        return image, orientation

    def of_another():
        image, orientation = _decode_stored(data)
        top, left, height, width = tf.unstack(stored_part(tf.shape(image), orientation))
        return tf.slice(image, [top, left, 0], [height, width, 3]), orientation

    return upright(*tf.cond(tf.io.is_jpeg(data), of_jpeg, of_another))


def _decode_stored(data):
    """The image as it is stored, uint8 [h, w, 3], and its orientation."""
    return by_format(
        data,
        jpeg=lambda: (
            tf.io.decode_jpeg(data, channels=3, dct_method=_DCT),
            jpeg_orientation(data),
        ),
        png=lambda: (tf.io.decode_png(data, channels=3), png_orientation(data)),
        gif=lambda: (decode_gif(data), 1),
        bmp=lambda: (decode_bmp(data), 1),
        webp=lambda: (decode_webp(data), webp_orientation(data)),
    )


@tf.autograph.experimental.do_not_convert
def count_pixels(data: tf.Tensor, *detail: str | tf.Tensor) -> tf.Tensor:
    """Count the pixels that decoding an image allocates, from its header.

    Args:
        data: Scalar string tensor: the file's contents.
        *detail: What follows the message where the format is unknown.

    Returns:
        int64 scalar: height times width; of a GIF, of its canvas.

    Raises:
        tf.errors.InvalidArgumentError: Another kind of file, or a damaged JPEG or GIF.
    """
    return by_format(
        data,
        *detail,
        jpeg=lambda: tf.reduce_prod(tf.image.extract_jpeg_shape(data, tf.int64)[:2]),
        png=lambda: _png_pixels(header_bytes(data)),
        gif=lambda: gif_pixels(data),
        bmp=lambda: bmp_pixels(data),
        webp=lambda: webp_pixels(data),
    )


def _png_pixels(header):
    width = integer(header, 16, 4, big_endian=True)
    return width * integer(header, 20, 4, big_endian=True)
