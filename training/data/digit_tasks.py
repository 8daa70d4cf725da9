"""Small tasks made of scikit-learn's digits: the source `digits:TASK`.

For what needs several tasks where none can be downloaded, such as the small forms of
the studies. Like VTAB's, each has 800 training and 200 validation images; the other 797
are the test images. Every image belongs to the same part in all of them, so that a
model that was trained on one task has not seen the test images of another.
"""

import numpy as np
import tensorflow as tf

from keras_vit.typing import Array

from .python_source import Datasets

TRAIN, VALIDATION = 800, 200


def digit() -> Datasets:
    """Which of the ten digits it is."""
    images, digits = _digits()
    return _task(images, digits, [str(number) for number in range(10)])


def even_odd() -> Datasets:
    """Whether the digit is even."""
    images, digits = _digits()
    return _task(images, digits % 2, ["even", "odd"])


def low_high() -> Datasets:
    """Whether the digit is below 5."""
    images, digits = _digits()
    return _task(images, digits // 5, ["low", "high"])


def quarter_turn() -> Datasets:
    """By how many quarter turns the digit was turned (arXiv:1803.07728)."""
    images, _ = _digits()
    turns = np.random.default_rng(1).integers(0, 4, len(images))
    turned = [np.rot90(image, turn) for image, turn in zip(images, turns, strict=True)]
    return _task(np.stack(turned), turns, ["0", "90", "180", "270"])


def quadrant() -> Datasets:
    """In which quarter of a picture of twice the side the digit is."""
    images, _ = _digits()
    places = np.random.default_rng(2).integers(0, 4, len(images))
    side = images.shape[1]
    pictures = np.zeros((len(images), 2 * side, 2 * side, 1), np.uint8)
    for picture, image, place in zip(pictures, images, places, strict=True):
        top, left = side * (place // 2), side * (place % 2)
        picture[top : top + side, left : left + side] = image
    names = ["top left", "top right", "bottom left", "bottom right"]
    return _task(pictures, places, names)


TASKS = {
    task.__name__: task for task in (digit, even_odd, low_high, quarter_turn, quadrant)
}


def read_task(name: str) -> Datasets:
    """Make one task: what `open_function` takes."""
    return TASKS[name]()


def load_images() -> tuple[Array, Array]:
    """scikit-learn's 1,797 handwritten digits, 8x8 pixels (UCI, optdigits test set).

    Their values 0 to 16 become round(value * 255 / 16), of which
    round(pixel * 16 / 255) is the inverse.

    Returns:
        Images, uint8 [1797, 8, 8, 1], and digits, int64 [1797], sorted by writer.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    return images[..., np.newaxis], digits.target


def _digits() -> tuple[Array, Array]:
    """The images and digits in a shuffled order."""
    images, digits = load_images()
    order = np.random.default_rng(0).permutation(len(images))
    return images[order], digits[order]


def _task(images: Array, labels: Array, names: list[str]) -> Datasets:
    def part(begin: int, end: int) -> tf.data.Dataset:
        pair = images[begin:end], labels[begin:end].astype(np.int64)
        return tf.data.Dataset.from_tensor_slices(pair)

    chosen = TRAIN + VALIDATION
    return {
        "class_names": names,
        "train": part(0, TRAIN),
        "validation": part(TRAIN, chosen),
        "test": part(chosen, len(images)),
    }
