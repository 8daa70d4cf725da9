"""Windows bitmaps of every depth and layout, compared with Pillow."""

import io
import struct

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import decoding
from keras_vit.image_files.formats import count_pixels

WIDTH, HEIGHT = 19, 7


def bitmap(bits, header_size=40, masks=(), colors=None, top_down=False, **fields):
    """A bitmap of random bits; `masks` of red, green, blue and perhaps transparency."""
    random = np.random.default_rng(bits)
    colors = 2**bits if colors is None and bits <= 8 else colors or 0
    palette = random.integers(0, 256, (colors, 3 if header_size == 12 else 4), "uint8")
    compression = fields.get("compression", 3 if masks else 0)
    if header_size == 12:
        header = struct.pack("<IHHHH", 12, WIDTH, HEIGHT, 1, bits)
    else:
        header = struct.pack(
            "<IiiHHIIiiII",
            *(header_size, WIDTH, -HEIGHT if top_down else HEIGHT, 1, bits),
            *(compression, 0, 2835, 2835, fields.get("announced", colors), 0),
        )
        header += struct.pack(f"<{len(masks)}I", *masks)
        header = header.ljust(header_size, b"\0")
    rows = random.integers(0, 256, (HEIGHT, (WIDTH * bits + 31) // 32 * 4), "uint8")
    before = header + palette.tobytes() + bytes(fields.get("gap", 0))
    offset = fields.get("offset", 14 + len(before))
    start = struct.pack("<2sIHHI", b"BM", 0, 0, 0, offset)
    return start + before + rows.tobytes()


RED, GREEN, BLUE, ALPHA = 0xFF0000, 0xFF00, 0xFF, 0xFF000000
FILES = {
    **{f"{bits} bits": bitmap(bits) for bits in (1, 4, 8, 16, 24, 32)},
    **{f"{bits} bits of OS/2": bitmap(bits, 12) for bits in (1, 4, 8, 24)},
    "first row first": bitmap(8, top_down=True),
    "few colors": bitmap(8, colors=100),
    "colors not counted": bitmap(4, announced=0),
    "no offset": bitmap(8, offset=0),
    "offset of the palette": bitmap(8, offset=54),
    "gap before the pixels": bitmap(24, gap=33),
    "more colors than counted": bitmap(8, colors=300, announced=256),
    "a palette of direct colors": bitmap(24, colors=10),
    "direct colors without an offset": bitmap(24, colors=10, offset=0),
    "direct colors of which many count": bitmap(24, announced=2**31),
    "a palette of OS/2 with an end": bitmap(8, 12, offset=27)[: 27 + 7 * 20],
    "masks and no offset": bitmap(32, masks=(ALPHA, RED, GREEN), offset=0),
    "masks of nothing": bitmap(32, 56, masks=(0, 0, 0, 0)),
    "masks of 24 bits": bitmap(24, masks=(RED, GREEN, BLUE)),
    "5, 6 and 5 bits": bitmap(16, masks=(0xF800, 0x7E0, 0x1F)),
    "5 bits each, as masks": bitmap(16, masks=(0x7C00, 0x3E0, 0x1F)),
    "xBGR": bitmap(32, masks=(ALPHA, RED, GREEN)),
    "ABGR": bitmap(32, 56, masks=(ALPHA, RED, GREEN, BLUE)),
    "RGBA": bitmap(32, 108, masks=(BLUE, GREEN, RED, ALPHA)),
    "masks in a header of version 2": bitmap(32, 52, masks=(RED, GREEN, BLUE)),
    "masks in a header of version 5": bitmap(32, 124, masks=(ALPHA, GREEN, BLUE, RED)),
    "a header of OS/2's version 2": bitmap(8, 64),
}


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_a_bitmap_is_read_as_pillow_reads_it(data):
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.ptp(expected) > 200
    decoded = decoding.decode_image(tf.constant(data))
    np.testing.assert_array_equal(decoded, expected)
    assert count_pixels(tf.constant(data)) == WIDTH * HEIGHT


def test_indices_beyond_the_palette_are_black():
    decoded = decoding.decode_image(tf.constant(bitmap(8, colors=1)))
    colors = np.unique(decoded.numpy().reshape(-1, 3), axis=0)
    assert len(colors) <= 2
    np.testing.assert_array_equal(colors[0], 0)


def test_zeros_missing_at_the_end_do_not_matter():
    """The last row's padding, that is: 19 pixels of 3 bytes, and 3 bytes."""
    data = bitmap(24)
    whole, cut = (decoding.decode_image(tf.constant(d)) for d in (data, data[:-3]))
    np.testing.assert_array_equal(cut, whole)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bitmap(8, compression=1), "with compression .* are not read.*compression 1"),
        (bitmap(24, compression=5), "with compression .* are not read"),
        (bitmap(8, masks=(RED, GREEN, BLUE)), "with compression .* are not read"),
        (bitmap(24)[:-4], r"truncated BMP file\..*received: 471 470"),
        (bitmap(0, colors=4), "must have 1 to 32 bits per pixel. Received: 0"),
        (bitmap(2, colors=4), "must have 1 to 32 bits per pixel. Received: 2"),
        (bitmap(24, 16), "unknown header. Its size: 16"),
        (bitmap(32, masks=(0x3FF00000, 0xFFC00, 0x3FF)), "are not whole bytes"),
        (bitmap(8, announced=2**31), "65536 colors at most. Received: 2147483648"),
        (bitmap(24, masks=(ALPHA, RED, GREEN)), "are not whole bytes are not read"),
        (b"BM", "unknown header"),
    ],
)
def test_other_bitmaps_are_refused_in_words(tmp_path, data, message):
    (tmp_path / "a.bmp").write_bytes(data)
    with pytest.raises(ValueError, match=f"a.bmp: not a readable image: .*{message}"):
        decoding.load_image(tmp_path / "a.bmp")
