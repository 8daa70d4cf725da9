"""Operations on the bytes of a file, and functions that stay calls in a graph."""

import functools

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


def integer(
    file: tf.Tensor,
    start: tf.Tensor | int,
    count: int,
    big_endian: tf.Tensor | bool = False,
) -> tf.Tensor:
    """`count` bytes [..., n] from `start` as unsigned integers: int64 [...]."""
    part = tf.cast(file[..., start : start + count], tf.int64)
    part = tf.where(big_endian, tf.reverse(part, [-1]), part)
    return tf.reduce_sum(part * [256**power for power in range(count)], -1)


def position(
    file: tf.Tensor,
    start: tf.Tensor | int,
    count: int,
    big_endian: tf.Tensor | bool = False,
) -> tf.Tensor:
    """`integer` as int32, for indices; at most `2**31 - 1`."""
    largest = tf.constant(2**31 - 1, tf.int64)
    return tf.cast(
        tf.minimum(integer(file, start, count, big_endian), largest), tf.int32
    )
