"""The first frame of a GIF, compared with Pillow."""

import io
import struct

import numpy as np
import pytest
import tensorflow as tf
from image_bytes import image_bytes
from long_cases import long_after
from PIL import Image

from keras_vit import decoding
from keras_vit.image_files.formats import count_pixels

# Graphs, of which there is one for all files.
count, decode = tf.function(count_pixels), tf.function(decoding.decode_image)
PIXELS = np.random.default_rng(0).integers(0, 40, (11, 17), "uint8")


def gif(pixels=PIXELS, **options):
    image = Image.fromarray(pixels, "P")
    image.putpalette(np.random.default_rng(1).integers(0, 256, 120, "uint8").tobytes())
    return image_bytes(image, "GIF", **options)


def on_canvas(data, width, height, left=0, top=0):
    """The same frame at a place of a larger canvas."""
    start = data.index(b",\0\0\0\0\x11\0\x0b\0")
    screen, corner = struct.pack("<HH", width, height), struct.pack("<HH", left, top)
    return data[:6] + screen + data[10 : start + 1] + corner + data[start + 5 :]


def without_palette(data):
    length = 3 * 2 ** (data[10] % 8 + 1)
    return data[:10] + b"\0" + data[11:13] + data[13 + length :]


def commented(data, *blocks):
    """With a comment in front of the first frame."""
    start = data.index(b",\0\0\0\0\x11\0\x0b\0")
    comment = b"".join(bytes([len(block)]) + block for block in blocks)
    return data[:start] + b"!\xfe" + comment + b"\0" + data[start:]


def with_own_colors(data, size):
    """With a color table of the frame."""
    table = np.random.default_rng(2).integers(0, 256, 3 * size, "uint8").tobytes()
    flags = bytes([0x80 | (size.bit_length() - 2)])
    return data[: FRAME + 9] + flags + table + data[FRAME + 10 :]


def controlled(data, *transparent):
    """With graphic control blocks of a transparent color, or of None."""
    blocks = [b"!\xf9\4" + bytes([i is not None, 0, 0, i or 0, 0]) for i in transparent]
    return data[:FRAME] + b"".join(blocks) + data[FRAME:]


FRAME = gif().index(b",\0\0\0\0\x11\0\x0b\0")
LARGE = np.random.default_rng(3).integers(0, 40, (17, 19), "uint8")
INTERLACED = gif(LARGE, interlace=1)
FRAMES = {"save_all": True, "append_images": [Image.new("P", (17, 11), 3)]}
FILES = {
    "plain": gif(),
    "interlaced": INTERLACED,
    "not interlaced": gif(LARGE, interlace=0),
    "transparent": gif(transparency=7),
    "animated": gif(**FRAMES),
    "animated and transparent": gif(transparency=7, **FRAMES),
    "on a canvas": on_canvas(gif(), 30, 23, 5, 9),
    "transparent on a canvas": on_canvas(gif(transparency=7), 30, 23, 5, 9),
    "beyond its canvas": on_canvas(gif(), 9, 8, 2, 1),
    "two transparent colors": on_canvas(controlled(gif(), 7, 9), 30, 23, 5, 9),
    "no transparent color after all": on_canvas(controlled(gif(), 7, None), 30, 23),
    "colors of the frame": with_own_colors(gif(), 64),
    "few colors of the frame": with_own_colors(gif(), 8),
    "colors of the frame alone": without_palette(with_own_colors(gif(), 128)),
    "without colors": without_palette(gif()),
    "commented": commented(gif(transparency=7), b"," * 255, b";", b"!\xf9\x04\x01,,"),
    "an empty comment": commented(gif()),
    "a long comment": commented(gif(), *[b"," * 255] * 1000),
    "a comment of short blocks": commented(gif(transparency=7), *[b",,"] * 9000, b","),
    "no end": gif()[:-1],
}


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_a_gif_is_read_as_pillow_reads_it(data):
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    decoded = decoding.decode_image(tf.constant(data))
    np.testing.assert_array_equal(decoded, expected)
    assert count_pixels(tf.constant(data)) == expected.shape[0] * expected.shape[1]


def test_the_interlaced_file_is_interlaced():
    """Pillow interlaces nothing of fewer than 16 rows or columns."""
    start = INTERLACED.index(b",\0\0\0\0\x13\0\x11\0")
    assert INTERLACED[start + 9] & 0x40


@pytest.mark.parametrize("length", [6, 12, 13, FRAME, FRAME + 1, FRAME + 9])
def test_a_gif_without_a_frame_is_refused_in_words(length):
    for data in (gif()[:length], gif()[:length] + b";"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="must have a frame"):
            count(tf.constant(data))
        with pytest.raises(tf.errors.InvalidArgumentError, match="must have a frame"):
            decode(tf.constant(data))


BLOCKS = gif()[:FRAME], gif()[FRAME:]
MANY_BLOCKS = b"\x01a\2ab" * 5000 + b"\0"


@pytest.mark.parametrize(
    ("data", "function"),
    long_after(
        2,
        [
            ((b"!\xfe\x01a\0" * 2501).join(BLOCKS), count),
            (gif()[: FRAME + 11] + MANY_BLOCKS + b";", decode),
            ((b"!\xfe" + MANY_BLOCKS).join(BLOCKS), count),
        ],
    ),
    ids=["comments", "a frame", "a comment"],
)
def test_a_gif_of_too_many_blocks_is_refused(data, function):
    with pytest.raises(tf.errors.InvalidArgumentError, match="fewer than 5000 blocks"):
        function(tf.constant(data))
