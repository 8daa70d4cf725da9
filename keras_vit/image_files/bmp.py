"""Windows and OS/2 bitmaps without compression, of 1, 4, 8, 16, 24 and 32 bits.

Offsets are those of BITMAPFILEHEADER, BITMAPCOREHEADER and BITMAPINFOHEADER with its
later versions (Microsoft, "Bitmap Header Types").
"""

from typing import NamedTuple

import tensorflow as tf

from keras_vit.image_files.operations import (
    file_bytes,
    header_bytes,
    integer,
    rarely_called,
)

_HEADER_SIZES = (12, 40, 52, 56, 64, 108, 124)
_PLAIN, _MASKED = 0, 3  # values of the field `compression`
_MASKS = 54  # where a header of 40 bytes ends, and where larger ones hold the masks
_MASKS_OF_16_BITS = (0x7C00, 0x3E0, 0x1F)
_MASKS_OF_BYTES = (0xFF0000, 0xFF00, 0xFF)


class _Header(NamedTuple):
    """Scalars, int64."""

    size: tf.Tensor
    width: tf.Tensor
    height: tf.Tensor  # negative where the first row comes first
    bits: tf.Tensor
    compression: tf.Tensor
    colors: tf.Tensor  # in the palette; 0 means as many as the bits can tell apart


@rarely_called
def bmp_pixels(data: tf.Tensor) -> tf.Tensor:
    """Height times width of a bitmap, from its header: int64 scalar."""
    header = _read_header(header_bytes(data))
    return header.width * tf.abs(header.height)


@rarely_called
def decode_bmp(data: tf.Tensor) -> tf.Tensor:
    """Decode a bitmap: uint8 [h, w, 3].

    Raises:
        tf.errors.InvalidArgumentError: A compressed or truncated file, or colors whose
            bits are not whole bytes.
    """
    file = file_bytes(data)
    header = _read_header(file)
    with tf.control_dependencies(_checks(header)):
        header = _Header(*map(tf.identity, header))
    size, bits = header.size, header.bits
    counted = tf.where(header.colors > 0, header.colors, 2 ** tf.minimum(bits, 8))
    colors = counted * tf.cast(bits <= 8, tf.int64)
    color_bytes = 4 - tf.cast(size == 12, tf.int64)
    masks_follow = (header.compression == _MASKED) & (size == 40)
    palette_start = 14 + size + 12 * tf.cast(masks_follow, tf.int64)
    palette_end = palette_start + colors * color_bytes
    start = integer(file, 10, 4)
    # Some files have the offset point at the palette; Pillow skips it.
    no_palette = (start == 0) | ((start == 14 + size) & (bits <= 8))
    start = tf.where(no_palette, palette_end, start)

    rows, columns = tf.abs(header.height), header.width
    row_bytes = (columns * bits + 31) // 32 * 4
    end = start + rows * row_bytes
    needed = end - row_bytes + (columns * bits + 7) // 8
    received = tf.strings.length(data)
    message = "A truncated BMP file. Bytes that its header announces, and received:"
    whole = tf.cast(received, tf.int64) >= needed
    check = tf.debugging.Assert(whole, [message, needed, received])
    with tf.control_dependencies([check]):
        pixels = tf.reshape(file[start:end], [rows, row_bytes])
    image = tf.cond(
        bits <= 8,
        lambda: _indexed_colors(
            pixels, bits, _palette(file[palette_start:palette_end], color_bytes)
        )[:, :columns],
        lambda: _direct_colors(pixels, header, file),
    )
    # The last row comes first, unless the height is negative.
    return tf.cond(header.height > 0, lambda: tf.reverse(image, [0]), lambda: image)


def _read_header(file: tf.Tensor) -> _Header:
    size = integer(file, 14, 4)
    if_short = _Header(
        size,
        width=integer(file, 18, 2),
        height=integer(file, 20, 2),
        bits=integer(file, 24, 2),
        compression=tf.constant(_PLAIN, tf.int64),
        colors=tf.constant(0, tf.int64),
    )
    height = integer(file, 22, 4)
    if_long = _Header(
        size,
        width=integer(file, 18, 4),
        height=tf.where(height < 2**31, height, height - 2**32),
        bits=integer(file, 28, 2),
        compression=integer(file, 30, 4),
        colors=integer(file, 46, 4),
    )
    pairs = zip(if_short, if_long, strict=True)
    return _Header(*(tf.where(size == 12, short, long) for short, long in pairs))


def _checks(header: _Header) -> list[tf.Operation]:
    """Assertions that a bitmap is of a kind that is read."""

    def one_of(value: tf.Tensor, values: tuple[int, ...]) -> tf.Tensor:
        return tf.reduce_any(value == tf.constant(values, tf.int64))

    compression = header.compression
    masked = (compression == _MASKED) & one_of(header.bits, (16, 24, 32))
    return [
        tf.debugging.Assert(
            one_of(header.size, _HEADER_SIZES),
            ["A BMP file with an unknown header. Its size:", header.size],
        ),
        tf.debugging.Assert(
            (compression == _PLAIN) | masked,
            [
                "BMP files with compression (RLE, JPEG, PNG) are not read. Received: "
                "compression",
                compression,
            ],
        ),
        tf.debugging.Assert(
            one_of(header.bits, (1, 4, 8, 16, 24, 32)),
            ["A BMP file must have 1 to 32 bits per pixel. Received:", header.bits],
        ),
        tf.debugging.Assert(
            (header.colors <= 65536) | (header.bits > 8),  # direct ones need no palette
            ["A BMP file must have 65536 colors at most. Received:", header.colors],
        ),
        tf.debugging.Assert(
            (header.width > 0) & (header.height != 0),
            ["A BMP file without pixels."],
        ),
    ]


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


def _direct_colors(pixels: tf.Tensor, header: _Header, file: tf.Tensor) -> tf.Tensor:
    masks = tf.stack([integer(file, _MASKS + 4 * index, 4) for index in range(3)])
    masked = (header.compression == _MASKED) & (tf.reduce_max(masks) > 0)
    pixels = tf.cond(
        header.bits == 16,
        lambda: _colors_of_16_bits(
            pixels, tf.where(masked, masks, tf.constant(_MASKS_OF_16_BITS, tf.int64))
        ),
        lambda: _colors_of_bytes(
            pixels,
            header.bits // 8,
            tf.where(masked, masks, tf.constant(_MASKS_OF_BYTES, tf.int64)),
        ),
    )
    return pixels[:, : header.width]


def _colors_of_16_bits(pixels: tf.Tensor, masks: tf.Tensor) -> tf.Tensor:
    """RGB [h, w, 3] of 16 bits per pixel, through a table of all 65,536 values."""
    values = tf.range(2**16)[:, tf.newaxis]
    masks = tf.cast(masks, tf.int32)
    lowest = tf.maximum(tf.bitwise.bitwise_and(masks, -masks), 1)
    largest = tf.maximum(masks // lowest, 1)
    table = tf.bitwise.bitwise_and(values, masks) // lowest * 255 // largest
    low, high = (tf.cast(pixels[:, byte::2], tf.int32) for byte in (0, 1))
    return tf.gather(tf.cast(table, tf.uint8), low + 256 * high)


def _colors_of_bytes(
    pixels: tf.Tensor, pixel_bytes: tf.Tensor, masks: tf.Tensor
) -> tf.Tensor:
    """RGB [h, w, 3] of 24 or 32 bits, where each color is one whole byte."""
    whole_bytes = tf.constant([0xFF << shift for shift in (0, 8, 16, 24)], tf.int64)
    found = (masks[:, tf.newaxis] == whole_bytes) & (
        tf.range(4, dtype=tf.int64) < pixel_bytes
    )
    check = tf.debugging.Assert(
        tf.reduce_all(tf.reduce_any(found, 1)),
        ["BMP files whose colors are not whole bytes are not read. Masks:", masks],
    )
    with tf.control_dependencies([check]):
        order = tf.argmax(tf.cast(found, tf.int32), 1)
    rows, row_bytes = tf.unstack(tf.shape(pixels, tf.int64))
    columns = row_bytes // pixel_bytes
    used = pixels[:, : columns * pixel_bytes]
    used = tf.reshape(used, [rows, columns, pixel_bytes])
    return tf.cond(
        tf.reduce_all(order == [2, 1, 0]),
        lambda: tf.reverse(used[..., :3], [2]),  # a fourth of the time
        lambda: tf.stack([used[..., order[color]] for color in range(3)], 2),
    )
