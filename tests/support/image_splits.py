"""Splits that several test files share: pixels of noise, and photographs as JPEGs."""

import numpy as np
import tensorflow as tf
from image_bytes import image_bytes
from PIL import Image
from sklearn.datasets import load_sample_image

from training.data.labeled_images import Split, encoded_split


def noise_split(count=23, size=(13, 11), channels=3):
    """Images of noise, each with its own number as its only label."""
    random = np.random.default_rng(0)
    images = tf.constant(random.integers(0, 256, (count, *size, channels)), tf.uint8)
    names = [f"noise {number}" for number in range(count)]
    return Split(
        np.arange(count),
        count,
        lambda index: images[index],
        names,
        channels=channels,
    )


def jpeg_split(count=6, channels=3):
    """Crops of a photograph as JPEG files, 60x80 pixels."""
    picture = load_sample_image("china.jpg")
    files = []
    for number in range(count):
        crop = picture[20 * number : 20 * number + 60, 30 * number : 30 * number + 80]
        files.append(image_bytes(Image.fromarray(crop), "JPEG", quality=90))
    contents = tf.constant(files)
    return encoded_split(
        "jpeg",
        lambda index: contents[index],
        np.arange(count),
        count,
        [f"crop {number}" for number in range(count)],
        channels,
    )


def drawn(function, seeds):
    """The results of a function for seeds [n, 2], as arrays [n, ...]."""
    dataset = tf.data.Dataset.from_tensor_slices(seeds).map(function)
    return next(dataset.batch(len(seeds)).as_numpy_iterator())
