"""Operations on the bytes of a file, and functions that stay calls in a graph."""

import functools

import numpy as np
import tensorflow as tf

# Zeros behind a file's bytes: what a truncated header is read as.
PADDING = 128

# Pixels that are decoded at most: Pillow's limit, half a GB. More would end a process
# for its memory, and a GIF of 400 bytes can announce twelve GB.
LARGEST_IMAGE = 178_956_970

# A decorator for what few files need. The operations of a branch that is not taken cost
# as much as small ones that are: of all formats together half a millisecond per image.
# As a call of a function they are one operation.
rarely_called = functools.partial(
    tf.function, autograph=False, experimental_attributes={"_noinline": True}
)


def file_bytes(data: tf.Tensor) -> tf.Tensor:
    """The bytes of a file, scalar string, and `PADDING` zeros: uint8 [n]."""
    return tf.pad(tf.io.decode_raw(data, tf.uint8), [[0, PADDING]])


def header_bytes(data: tf.Tensor) -> tf.Tensor:
    """The first `PADDING` bytes of a file: uint8."""
    return tf.io.decode_raw(data, tf.uint8, fixed_length=PADDING)


def integers(
    part: tf.Tensor, *places: tuple[int, int], big_endian: bool = False
) -> tf.Tensor:
    """Unsigned integers of bytes, uint8 [..., n]: int64 [..., len(places)].

    In four operations, however many there are: a graph's time to be traced and first
    run is that of its operations.

    Args:
        places: The first byte of each integer, and the number of its bytes.
    """
    end = max(start + count for start, count in places)
    factors = np.zeros((end, len(places)), np.int64)
    for column, (start, count) in enumerate(places):
        powers = np.arange(count)[:: -1 if big_endian else 1]
        factors[start : start + count, column] = 256**powers
    digits = tf.cast(part[..., :end, tf.newaxis], tf.int64)
    return tf.reduce_sum(digits * factors, -2)
