"""WebP files (RFC 9649)."""

import tensorflow as tf

from keras_vit.image_files.operations import header_bytes, integers, rarely_called

_ANIMATION, _ALPHA = 0x02, 0x10  # flags of the chunk VP8X
_FLAGS = 20  # where they are


@rarely_called
def webp_pixels(data: tf.Tensor) -> tf.Tensor:
    """Height times width of a WebP image or its canvas: int64 scalar."""
    header = header_bytes(data)
    places = (26, 2), (28, 2), (21, 4), (24, 3), (27, 3)
    width, height, bits, right, bottom = tf.unstack(integers(header, *places))
    lossy = (width % 2**14) * (height % 2**14)
    lossless = (1 + bits % 2**14) * (1 + bits // 2**14 % 2**14)
    canvas = (1 + right) * (1 + bottom)
    other = tf.where(header[15] == ord("L"), lossless, lossy)  # behind "VP8"
    return tf.where(_is_extended(data), canvas, other)


@rarely_called
def decode_webp(data: tf.Tensor) -> tf.Tensor:
    """Decode a WebP file, the first frame of an animation: uint8 [h, w, 3]."""

    def first_frame() -> tf.Tensor:
        # TensorFlow reads animations that announce transparency; of others it writes
        # four channels into memory for three, whatever is asked for.
        flags = header_bytes(data)[_FLAGS : _FLAGS + 1]
        flags = tf.cast(tf.bitwise.bitwise_or(flags, _ALPHA), tf.int32)
        byte = tf.gather([bytes([value]) for value in range(256)], flags[0])
        head = tf.strings.substr(data, 0, _FLAGS)
        tail = tf.strings.substr(data, _FLAGS + 1, tf.strings.length(data))
        file = tf.strings.join([head, byte, tail])
        return tf.io.decode_image(file, channels=4, expand_animations=False)

    def still() -> tf.Tensor:
        return tf.io.decode_image(data, channels=0, expand_animations=False)

    animated = tf.bitwise.bitwise_and(header_bytes(data)[_FLAGS], _ANIMATION) > 0
    image = tf.cond(_is_extended(data) & animated, first_frame, still)
    return tf.ensure_shape(image, [None, None, None])[..., :3]


def _is_extended(data: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(header_bytes(data)[12:16] == list(b"VP8X"))
