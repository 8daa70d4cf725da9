"""The first frame of a GIF, on its canvas (GIF89a specification)."""

from typing import NamedTuple

import tensorflow as tf

from keras_vit.image_files.operations import file_bytes, integers, rarely_called

# Bound of the loops, a tenth of a second: enough for 300 MB in blocks of one length, or
# for 400 kB of XMP, whose bytes are read as the lengths of blocks.
_STEPS = 5_000
_GRAY = bytes(level for level in range(256) for _ in range(3))
_PALETTE_BYTES = 3 * 256
_GRAPHIC_CONTROL = 0xF9
# With all fields but the color tables, and of a control up to the transparent color.
_SCREEN_BYTES, _DESCRIPTOR_BYTES, _GRAPHIC_CONTROL_BYTES = 13, 10, 7


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
    screen = file[:_SCREEN_BYTES]
    first = tf.minimum(_SCREEN_BYTES + _color_bytes(screen[10]), end)
    start, _, transparent = _walk(file, end, first, in_data=False)
    text = f"A GIF file must have a frame, behind fewer than {_STEPS} blocks."
    descriptor = tf.slice(file, [start], [_DESCRIPTOR_BYTES])
    data_start = start + _DESCRIPTOR_BYTES + 1 + _color_bytes(descriptor[9])
    found = (descriptor[0] == ord(",")) & (data_start <= end)
    check = tf.debugging.Assert(found, [text])
    with tf.control_dependencies([check]):
        start = tf.identity(start)
    # Columns come before rows in the file.
    places = (3, 2), (1, 2), (7, 2), (5, 2)
    corner, size = tf.split(tf.cast(integers(descriptor, *places), tf.int32), 2)
    canvas = tf.cast(integers(screen, (8, 2), (6, 2)), tf.int32)
    canvas = tf.maximum(canvas, corner + size)
    return _Frame(file, end, start, transparent, corner, size, canvas)


def _walk(
    file: tf.Tensor, end: tf.Tensor, start: tf.Tensor, in_data: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Walk over blocks of data, or over extensions up to a frame.

    Args:
        in_data: Whether the first position is that of a block of data: then the walk
            ends behind the last of them.

    Returns:
        The position, whether it is that of a block of data, and the index of the last
        transparent color, or 0.
    """
    blocks_alone = in_data

    def goes_on(at: tf.Tensor, in_data: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        ends = blocks_alone | (file[at] == ord(",")) | (file[at] == ord(";"))
        return (at < end) & (in_data | ~ends)

    state: tuple[tf.Tensor, tf.Tensor, tf.Tensor] = tf.while_loop(
        goes_on,
        lambda *state: _step(file, end, *state),
        (start, in_data, 0),
        maximum_iterations=_STEPS,
        parallel_iterations=1,
    )
    return state


def _step(
    file: tf.Tensor,
    end: tf.Tensor,
    at: tf.Tensor,
    in_data: tf.Tensor,
    transparent: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Skip blocks of data, the two bytes that begin an extension, or one byte."""
    part = tf.cast(tf.slice(file, [at], [_GRAPHIC_CONTROL_BYTES]), tf.int32)
    first, label, size, flags, _, _, color = tf.unstack(part)
    is_extension = ~in_data & (first == ord("!"))
    is_control = is_extension & (label == _GRAPHIC_CONTROL) & (size > 3)
    found = is_control & (flags % 2 == 1)
    after_data, more = _past_blocks(file, at)
    after = tf.where(in_data, after_data, at + tf.where(is_extension, 2, 1))
    return (
        tf.minimum(after, end),
        is_extension | (in_data & more),
        tf.where(found, color, transparent),
    )


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
    after, more, _ = _walk(frame.file, frame.end, start + 1, in_data=True)
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
