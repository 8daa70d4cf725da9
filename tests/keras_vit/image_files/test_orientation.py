"""The way up that EXIF states, compared with Pillow's `exif_transpose`."""

import io
import struct

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps, PngImagePlugin

from keras_vit import decoding

PIXELS = np.random.default_rng(0).integers(0, 256, (23, 37, 3), "uint8")
FORMATS = {
    "JPEG": {"quality": 95, "subsampling": 0},
    "PNG": {},
    "WEBP": {"lossless": True},
    "TIFF": {},
}


def exif(orientation, order="<", count=1, kind=3):
    """A TIFF header with tags, of which the second is the orientation."""
    magic = b"II*\0" if order == "<" else b"MM\0*"
    maker = struct.pack(f"{order}HHII", 0x010F, 2, 4, 0x41424300)
    tag = struct.pack(f"{order}HHIHH", 0x0112, kind, count, orientation, 0)
    return magic + struct.pack(f"{order}IH", 8, 2) + maker + tag + bytes(4)


def photograph(format_, tags):
    file = io.BytesIO()
    options = FORMATS[format_]
    if format_ == "TIFF":
        Image.fromarray(PIXELS).save(file, format_, tiffinfo={0x0112: tags})
    else:
        prefix = b"" if format_ == "PNG" else b"Exif\0\0"
        Image.fromarray(PIXELS).save(file, format_, exif=prefix + tags, **options)
    return file.getvalue()


def upright(data):
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_", FORMATS)
def test_a_photograph_stands_upright(tmp_path, format_, orientation):
    tags = orientation if format_ == "TIFF" else exif(orientation)
    data = photograph(format_, tags)
    expected = upright(data)
    assert expected.shape[:2] == ((23, 37) if orientation < 5 else (37, 23))
    (tmp_path / "photograph").write_bytes(data)
    read = decoding.load_image(tmp_path / "photograph")
    np.testing.assert_array_equal(read, expected)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
def test_a_part_is_that_of_the_upright_photograph(format_, orientation):
    data = photograph(format_, exif(orientation))
    expected = upright(data)
    shapes = []

    def choose(shape):
        shapes.append(shape.numpy().tolist())
        return tf.constant([3, 5, 7, 11])

    part = decoding.decode_and_crop(tf.constant(data), choose)
    assert shapes == [list(expected.shape)]
    np.testing.assert_array_equal(part, expected[3:10, 5:16])


@pytest.mark.parametrize(
    ("tags", "turned"),
    [
        (exif(6, ">"), True),
        (exif(9), False),
        (exif(0), False),
        (exif(6, kind=4), False),
        (exif(6)[:20], False),  # cut within the tags
        (b"II*\0\xff\xff\xff\xff", False),  # tags beyond the end
        (b"no tags", False),
    ],
)
def test_damaged_tags_leave_a_photograph_as_it_is(tags, turned):
    decoded = decoding.decode_image(tf.constant(photograph("PNG", tags)))
    assert (decoded.shape == (37, 23, 3)) is turned
    if not turned:
        np.testing.assert_array_equal(decoded, PIXELS)


def test_a_name_without_tags_behind_it_is_no_exif():
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", "eXIf and EXIF and Exif\0\0")
    file = io.BytesIO()
    tags = exif(6)
    Image.fromarray(PIXELS).save(file, "PNG", pnginfo=info, exif=tags)
    decoded = decoding.decode_image(tf.constant(file.getvalue()))
    np.testing.assert_array_equal(decoded, upright(file.getvalue()))
    assert decoded.shape == (37, 23, 3)


def test_exif_behind_a_color_profile_counts():
    """The order in which some cameras write their segments."""
    data = photograph("JPEG", exif(8))
    profile = b"\xff\xe2" + struct.pack(">H", 40_002) + bytes(40_000)
    decoded = decoding.decode_image(tf.constant(data[:2] + profile + data[2:]))
    np.testing.assert_array_equal(decoded, upright(data))
