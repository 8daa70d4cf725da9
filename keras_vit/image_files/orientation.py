"""Orientation of photographs: EXIF's tag 0x0112, as cameras and phones write it.

Files without EXIF, or with a damaged tag, are upright. XMP, and EXIF as text in old PNG
files, are not read.

Offsets are those of Exif 2.32 (JPEG's APP1), the PNG specification (eXIf) and RFC 9649
(WebP's EXIF chunk).
"""

import tensorflow as tf

from keras_vit.image_files.operations import file_bytes, position, rarely_called

# In front of the TIFF header that holds the tags, in each format.
_JPEG, _PNG, _WEBP = b"Exif\0\0", b"eXIf", b"EXIF"
_TIFF = (b"II*\0", b"MM\0*")
_TAG, _SHORT = 0x0112, 3
# Of a JPEG; cameras write the tags first.
_SEARCHED_BYTES = 2**16


def jpeg_orientation(data: tf.Tensor) -> tf.Tensor:
    """EXIF's orientation of a JPEG file, 1 (upright) to 8: int32 scalar."""
    return _orientation(tf.strings.substr(data, 0, _SEARCHED_BYTES), _JPEG)


def png_orientation(data: tf.Tensor) -> tf.Tensor:
    """EXIF's orientation of a PNG file: int32 scalar."""
    return _orientation(data, _PNG)


def webp_orientation(data: tf.Tensor) -> tf.Tensor:
    """EXIF's orientation of a WebP file: int32 scalar."""
    # A length follows, and with some writers JPEG's prefix.
    return _orientation(data, _WEBP, rb"^\C{4}(?:Exif\x00\x00)?")


def upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turn a stored image [h, w, C] the way up that its orientation states."""
    image = tf.ensure_shape(image, [None, None, 3])
    return tf.cond(orientation > 1, lambda: _turn(image, orientation), lambda: image)


@rarely_called
def _turn(image, orientation):
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


def _parts(orientation):
    """Whether rows and columns are exchanged, and which of the two are reversed."""

    def one_of(*values):
        return tf.reduce_any(orientation == tf.constant(values))

    return orientation >= 5, tf.stack([one_of(3, 4, 7, 8), one_of(2, 3, 6, 7)])


def _orientation(data, name, prefix=None):
    """The orientation in the TIFF header behind a name, and a prefix; 1 without one.

    Searched instead of walking from segment to segment: a loop in a graph takes longer
    than decoding a small image, and other bytes do not look like a TIFF header.
    """
    parts = tf.strings.split([data], name).values[1:]
    if prefix is not None:
        parts = tf.strings.regex_replace(parts, prefix, "", replace_global=False)
    magic = tf.strings.substr(parts, 0, 4)
    parts = tf.boolean_mask(parts, (magic == _TIFF[0]) | (magic == _TIFF[1]))
    return tf.cond(tf.size(parts) > 0, lambda: _tag(parts[0]), lambda: 1)


@rarely_called
def _tag(exif):
    """The tag in the first directory of a TIFF header: int32, 1 where it is absent."""
    file = file_bytes(exif)
    big = file[0] == ord("M")
    start = position(file, 4, 4, big_endian=big)
    start = tf.minimum(start, tf.size(file) - 2)
    count = position(file, start, 2, big_endian=big)
    count = tf.minimum(count, (tf.size(file) - start - 2) // 12)
    entries = tf.reshape(file[start + 2 : start + 2 + 12 * count], [count, 12])

    def column(at):  # of 16 bits each
        low, high = (tf.cast(entries[:, at + i], tf.int32) for i in (0, 1))
        return tf.where(big, low * 256 + high, high * 256 + low)

    values = column(8)
    valid = (column(0) == _TAG) & (column(2) == _SHORT) & (values >= 1) & (values <= 8)
    return tf.concat([tf.boolean_mask(values, valid), [1]], 0)[0]
