"""The formats of image files that are read: JPEG, PNG, GIF, BMP, WebP."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from keras_vit.image_files.bmp import bmp_pixels, decode_bmp
from keras_vit.image_files.gif import decode_gif, gif_pixels
from keras_vit.image_files.operations import LARGEST_IMAGE, header_bytes, integers
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

_Stored: TypeAlias = tuple[tf.Tensor, tf.Tensor]  # the image, its orientation

# What decoders do again and again, whatever the number of pixels: bytes that only such
# a part of a file holds (or once in 16 MB by chance), how many may be there, and their
# name. Each scan of a JPEG passes over all pixels: libjpeg writes 10 for color and 18
# for CMYK, mozjpeg tries 64, and libjpeg-turbo's authors advise a limit ("Two Issues
# with the JPEG Standard", LJT-01-003). Each text of a PNG may become 8 MB when it is
# unpacked; the specification has keywords for 12.
_REPEATED = {
    "jpeg": (b"\xff\xda\0", 64, "scans"),
    "png": (b"TXt", 16, "chunks of text (zTXt, iTXt)"),
}

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
        *detail: What follows the message where the format is unknown.

    Raises:
        tf.errors.InvalidArgumentError: The file is of another format.
    """
    kinds = {name: _has_signature(data, name) for name in _SIGNATURES}
    known = tf.debugging.Assert(tf.reduce_any(list(kinds.values())), [UNKNOWN, *detail])
    with tf.control_dependencies([known]):
        kind = tf.argmax(tf.stack(list(kinds.values())), output_type=tf.int32)
    return tf.switch_case(kind, [branches[name] for name in kinds])


def _has_signature(data: tf.Tensor, name: str) -> tf.Tensor:
    signature = _SIGNATURES[name]
    matches = tf.strings.substr(data, 0, len(signature)) == signature
    if name == "webp":
        matches &= tf.reduce_all(header_bytes(data)[8:12] == list(b"WEBP"))
    return matches


def format_of(data: bytes) -> str | None:
    """The format of a file's contents, as `by_format` finds it; None for another."""
    for name, signature in _SIGNATURES.items():
        if data.startswith(signature) and (name != "webp" or data[8:12] == b"WEBP"):
            return name
    return None


@tf.autograph.experimental.do_not_convert
def decode(
    data: tf.Tensor, *detail: str | tf.Tensor, kind: str | None = None
) -> tf.Tensor:
    """Decode an image file: uint8 [h, w, 3], upright.

    Args:
        *detail: As of `by_format`.
        kind: The file's format, where it is known: a graph of one format is traced and
            first run in a tenth of the time.

    Raises:
        tf.errors.InvalidArgumentError: Another kind of file, a damaged one, or one of
            more than `LARGEST_IMAGE` pixels, or of too many scans or texts.
    """
    data = _tensor(data)
    if kind is not None:
        return upright(*_decoder(data, kind, *detail)())
    return upright(*_decode_stored(data, *detail))


@tf.autograph.experimental.do_not_convert
def decode_part(
    data: tf.Tensor, choose_window: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Decode a part of an image file; of a JPEG only that part.

    Args:
        choose_window: From the shape of the upright image, int32 [3], to int32 [4]:
            top, left, height and width of the part.

    Returns:
        uint8 [height, width, 3], upright.

    Raises:
        tf.errors.InvalidArgumentError: As `decode`.
    """
    data = _tensor(data)

    def stored_part(shape: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
        shape = upright_shape(shape, orientation)
        return stored_window(choose_window(shape), shape, orientation)

    def of_jpeg() -> _Stored:
        shape = tf.image.extract_jpeg_shape(data)
        orientation = jpeg_orientation(_limited(data, "jpeg", _pixels(shape)))
        window = stored_part(shape, orientation)
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3, dct_method=_DCT)
        return image, orientation

    def of_another() -> _Stored:
        image, orientation = _decode_stored(data)
        top, left, height, width = tf.unstack(stored_part(tf.shape(image), orientation))
        return tf.slice(image, [top, left, 0], [height, width, 3]), orientation

    return upright(*tf.cond(_has_signature(data, "jpeg"), of_jpeg, of_another))


def _decode_stored(data: tf.Tensor, *detail: str | tf.Tensor) -> _Stored:
    """The image as it is stored, uint8 [h, w, 3], and its orientation."""
    decoders = {name: _decoder(data, name, *detail) for name in _DECODERS}
    stored: _Stored = by_format(data, *detail, **decoders)
    return stored


def _decoder(
    data: tf.Tensor, name: str, *detail: str | tf.Tensor
) -> Callable[[], _Stored]:
    """A function that decodes a file of a format, as `_decode_stored`."""
    decode, orientation = _DECODERS[name]

    def decode_limited() -> _Stored:
        limited = _limited(data, name, _PIXELS[name](data), *detail)
        return decode(limited), orientation(limited)

    return decode_limited


def _limited(
    data: tf.Tensor, name: str, pixels: tf.Tensor, *detail: str | tf.Tensor
) -> tf.Tensor:
    """The file, unless decoding it would take too much memory or time."""
    text = f"An image must have at most {LARGEST_IMAGE} pixels. Received:"
    checks = [tf.debugging.Assert(pixels <= LARGEST_IMAGE, [text, pixels, *detail])]
    if name in _REPEATED:
        mark, most, parts = _REPEATED[name]
        text = f"A {name.upper()} file must have at most {most} {parts}. Received:"
        count = _occurrences(data, mark, most + 1)
        message = [text, count, "or more", *detail]
        checks.append(tf.debugging.Assert(count <= most, message))
    with tf.control_dependencies(checks):
        return tf.identity(data)


def _occurrences(data: tf.Tensor, part: bytes, most: int) -> tf.Tensor:
    """How often a file holds some bytes, up to `most`: int32 scalar.

    Half of the time of a comparison of all bytes, a fourth of `regex_replace`.
    """
    split = tf.raw_ops.StringSplitV2(input=data[tf.newaxis], sep=part, maxsplit=most)
    return tf.size(split.values) - 1


@tf.autograph.experimental.do_not_convert
def count_pixels(data: tf.Tensor, *detail: str | tf.Tensor) -> tf.Tensor:
    """Count the pixels that decoding an image allocates, from its header.

    The headers of PNG, BMP and WebP files are not checked: of a truncated one, 0 or any
    number is returned, which may be negative.

    Returns:
        int64 scalar: height times width; of a GIF, of its canvas.

    Raises:
        tf.errors.InvalidArgumentError: Another kind of file, or a damaged JPEG or GIF.
    """
    data = _tensor(data)
    counts = {name: functools.partial(of, data) for name, of in _PIXELS.items()}
    return by_format(data, *detail, **counts)


def _tensor(data: bytes | tf.Tensor) -> tf.Tensor:
    """A tensor, where bytes would have each function traced again for each file."""
    return tf.convert_to_tensor(data, tf.string)


def _pixels(shape: tf.Tensor) -> tf.Tensor:
    return tf.reduce_prod(tf.cast(shape[:2], tf.int64))


def _png_pixels(data: tf.Tensor) -> tf.Tensor:
    return tf.reduce_prod(
        integers(header_bytes(data), (16, 4), (20, 4), big_endian=True)
    )


def _upright_as_stored(data: tf.Tensor) -> tf.Tensor:
    return tf.constant(1)


_PIXELS = {
    "jpeg": lambda data: _pixels(tf.image.extract_jpeg_shape(data)),
    "png": _png_pixels,
    "gif": gif_pixels,
    "bmp": bmp_pixels,
    "webp": webp_pixels,
}
# For each format, functions of the file: the image as it is stored, its orientation.
_DECODERS = {
    "jpeg": (
        functools.partial(tf.io.decode_jpeg, channels=3, dct_method=_DCT),
        jpeg_orientation,
    ),
    "png": (functools.partial(tf.io.decode_png, channels=3), png_orientation),
    "gif": (decode_gif, _upright_as_stored),
    "bmp": (decode_bmp, _upright_as_stored),
    "webp": (decode_webp, webp_orientation),
}
