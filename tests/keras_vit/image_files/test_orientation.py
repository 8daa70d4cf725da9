"""The way up that EXIF states, compared with Pillow's `exif_transpose`."""

import io
import struct
import time
import zlib

import numpy as np
import pytest
import tensorflow as tf
from image_bytes import image_bytes
from long_cases import long_after
from PIL import Image, ImageOps

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
    value = struct.pack(f"{order}{ {1: 'B', 3: 'H', 4: 'I'}[kind] }", orientation)
    tag = struct.pack(f"{order}HHI4s", 0x0112, kind, count, value)
    return magic + struct.pack(f"{order}IH", 8, 2) + maker + tag + bytes(4)


def photograph(format_, tags):
    if format_ == "TIFF":
        options = {"tiffinfo": {0x0112: tags}}
    else:
        options = {"exif": (b"" if format_ == "PNG" else b"Exif\0\0") + tags}
    image = Image.fromarray(PIXELS)
    return image_bytes(image, format_, **FORMATS[format_], **options)


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


def decoded(data):
    return decoding.decode_image(tf.constant(data)).numpy()


@pytest.mark.filterwarnings("ignore:Metadata Warning")  # about two values
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    ("options", "turned"),
    [
        ({"kind": 3}, True),
        ({"kind": 4}, True),
        ({"kind": 1}, False),
        ({"count": 2}, True),
        ({"count": 0}, False),
        ({"count": 0, "kind": 4}, False),
    ],
)
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
def test_the_types_that_pillow_obeys_count(format_, options, turned, order):
    data = photograph(format_, exif(6, order, **options))
    assert (upright(data).shape == (37, 23, 3)) is turned
    np.testing.assert_array_equal(decoded(data), upright(data))


@pytest.mark.parametrize(
    "tags",
    [
        exif(9),
        exif(0),
        exif(0x10006, kind=4),
        exif(6)[:20],  # cut within the tags
        b"II*\0\xff\xff\xff\xff",  # tags beyond the end
        b"no tags",
    ],
)
def test_damaged_tags_leave_a_photograph_as_it_is(tags):
    np.testing.assert_array_equal(decoded(photograph("PNG", tags)), PIXELS)


def segment(marker, payload):
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(payload) + 2) + payload


def app1(tags):
    return segment(0xE1, b"Exif\0\0" + tags)


def jpeg(*segments, end=b""):
    """The photograph with segments in front of its own, and bytes behind its end."""
    data = photograph("JPEG", b"")
    return data[:2] + b"".join(segments) + data[2:] + end


def chunk(name, payload):
    check = struct.pack(">I", zlib.crc32(name + payload))
    return struct.pack(">I", len(payload)) + name + payload + check


def png(*chunks, late=(), end=b""):
    """The photograph with chunks before and behind its pixels, and behind its end."""
    data = photograph("PNG", b"")
    first, last = data.index(b"IDAT") - 4, data.index(b"IEND") - 4
    before, behind = b"".join(chunks), b"".join(late)
    return data[:first] + before + data[first:last] + behind + data[last:] + end


def webp(*chunks, flags=0x08, end=b""):
    """The photograph with chunks behind its pixels, and bytes behind its end."""
    pixels = photograph("WEBP", b"")[12:]
    header = struct.pack("<4sIB3x", b"VP8X", 10, flags) + b"\x24\0\0\x16\0\0"
    parts = [b"WEBP", header if flags else b"", pixels]
    for name, payload in chunks:
        parts += [struct.pack("<4sI", name, len(payload)), payload]
        parts.append(bytes(len(payload) % 2))
    body = b"".join(parts)
    return struct.pack("<4sI", b"RIFF", len(body)) + body + end


TAGS, OTHERS, PREFIX = exif(6), exif(3), b"Exif\0\0"
THUMBNAIL = jpeg(app1(TAGS))
HEADERS, SCAN, PIXELS_OF_JPEG = jpeg().partition(b"\xff\xda")
COMMENT, PROFILE = segment(0xFE, b"a"), segment(0xE2, bytes(40_000))
TURNED = {
    "behind a color profile": jpeg(PROFILE, app1(TAGS)),
    "behind 64 KiB": jpeg(PROFILE, PROFILE, app1(TAGS)),
    "behind the tables": HEADERS + app1(TAGS) + SCAN + PIXELS_OF_JPEG,
    "behind an empty one": jpeg(app1(b""), app1(TAGS)),
    "first of two": jpeg(app1(TAGS), app1(OTHERS)),
    "behind filling bytes": jpeg(b"\xff" * 5, app1(TAGS)),
    "behind garbage": jpeg(COMMENT, b"\0garbage", app1(TAGS)),
    "behind a marker without length": jpeg(COMMENT, b"\xff\xd0", app1(TAGS)),
    "a second prefix": jpeg(app1(PREFIX + TAGS)),
    "another segment of APP1": jpeg(segment(0xE1, b"http://ns.adobe"), app1(TAGS)),
    "a header with swapped bytes": jpeg(app1(b"MM*\0" + exif(6, ">")[4:])),
    "eXIf": png(chunk(b"eXIf", TAGS)),
    "eXIf behind the pixels": png(late=[chunk(b"eXIf", TAGS)]),
    "eXIf with JPEG's prefix": png(chunk(b"eXIf", PREFIX + TAGS)),
    "last eXIf": png(chunk(b"eXIf", OTHERS), late=[chunk(b"eXIf", TAGS)]),
    "eXIf with line breaks": png(chunk(b"eXIf", TAGS + b"\n" * 2570)),
    "EXIF": webp((b"EXIF", TAGS)),
    "EXIF with JPEG's prefix": webp((b"EXIF", PREFIX + TAGS)),
    "EXIF with two prefixes": webp((b"EXIF", PREFIX + PREFIX + TAGS)),
    "EXIF behind odd chunks": webp((b"XXXX", b"odd"), (b"EXIF", TAGS)),
    "first EXIF": webp((b"EXIF", TAGS), (b"EXIF", OTHERS)),
}
UPRIGHT = {
    "of a JPEG behind the end": jpeg(end=THUMBNAIL),
    "behind the end": jpeg(end=app1(TAGS)),
    "of a thumbnail": jpeg(segment(0xED, b"Photoshop 3.0\0" + THUMBNAIL)),
    "in a comment": jpeg(segment(0xFE, PREFIX + TAGS)),
    "behind another NUL": jpeg(segment(0xE1, b"Exif\0\xff" + TAGS)),
    "in text": png(chunk(b"tEXt", b"Comment\0eXIf" + TAGS)),
    "eXIf behind the end": png(end=chunk(b"eXIf", TAGS)),
    "not the last eXIf": png(chunk(b"eXIf", TAGS), chunk(b"eXIf", exif(1))),
    "in XMP": webp((b"XMP ", b"EXIF\x20\0\0\0" + TAGS), flags=0x04),
    "in XMP beside EXIF": webp(
        (b"XMP ", b"EXIF\x20\0\0\0" + TAGS), (b"EXIF", exif(1)), flags=0x0C
    ),
    "EXIF without its flag": webp((b"EXIF", TAGS), flags=0x04),
    "EXIF of a simple WebP": webp((b"EXIF", TAGS), flags=0),
    "EXIF behind the end": webp(end=b"EXIF\x20\0\0\0" + TAGS),
}


@pytest.mark.parametrize("name", [*TURNED, *UPRIGHT])
def test_the_files_own_exif_counts_wherever_it_is_and_nothing_like_it(name):
    data = {**TURNED, **UPRIGHT}[name]
    assert upright(data).shape == ((37, 23, 3) if name in TURNED else (23, 37, 3))
    np.testing.assert_array_equal(decoded(data), upright(data))


def test_a_damaged_first_segment_leaves_a_photograph_as_it_is():
    """Pillow joins the segments, and raises an error."""
    assert decoded(jpeg(app1(b"garbage!"), app1(TAGS))).shape == (23, 37, 3)


@pytest.mark.parametrize(
    "data",
    long_after(
        2,
        [
            jpeg(segment(0xFE, b"") * 2**18, app1(TAGS)),
            webp(*[(b"XXXX", b"")] * 2**17, (b"EXIF", TAGS)),
            jpeg(COMMENT, b"\0" * 2**20, app1(TAGS)),
            png(chunk(b"tEXt", b"a\0") * 2**17, chunk(b"eXIf", TAGS)),
        ],
    ),
)
def test_files_of_countless_segments_take_no_time(data):
    orientation = tf.function(decoding.decode_image, autograph=False)
    orientation(tf.constant(jpeg()))
    start = time.process_time()
    assert orientation(tf.constant(data)).shape[:2] in ((23, 37), (37, 23))
    assert time.process_time() - start < 5
