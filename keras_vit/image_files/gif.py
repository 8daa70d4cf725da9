"""The first frame of a GIF, on its canvas (GIF89a specification)."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from keras_vit.image_files.operations import file_bytes, position, rarely_called

# Bound of the loops, a tenth of a second: enough for 300 MB in blocks of one length, or
# for 400 kB of XMP, whose bytes are read as the lengths of blocks.
_STEPS = 5_000
_GRAY = bytes(level for level in range(256) for _ in range(3))
_PALETTE_BYTES = 3 * 256
_GRAPHIC_CONTROL = 0xF9


class _Frame(NamedTuple):
    """The first frame; int32 but for the bytes."""

    file: tf.Tensor  # all bytes, uint8, with zeros behind them
    end: tf.Tensor  # length of the file
    start: tf.Tensor  # of the image descriptor
    transparent: tf.Tensor  # index of the transparent color, or 0
    corner: tf.Tensor  # [2], top and left
    size: tf.Tensor  # [2], height and width
    canvas: tf.Tensor  # [2], height and width


@rarely_called
def gif_pixels(data: tf.Tensor) -> tf.Tensor:
    """Height times width of a GIF's canvas: int64 scalar."""
    return tf.reduce_prod(tf.cast(_first_frame(data).canvas, tf.int64))


@rarely_called
def decode_gif(data: tf.Tensor) -> tf.Tensor:
    """Decode the first frame: uint8 [h, w, 3].

    It lies on a canvas filled with its transparent color, or the palette's first color
    without one. Pillow takes a table of the grays 0, 1, 2, ... for none, where it is
    the frame's own, and goes on with them behind the table's end.
    """
    frame = _first_frame(data)
    palette = _palette(data, frame)
    alone = _single_frame(data, frame, palette)
    image = tf.io.decode_image(alone, channels=3, expand_animations=False)
    colors = tf.reshape(tf.io.decode_raw(palette, tf.uint8), [256, 3])
    return tf.cond(
        tf.reduce_all(frame.size == frame.canvas),
        lambda: image,
        lambda: _on_canvas(image, frame, colors[frame.transparent]),
    )


def _first_frame(data: tf.Tensor) -> _Frame:
    file, end = file_bytes(data), tf.strings.length(data)
    start, _, transparent = _walk(
        file,
        end,
        tf.minimum(13 + _color_bytes(file[10]), end),
        lambda at, in_data: in_data | ((file[at] != ord(",")) & (file[at] != ord(";"))),
    )
    text = f"A GIF file must have a frame, behind fewer than {_STEPS} blocks."
    data_start = start + 11 + _color_bytes(file[start + 9])
    found = (file[start] == ord(",")) & (data_start <= end)
    check = tf.debugging.Assert(found, [text])
    with tf.control_dependencies([check]):
        start = tf.identity(start)
    corner = _row_and_column(file, start + 1)
    size = _row_and_column(file, start + 5)
    canvas = tf.maximum(_row_and_column(file, 6), corner + size)
    return _Frame(file, end, start, transparent, corner, size, canvas)


def _walk(
    file: tf.Tensor,
    end: tf.Tensor,
    start: tf.Tensor,
    goes_on: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    in_data: bool = False,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Walk over extensions and blocks of data.

    Args:
        goes_on: From a position, and whether it is that of a block of data, to whether
            to go on.

    Returns:
        The position, whether it is that of a block of data, and the index of the last
        transparent color, or 0.
    """
    at, in_data, transparent = tf.while_loop(
        lambda at, in_data, _: (at < end) & goes_on(at, in_data),
        lambda *state: _step(file, end, *state),
        (start, in_data, 0),
        maximum_iterations=_STEPS,
        parallel_iterations=1,
    )
    return at, in_data, transparent


def _step(
    file: tf.Tensor,
    end: tf.Tensor,
    at: tf.Tensor,
    in_data: tf.Tensor,
    transparent: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Skip blocks of data, the two bytes that begin an extension, or one byte."""
    is_extension = ~in_data & (file[at] == ord("!"))
    is_control = is_extension & (file[at + 1] == _GRAPHIC_CONTROL) & (file[at + 2] > 3)
    found = is_control & (file[at + 3] % 2 == 1)
    after_data, more = _past_blocks(file, at)
    after = tf.where(in_data, after_data, at + tf.where(is_extension, 2, 1))
    color = tf.cast(file[at + 6], tf.int32)
    return (
        tf.minimum(after, end),
        is_extension | (in_data & more),
        tf.where(found, color, transparent),
    )


def _row_and_column(file: tf.Tensor, start: tf.Tensor | int) -> tf.Tensor:
    """Two numbers, of which the file holds the second first."""
    return tf.stack([position(file, start + 2, 2), position(file, start, 2)])


def _past_blocks(file: tf.Tensor, at: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Skip up to 256 blocks as long as the first one, and the block after them.

    Returns:
        The position, and whether more blocks of data follow.
    """
    size = 1 + tf.cast(file[at], tf.int32)
    lengths = tf.ensure_shape(file[at : at + 256 * size : size], [None])
    others = (lengths[:-1] != file[at]) | (size == 1)
    last = tf.argmax(tf.concat([others, [True]], 0), output_type=tf.int32)
    length = tf.cast(lengths[last], tf.int32)
    return at + size * last + 1 + length, length > 0


def _color_bytes(flags: tf.Tensor) -> tf.Tensor:
    """Bytes of the color table that the flags of a screen or a frame announce."""
    flags = tf.cast(flags, tf.int32)
    return tf.where(flags >= 128, 3 * 2 ** (flags % 8 + 1), 0)


def _palette(data: tf.Tensor, frame: _Frame) -> tf.Tensor:
    """The 256 colors of a frame as bytes, black beyond its table; gray without one."""
    own = _color_bytes(frame.file[frame.start + 9])
    shared = _color_bytes(frame.file[10])
    start = tf.where(own > 0, frame.start + 10, 13)
    table = tf.strings.substr(data, start, tf.where(own > 0, own, shared))
    table = tf.strings.join([table, bytes(_PALETTE_BYTES)])
    colors = tf.strings.substr(table, 0, _PALETTE_BYTES)
    return tf.where(own + shared > 0, colors, tf.constant(_GRAY))


def _single_frame(data: tf.Tensor, frame: _Frame, palette: tf.Tensor) -> tf.Tensor:
    """A GIF file of the first frame alone, without a transparent color.

    TensorFlow would unpack all frames, and paint transparent pixels black.
    """
    flags = frame.file[frame.start + 9]
    interlaced = tf.bitwise.bitwise_and(flags, 0x40) > 0
    start = frame.start + 10 + _color_bytes(flags)
    after, more, _ = _walk(
        frame.file, frame.end, start + 1, lambda _, in_data: in_data, in_data=True
    )
    text = f"A frame of a GIF file must have fewer than {_STEPS} blocks."
    check = tf.debugging.Assert(~more | (after >= frame.end), [text])
    with tf.control_dependencies([check]):
        length = after - start
    size = tf.strings.substr(data, frame.start + 5, 4)
    return tf.strings.join(
        [
            tf.strings.join([b"GIF89a", size, b"\0\0\0"]),
            tf.strings.join([b",\0\0\0\0", size]),
            tf.where(interlaced, b"\xc7", b"\x87"),  # own colors, 256
            palette,
            tf.strings.substr(data, start, length),
            b";",
        ]
    )


def _on_canvas(image: tf.Tensor, frame: _Frame, color: tf.Tensor) -> tf.Tensor:
    after = frame.canvas - frame.corner - frame.size
    border = tf.concat([tf.stack([frame.corner, after], 1), [[0, 0]]], 0)
    return tf.pad(image - color, border) + color  # uint8 wraps around
