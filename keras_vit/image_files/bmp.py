"""Windows and OS/2 bitmaps without compression, of 1, 4, 8, 16, 24 and 32 bits.

Offsets are those of BITMAPFILEHEADER, BITMAPCOREHEADER and BITMAPINFOHEADER with its
later versions (Microsoft, "Bitmap Header Types").
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_vit.image_files.operations import (
    file_bytes,
    header_bytes,
    integers,
    rarely_called,
)

_HEADER_SIZES = (12, 40, 52, 56, 64, 108, 124)
_PLAIN, _MASKED = 0, 3  # values of the field `compression`
_MASKS = 54  # where a header of 40 bytes ends, and where larger ones hold the masks
_MASKS_OF_16_BITS = np.array((0x7C00, 0x3E0, 0x1F))
_MASKS_OF_BYTES = np.array((0xFF0000, 0xFF00, 0xFF))
_WHOLE_BYTES = np.array((0xFF, 0xFF00, 0xFF0000, 0xFF000000))


class _Header(NamedTuple):
    """int64; scalars but for the masks."""

    size: tf.Tensor
    start: tf.Tensor  # of the pixels
    width: tf.Tensor
    height: tf.Tensor  # negative where the first row comes first
    bits: tf.Tensor
    compression: tf.Tensor
    colors: tf.Tensor  # in the palette; 0 means as many as the bits can tell apart
    masks: tf.Tensor  # [3], of red, green and blue


@rarely_called
def bmp_pixels(data: tf.Tensor) -> tf.Tensor:
    """Height times width of a bitmap, from its header: int64 scalar."""
    header = _read_header(data)
    return header.width * tf.abs(header.height)


@rarely_called
def decode_bmp(data: tf.Tensor) -> tf.Tensor:
    """Decode a bitmap: uint8 [h, w, 3].

    Raises:
        tf.errors.InvalidArgumentError: A compressed or truncated file, or colors whose
            bits are not whole bytes.
    """
    header = _read_header(data)
    size, bits, columns = header.size, header.bits, header.width
    pixel_bytes = bits // 8
    # Where each color of a pixel of whole bytes is.
    found = (header.masks[:, tf.newaxis] == _WHOLE_BYTES) & (
        tf.range(4, dtype=tf.int64) < pixel_bytes
    )
    order = tf.argmax(tf.cast(found, tf.int32), 1)
    counted = tf.where(header.colors > 0, header.colors, 2 ** tf.minimum(bits, 8))
    colors = counted * tf.cast(bits <= 8, tf.int64)
    color_bytes = 4 - tf.cast(size == 12, tf.int64)
    masks_follow = (header.compression == _MASKED) & (size == 40)
    palette_start = 14 + size + 12 * tf.cast(masks_follow, tf.int64)
    palette_end = palette_start + colors * color_bytes
    # Some files have the offset point at the palette; Pillow skips it.
    no_palette = (header.start == 0) | ((header.start == 14 + size) & (bits <= 8))
    start = tf.where(no_palette, palette_end, header.start)

    rows = tf.abs(header.height)
    row_bytes = (columns * bits + 31) // 32 * 4
    end = start + rows * row_bytes
    needed = end - row_bytes + (columns * bits + 7) // 8
    received = tf.strings.length(data)
    message = "A truncated BMP file. Bytes that its header announces, and received:"
    whole = tf.cast(received, tf.int64) >= needed
    has_whole_bytes = tf.reduce_all(tf.reduce_any(found, 1))
    with tf.control_dependencies([_check(header, has_whole_bytes)]):
        check = tf.debugging.Assert(whole, [message, needed, received])
    with tf.control_dependencies([check]):
        file, bits = file_bytes(data), tf.identity(bits)
    pixels = tf.reshape(file[start:end], [rows, row_bytes])
    palette = _palette(file[palette_start:palette_end], color_bytes)
    used = pixels[:, : columns * pixel_bytes]

    def whole_bytes() -> tf.Tensor:
        return tf.reshape(used, [rows, columns, pixel_bytes])

    is_bgr = (bits > 16) & tf.reduce_all(order == [2, 1, 0])
    kind = tf.where(bits == 16, 1, tf.where(is_bgr, 2, 3))
    kind = tf.where(bits <= 8, 0, kind)
    image = tf.switch_case(
        kind,
        [
            lambda: _indexed_colors(pixels, bits, palette)[:, :columns],
            lambda: _colors_of_16_bits(used, header.masks),
            lambda: whole_bytes()[..., :3],  # a fourth of the next one's time
            lambda: tf.gather(whole_bytes(), order, axis=2),
        ],
    )
    # The last row comes first, unless the height is negative.
    return tf.raw_ops.Reverse(tensor=image, dims=[header.height > 0, False, is_bgr])


def _read_header(data: tf.Tensor) -> _Header:
    file = header_bytes(data)
    first = (14, 4), (10, 4)  # the size of the header, the start of the pixels
    short = integers(file, *first, (18, 2), (20, 2), (24, 2), (0, 0), (0, 0))
    long = integers(file, *first, (18, 4), (22, 4), (28, 2), (30, 4), (46, 4))
    fields = tf.unstack(tf.where(short[0] == 12, short, long))
    size, start, width, height, bits, compression, colors = fields
    height = tf.where(height < 2**31, height, height - 2**32)
    masks = integers(file, *((_MASKS + 4 * color, 4) for color in range(3)))
    masked = (compression == _MASKED) & (tf.reduce_max(masks) > 0)
    unmasked = tf.where(bits == 16, _MASKS_OF_16_BITS, _MASKS_OF_BYTES)
    masks = tf.where(masked, masks, unmasked)
    return _Header(size, start, width, height, bits, compression, colors, masks)


def _check(header: _Header, has_whole_bytes: tf.Tensor) -> tf.Operation:
    """An assertion that a bitmap is read, which names the first reason if not."""

    def one_of(value: tf.Tensor, *values: int) -> tf.Tensor:
        return tf.reduce_any(value == tf.constant(values, tf.int64))

    bits, compression = header.bits, header.compression
    masked = (compression == _MASKED) & one_of(bits, 16, 24, 32)
    checks = [
        (
            one_of(header.size, *_HEADER_SIZES),
            "A BMP file with an unknown header. Its size:",
            header.size,
        ),
        (
            (compression == _PLAIN) | masked,
            "BMP files with compression (RLE, JPEG, PNG) are not read. Received: "
            "compression",
            compression,
        ),
        (
            one_of(bits, 1, 4, 8, 16, 24, 32),
            "A BMP file must have 1 to 32 bits per pixel. Received:",
            bits,
        ),
        (
            (header.colors <= 65536) | (bits > 8),  # direct ones need no palette
            "A BMP file must have 65536 colors at most. Received:",
            header.colors,
        ),
        (
            (header.width > 0) & (header.height != 0),
            "A BMP file must have pixels. Received:",
            header.width * header.height,
        ),
        (
            has_whole_bytes | (bits <= 16),
            "BMP files whose colors are not whole bytes are not read. Bits per pixel:",
            bits,
        ),
    ]
    # One assertion of all: each would be a condition with functions of its own.
    conditions, messages, values = zip(*checks, strict=True)
    holds = tf.stack(conditions)
    first = tf.argmin(tf.cast(holds, tf.int32))
    message = tf.gather(tf.constant(messages), first)
    return tf.debugging.Assert(
        tf.reduce_all(holds), [message, tf.gather(tf.stack(values), first)]
    )


def _palette(colors: tf.Tensor, color_bytes: tf.Tensor) -> tf.Tensor:
    """RGB of a palette of BGR or BGRX, black beyond its end: uint8 [256, 3].

    Pillow reads a palette of grays that is shorter than the indices as if it went on.
    """
    whole = tf.size(colors, tf.int64) // color_bytes * color_bytes
    palette = tf.reshape(colors[:whole], [-1, color_bytes])[:256, :3]
    return tf.pad(tf.reverse(palette, [1]), [[0, 256 - tf.shape(palette)[0]], [0, 0]])


def _indexed_colors(
    pixels: tf.Tensor, bits: tf.Tensor, palette: tf.Tensor
) -> tf.Tensor:
    """RGB [h, w, 3] of 1, 4 or 8 bits, the most significant first.

    Through a table of the colors in each byte: indices of pixels would take four times
    as much memory as a file of 8 bits, and 32 times as one of 1 bit.
    """
    bits = tf.cast(bits, tf.int32)
    shifts = tf.range(8 - bits, -1, -bits)
    indices = tf.bitwise.right_shift(tf.range(256)[:, tf.newaxis], shifts) % 2**bits
    colors = tf.gather(tf.gather(palette, indices), tf.cast(pixels, tf.int32))
    return tf.reshape(colors, [tf.shape(pixels)[0], -1, 3])


def _colors_of_16_bits(pixels: tf.Tensor, masks: tf.Tensor) -> tf.Tensor:
    """RGB [h, w, 3] of 16 bits per pixel, through a table of all 65,536 values."""
    values = tf.range(2**16)[:, tf.newaxis]
    masks = tf.cast(masks, tf.int32)
    lowest = tf.maximum(tf.bitwise.bitwise_and(masks, -masks), 1)
    largest = tf.maximum(masks // lowest, 1)
    table = tf.bitwise.bitwise_and(values, masks) // lowest * 255 // largest
    low, high = (tf.cast(pixels[:, byte::2], tf.int32) for byte in (0, 1))
    return tf.gather(tf.cast(table, tf.uint8), low + 256 * high)
