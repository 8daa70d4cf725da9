"""Pillow's own test images, hard files of every format, are read as Pillow reads them.

`make peers` downloads Pillow's source distribution, which holds them, into the
environment; skipped without.
"""

import io
import pathlib
import sys
import tarfile
import warnings

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_vit import decoding
from keras_vit.image_files.formats import count_pixels

pytestmark = pytest.mark.parity

SOURCES = sorted(pathlib.Path(sys.prefix).glob("pillow-source/pillow-*.tar.gz"))
SIGNATURES = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "GIF": (b"GIF8",),
    "BMP": (b"BM",),
    "WebP": (b"RIFF",),
    "TIFF": (b"II*\0", b"MM\0*"),
}
# Read by Pillow, refused here: run-length coding, a damaged end of compressed data.
REFUSED = {
    "BMP": {
        *("badrle.bmp", "rletopdown.bmp", "pal4rle.bmp", "pal8rle.bmp"),
        *("pal4rletrns.bmp", "pal8rletrns.bmp", "hopper_rle8.bmp"),
        *("hopper_rle8_grayscale.bmp", "hopper_rle8_row_overflow.bmp"),
    },
    "GIF": {"issue_2811.gif"},
    # 12 and 32 bits for each channel, whose range the file does not state.
    "TIFF": {
        *("12bit.cropped.tif", "10ct_32bit_128.tiff", "16_bit_binary_pgm.tiff"),
        "16bit.s.tif",
    },
}
# 16 bits of gray, which Pillow clips to 255: nearly all of it becomes white.
CLIPPED = ("I;16", "I;16B")
# Orientation in XMP, and in text of ImageMagick, which only Pillow reads.
NOT_TURNED = {
    "exif_imagemagick_orientation.png",
    "xmp_tags_orientation.png",
    "xmp_tags_orientation_exiftool.png",
}


def files(format_):
    """Name and contents of each test image of a format."""
    with tarfile.open(SOURCES[-1]) as source:
        for member in source:
            if "/Tests/images/" in member.name and member.isfile():
                data = source.extractfile(member).read()
                if data.startswith(SIGNATURES[format_]):
                    yield pathlib.PurePath(member.name).name, data


def by_pillow(name, data):
    """RGB as Pillow reads it, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about damaged files
        try:
            image = Image.open(io.BytesIO(data))
            turned = image if name in NOT_TURNED else ImageOps.exif_transpose(image)
            return image.mode, np.asarray(turned.convert("RGB"), "int32")
        except Exception:  # of many kinds
            return None, None


@pytest.mark.skipif(not SOURCES, reason="`make peers` downloads Pillow's test images")
@pytest.mark.parametrize("format_", SIGNATURES)
def test_a_file_is_read_as_pillow_reads_it_or_refused(format_, tmp_path):
    refused, messages, equal = set(), [], 0
    for name, data in files(format_):
        mode, expected = by_pillow(name, data)
        path = tmp_path / name
        path.write_bytes(data)
        try:
            decoded = decoding.load_image(path)
        except ValueError as error:
            messages.append(str(error))
            if expected is not None:
                refused.add(name)
            continue
        if format_ != "TIFF":
            assert count_pixels(tf.constant(data)) == decoded[..., 0].size
        if expected is None or mode in CLIPPED:
            continue
        assert decoded.shape == expected.shape, name
        worst = np.abs(decoded - expected).max(initial=0)
        assert worst <= (mode == "CMYK"), name
        equal += 1
    assert not [text for text in messages if "{{" in text]
    assert refused == REFUSED.get(format_, set())
    assert equal >= 14
