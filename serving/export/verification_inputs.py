"""What `verify` asks an exported model: good images, and inputs it must refuse."""

from collections.abc import Iterator

import numpy as np

# The input of each signature, and which golden array is fed to it.
QUESTIONS = {
    "serving_default": ("image_bytes", "files"),
    "serve_images": ("images", "images"),
    "serve_pixels": ("pixel_values", "pixels"),
    "embed": ("image_bytes", "files"),
    "attention": ("image_bytes", "files"),
    "classify": ("inputs", "examples"),
}
# Bytes, or pixels, of a bad input that is still worth making.
LARGE = 2**28

Arrays = dict[str, np.ndarray]


def example(data: bytes) -> bytes:
    """A tf.Example of an image file, as Classify takes it."""
    import tensorflow as tf

    file = tf.train.Feature(bytes_list=tf.train.BytesList(value=[data]))
    features = tf.train.Features(feature={"image/encoded": file})
    return tf.train.Example(features=features).SerializeToString()


def bad_inputs(
    golden: Arrays, limits: dict[str, int]
) -> Iterator[tuple[str, str, np.ndarray]]:
    """What an exported model must refuse.

    Args:
        golden: Good inputs, by the names in `QUESTIONS`.
        limits: `max_images`, `max_image_bytes` and `max_image_pixels`. Limits that are
            too large to go beyond here are left out.

    Yields:
        What is wrong, the name of the golden array that stands there otherwise, and
        the batch.
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
    yield "bytes that are no example", "examples", _batch(b"no example")


def _bad_files(png: bytes, limits: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    """No images, and images that are good but for a limit."""
    import tensorflow as tf

    yield "an empty file", b""
    yield "bytes that are no image", b"no image"
    yield "half a file", png[: len(png) // 2]
    if limits["max_image_bytes"] < LARGE:
        data = png.ljust(limits["max_image_bytes"] + 1, b"\0")
        yield "more than `max_image_bytes`", data
    if limits["max_image_pixels"] < LARGE:
        rows = limits["max_image_pixels"] // 1000 + 1
        image = tf.zeros([rows, 1000, 1], tf.uint8)
        yield "more than `max_image_pixels`", tf.io.encode_png(image).numpy()


def _batch(value: bytes) -> np.ndarray:
    return np.array([value], object)
