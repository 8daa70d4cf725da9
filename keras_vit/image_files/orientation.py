"""Orientation of photographs: EXIF's tag 0x0112, as cameras and phones write it.

Files without EXIF, or with damaged EXIF, count as upright; Pillow raises an error for
some of the latter. XMP, and EXIF as text in old PNG files, are not read.

Offsets are those of Exif 2.32 (JPEG's APP1), the PNG specification (eXIf) and RFC 9649
(WebP's EXIF chunk).
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from keras_vit.image_files.operations import (
    file_bytes,
    header_bytes,
    integers,
    rarely_called,
)

_TIFF = (b"II*\0", b"MM\0*", b"II\0*", b"MM*\0")  # some writers swap the last two bytes
_TAG, _SHORT, _LONG = 0x0112, 3, 4
_JPEG_NAME = b"Exif\0\0"
# JPEG's markers without a length: 0x01, restarts, start and end of the image.
_BARE_MARKERS = (0x00, 0x01, *range(0xD0, 0xDA))
_FILL, _APP1, _SCAN = 0xFF, 0xE1, 0xDA
_WEBP_START, _WEBP_FLAGS, _EXIF_FLAG = 12, 20, 0x08
# Bound of the walk: enough for the 8 KB chunks of PNG files of 80 MB, and less than a
# second for a hostile file.
_STEPS = 10_000


class _Part(NamedTuple):
    """A segment of a JPEG, or a chunk of a PNG or WebP file; int64 and bool."""

    size: tf.Tensor  # to the next part
    start: int  # of the payload, from the beginning of the part
    length: tf.Tensor  # of the payload
    is_exif: tf.Tensor
    is_last: tf.Tensor  # whether no part behind this one counts


def jpeg_orientation(data: tf.Tensor) -> tf.Tensor:
    """EXIF's orientation of a JPEG file, 1 (upright) to 8: int32 scalar."""
    return _orientation(data, r"Exif\x00\x00", lambda: _exif(data, 2, _jpeg_segment))


def png_orientation(data: tf.Tensor) -> tf.Tensor:
    """EXIF's orientation of a PNG file: int32 scalar."""
    return _orientation(data, "eXIf", lambda: _exif(data, 8, _png_chunk))


def webp_orientation(data: tf.Tensor) -> tf.Tensor:
    """EXIF's orientation of a WebP file: int32 scalar."""
    return _orientation(data, "EXIF", lambda: _webp_exif(data))


def upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turn a stored image [h, w, C] the way up that its orientation states."""
    image = tf.ensure_shape(image, [None, None, 3])
    return tf.cond(orientation > 1, lambda: _turn(image, orientation), lambda: image)


@rarely_called
def _turn(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    transposed, flipped = _parts(orientation)
    image = tf.cond(
        transposed, lambda: tf.transpose(image, [1, 0, 2]), lambda: tf.identity(image)
    )
    return tf.reverse(image, tf.boolean_mask([0, 1], flipped))


def upright_shape(shape: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """The shape, integer [3], that `upright` gives an image of this shape."""
    transposed, _ = _parts(orientation)
    return tf.where(transposed, tf.gather(shape, [1, 0, 2]), shape)


def stored_window(
    window: tf.Tensor, shape: tf.Tensor, orientation: tf.Tensor
) -> tf.Tensor:
    """Where a part of an upright image lies in the stored one.

    Args:
        window: int32 [4]: top, left, height and width, in the upright image.
        shape: int32 [3], of the upright image.
        orientation: int32 scalar.

    Returns:
        int32 [4]: top, left, height and width, in the stored image.
    """
    transposed, flipped = _parts(orientation)
    corner, size = window[:2], window[2:]
    corner = tf.where(flipped, shape[:2] - corner - size, corner)
    corner, size = (
        tf.where(transposed, tf.reverse(pair, [0]), pair) for pair in (corner, size)
    )
    return tf.concat([corner, size], 0)


def _parts(orientation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Whether rows and columns are exchanged, and which of the two are reversed."""

    def one_of(*values: int) -> tf.Tensor:
        return tf.reduce_any(orientation == tf.constant(values))

    return orientation >= 5, tf.stack([one_of(3, 4, 7, 8), one_of(2, 3, 6, 7)])


def _orientation(
    data: tf.Tensor, name: str, read_exif: Callable[[], tf.Tensor]
) -> tf.Tensor:
    """The orientation in a file's EXIF; 1 without.

    A walk from part to part takes longer than decoding a small image, so a search for
    the name decides whether to walk at all. Found is not enough: the name may belong
    to a thumbnail, to text, or to another image behind this one. (`regex_replace`
    searches in half of the time of `strings.split`.)
    """
    shortened = tf.strings.regex_replace(data, name, "", replace_global=False)
    found = tf.strings.length(shortened) < tf.strings.length(data)
    return tf.cond(found, lambda: _tag(read_exif()), lambda: 1)


@rarely_called
def _webp_exif(data: tf.Tensor) -> tf.Tensor:
    """The EXIF chunk, which counts where the header announces one."""
    header = header_bytes(data)
    is_extended = tf.reduce_all(header[12:16] == list(b"VP8X"))
    flag = tf.bitwise.bitwise_and(header[_WEBP_FLAGS], _EXIF_FLAG)
    end = tf.where(is_extended & (flag > 0), 8 + integers(header, (4, 4))[0], 0)
    start = tf.constant(0, tf.int64)
    return _exif(tf.strings.substr(data, start, end), _WEBP_START, _webp_chunk)


def _jpeg_segment(header: tf.Tensor) -> _Part:
    marker = header[1]
    length = integers(header, (2, 2), big_endian=True)[0]
    is_bare = tf.reduce_any(marker == tf.constant(_BARE_MARKERS, tf.uint8))
    is_marker = (header[0] == _FILL) & (marker != _FILL)
    named = tf.reduce_all(header[4:10] == list(_JPEG_NAME))
    # An empty one is passed over, as Pillow joins all.
    is_exif = is_marker & (marker == _APP1) & named & (length > 8)
    size = tf.where(is_bare, tf.constant(2, tf.int64), 2 + length)
    return _Part(
        size=tf.where(is_marker, size, 1),  # other bytes are passed over
        start=10,
        length=length - 8,
        is_exif=is_exif,
        is_last=is_exif | (is_marker & (marker == _SCAN)),
    )


def _png_chunk(header: tf.Tensor) -> _Part:
    length = integers(header, (0, 4), big_endian=True)[0]
    return _Part(
        size=length + 12,
        start=8,
        length=length,
        is_exif=tf.reduce_all(header[4:8] == list(b"eXIf")),  # the last one counts
        is_last=tf.reduce_all(header[4:8] == list(b"IEND")),
    )


def _webp_chunk(header: tf.Tensor) -> _Part:
    length = integers(header, (4, 4))[0]
    is_exif = tf.reduce_all(header[:4] == list(b"EXIF"))
    size = 8 + length + length % 2
    return _Part(size, start=8, length=length, is_exif=is_exif, is_last=is_exif)


@rarely_called
def _exif(
    data: tf.Tensor, start: int, read_part: Callable[[tf.Tensor], _Part]
) -> tf.Tensor:
    """Walk over the parts of a file to its EXIF: scalar string, empty without.

    Args:
        read_part: From the first bytes of a part, uint8 [16].
    """
    end = tf.cast(tf.strings.length(data), tf.int64)

    def step(
        at: tf.Tensor, start: tf.Tensor, length: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        first = tf.strings.substr(data, at, 16)
        part = read_part(tf.io.decode_raw(first, tf.uint8, fixed_length=16))
        return (
            tf.where(part.is_last, end, at + part.size),
            tf.where(part.is_exif, at + part.start, start),
            tf.where(part.is_exif, part.length, length),
        )

    nothing = tf.constant(0, tf.int64)
    _, start, length = tf.while_loop(
        lambda at, *_: at < end,
        step,
        (tf.constant(start, tf.int64), nothing, nothing),
        maximum_iterations=_STEPS,
        parallel_iterations=1,
    )
    return tf.strings.substr(data, tf.minimum(start, end), length)


@rarely_called
def _tag(exif: tf.Tensor) -> tf.Tensor:
    """The tag in the first directory of a TIFF header: int32, 1 where it is absent."""
    # Some writers store JPEG's prefix in other formats, too, and once more in JPEG.
    exif = tf.strings.regex_replace(exif, r"^(?:Exif\x00\x00){1,2}", "")
    is_tiff = tf.reduce_any(tf.strings.substr(exif, 0, 4) == tf.constant(_TIFF))
    file = file_bytes(exif)
    is_big = file[0] == ord("M")

    def in_order(part: tf.Tensor, *places: tuple[int, int]) -> tf.Tensor:
        big = integers(part, *places, big_endian=True)
        return tf.where(is_big, big, integers(part, *places))

    size = tf.size(file, tf.int64)
    start = tf.minimum(in_order(file, (4, 4))[0], size - 2)
    count = in_order(tf.slice(file, [start], [2]), (0, 2))[0]
    start += 2
    count = tf.minimum(count, (size - start) // 12)
    entries = tf.reshape(file[start : start + 12 * count], [count, 12])
    fields = in_order(entries, (0, 2), (2, 2), (4, 4), (8, 2), (8, 4))
    tag, kind, values, short, long = tf.unstack(fields, axis=1)
    is_short = kind == _SHORT
    orientations = tf.where(is_short, short, long)
    valid = (
        is_tiff
        & (tag == _TAG)
        & (is_short | (kind == _LONG))
        & (values > 0)
        & (orientations >= 1)
        & (orientations <= 8)
    )
    found = tf.cast(tf.boolean_mask(orientations, valid), tf.int32)
    return tf.concat([found, [1]], 0)[0]
