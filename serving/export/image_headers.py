"""The number of pixels of an encoded image, read from its header in graph code.

Decoding allocates them all: 47 kB of PNG can be 48 MB of pixels. An animated GIF gives
its first frame (see `keras_vit.decoding`), but all its frames count, since TensorFlow
unpacks them all. Offsets are those of the PNG specification (IHDR), GIF89a,
BITMAPINFOHEADER and RFC 9649 (WebP); TensorFlow's own operation reads JPEG's header.
"""

import tensorflow as tf

UNKNOWN = "Unknown image file format. One of JPEG, PNG, GIF, BMP, WebP required."

# The signatures of the formats, as in TensorFlow's decoder.
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"RIFF")
_HEADER_BYTES = 32
# Limit of the loop over the blocks of a GIF. A frame takes about six: enough for
# thousands of frames, and a bound for a file of tiny blocks.
_GIF_STEPS = 20_000


def image_pixels(data: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Count the pixels that decoding an image allocates.

    Args:
        data: Scalar string tensor: the contents of a JPEG, PNG, GIF, BMP or WebP file.
        index: Index of the file in the request, for the message: int32 scalar.

    Returns:
        int64 scalar: height times width; of a GIF that of all frames.

    Raises:
        tf.errors.InvalidArgumentError: Another kind of file, or a damaged JPEG or GIF.
    """
    kinds = [tf.strings.substr(data, 0, len(magic)) == magic for magic in _MAGIC]
    known = tf.debugging.Assert(tf.reduce_any(kinds), [UNKNOWN, "At index", index])
    with tf.control_dependencies([known]):
        kind = tf.argmax(tf.stack(kinds), output_type=tf.int32)
    header = tf.io.decode_raw(data, tf.uint8, fixed_length=_HEADER_BYTES)
    return tf.switch_case(
        kind,
        [
            lambda: tf.reduce_prod(tf.image.extract_jpeg_shape(data, tf.int64)[:2]),
            lambda: _png_pixels(header),
            lambda: _gif_pixels(data),
            lambda: _bmp_pixels(header),
            lambda: _webp_pixels(header),
        ],
    )


def _integer(values: tf.Tensor, start: tf.Tensor | int, count: int) -> tf.Tensor:
    """`count` bytes, little-endian, as an integer."""
    part = tf.cast(values[start : start + count], tf.int64)
    return tf.reduce_sum(part * [256**power for power in range(count)])


def _png_pixels(header):
    big_endian = header[16:24][::-1]
    return _integer(big_endian, 0, 4) * _integer(big_endian, 4, 4)


def _bmp_pixels(header):
    sides = tf.stack([_integer(header, 18, 4), _integer(header, 22, 4)])
    return tf.reduce_prod(
        tf.minimum(sides, 2**32 - sides)
    )  # the height can be negative


def _webp_pixels(header):
    lossy = (_integer(header, 26, 2) % 2**14) * (_integer(header, 28, 2) % 2**14)
    bits = _integer(header, 21, 4)
    lossless = (1 + bits % 2**14) * (1 + bits // 2**14 % 2**14)
    canvas = (1 + _integer(header, 24, 3)) * (1 + _integer(header, 27, 3))
    variant = header[15]  # after "VP8"
    other = tf.where(variant == ord("L"), lossless, lossy)
    return tf.where(variant == ord("X"), canvas, other)


def _gif_pixels(data):
    """TensorFlow unpacks all frames, onto a canvas that holds the largest."""
    file = tf.io.decode_raw(data, tf.uint8)
    end = tf.size(file)
    file = tf.pad(file, [[0, _HEADER_BYTES]])  # a truncated file is read as zeros
    screen = tf.stack([_integer(file, 6, 2), _integer(file, 8, 2)])
    first = 13 + _colors_bytes(file[10])
    position, _, canvas, pixels = tf.while_loop(
        lambda position, *_: position < end,
        lambda *state: _gif_step(file, end, *state),
        (tf.minimum(first, end), False, screen, tf.constant(0, tf.int64)),
        maximum_iterations=_GIF_STEPS,
        parallel_iterations=1,
    )
    text = f"A GIF file must be made of fewer than {_GIF_STEPS} blocks."
    with tf.control_dependencies([tf.debugging.Assert(position >= end, [text])]):
        return tf.maximum(tf.reduce_prod(canvas), pixels)


def _gif_step(file, end, position, in_data, canvas, pixels):
    """Skip blocks of data, or the header of a frame or an extension."""
    kind = file[position]
    is_frame = ~in_data & (kind == ord(","))
    is_extension = ~in_data & (kind == ord("!"))
    sides = tf.stack([_integer(file, position + 5, 2), _integer(file, position + 7, 2)])
    sides = tf.where(is_frame, sides, 0)
    data_end, more_data = _past_data(file, position)
    position = tf.case(
        [
            (in_data, lambda: data_end),
            (is_frame, lambda: position + 11 + _colors_bytes(file[position + 9])),
            (is_extension, lambda: position + 2),
        ],
        default=lambda: end,
    )
    return (
        tf.minimum(position, end),
        is_frame | is_extension | (in_data & more_data),
        tf.maximum(canvas, sides),
        pixels + tf.reduce_prod(sides),
    )


def _past_data(file, position):
    """Skip up to 256 blocks of 255 bytes, and the block after them.

    Returns:
        The position, and whether more blocks of data follow.
    """
    lengths = file[position : position + 2**16 : 256]
    shorter = tf.concat([lengths[:-1] != 255, [True]], 0)
    last = tf.argmax(shorter, output_type=tf.int32)
    length = tf.cast(lengths[last], tf.int32)
    return position + 256 * last + 1 + length, length > 0


def _colors_bytes(flags):
    """Bytes of the color table that the flags of a screen or a frame announce."""
    flags = tf.cast(flags, tf.int32)
    return tf.where(flags >= 128, 3 * 2 ** (flags % 8 + 1), 0)
