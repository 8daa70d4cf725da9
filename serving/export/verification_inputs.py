"""Inputs for `verify`: golden images, and invalid inputs to be refused."""

from collections.abc import Iterator

import numpy as np

from keras_vit.typing import Array, Arrays

# The input of each signature, and the golden array that is fed to it.
SIGNATURE_INPUTS = {
    "serving_default": ("image_bytes", "files"),
    "serve_images": ("images", "images"),
    "serve_pixels": ("pixel_values", "pixels"),
    "embed": ("image_bytes", "files"),
    "attention": ("image_bytes", "files"),
    "classify": ("inputs", "examples"),
}
# Bytes or pixels above which an invalid input is not worth creating.
LARGE = 2**28


def example(data: bytes) -> bytes:
    """Serialize an image file as a tf.Example, for Classify."""
    import tensorflow as tf

    file = tf.train.Feature(bytes_list=tf.train.BytesList(value=[data]))
    features = tf.train.Features(feature={"image/encoded": file})
    serialized: bytes = tf.train.Example(features=features).SerializeToString()
    return serialized


def invalid_inputs(
    golden: Arrays, limits: dict[str, int]
) -> Iterator[tuple[str, str, Array]]:
    """Generate inputs that an exported model must refuse.

    Args:
        golden: Valid inputs, by the names in `SIGNATURE_INPUTS`.
        limits: `max_images`, `max_image_bytes` and `max_image_pixels`. Larger
            limits than `LARGE` are not tested.

    Yields:
        What is wrong, the name of the golden array that it replaces, and the batch.
    """
    for key in ("files", "images", "pixels", "examples"):
        one = golden[key][:1]
        yield "no image", key, one[:0]
        if one.nbytes * limits["max_images"] < LARGE:
            batch = np.repeat(one, limits["max_images"] + 1, axis=0)
            yield "more than `max_images`", key, batch
    yield "NaN", "pixels", np.full_like(golden["pixels"][:1], np.nan)
    for text, data in _bad_files(golden["files"][0], limits):
        yield text, "files", _batch(data)
        yield f"an example of {text}", "examples", _batch(example(data))
    yield "an example without an image", "examples", _batch(b"")
    yield "bytes that are not an example", "examples", _batch(b"no example")


def _bad_files(png: bytes, limits: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    """Files that are not images, and images beyond a limit."""
    import tensorflow as tf

    yield "an empty file", b""
    yield "bytes that are not an image", b"no image"
    yield "half a file", png[: len(png) // 2]
    if limits["max_image_bytes"] < LARGE:
        data = png.ljust(limits["max_image_bytes"] + 1, b"\0")
        yield "more than `max_image_bytes`", data
    if limits["max_image_pixels"] < LARGE:
        rows = limits["max_image_pixels"] // 1000 + 1
        image = tf.zeros([rows, 1000, 1], tf.uint8)
        yield "more than `max_image_pixels`", tf.io.encode_png(image).numpy()


def _batch(value: bytes) -> Array:
    return np.array([value], object)
