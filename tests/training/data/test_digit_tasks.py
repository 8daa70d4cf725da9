"""Tasks made of the digits: labels by construction, the same images in each part."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from training.data import digit_tasks
from training.data.splits import load_splits
from training.recipe import DataConfig

DIGITS = load_digits()


def read(name, part):
    """Images [n, h, w] and labels [n] of a part."""
    pairs = getattr(digit_tasks, name)()[part]
    [(images, labels)] = pairs.batch(len(pairs)).as_numpy_iterator()
    return images[..., 0], labels


def which(image):
    """The index of the digit with these pixels."""
    values = np.round(image * (16 / 255))
    return int(np.abs(DIGITS.images - values).sum(axis=(1, 2)).argmin())


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_every_task_has_the_same_images_in_a_part(part):
    images, digits = read("digit", part)
    turned, turns = read("quarter_turn", part)
    placed, places = read("quadrant", part)
    for n in range(0, len(images), 97):
        index = which(images[n])
        assert DIGITS.target[index] == digits[n]
        assert np.array_equal(np.rot90(turned[n], -turns[n]), images[n])
        top, left = divmod(places[n], 2)
        cut = placed[n][8 * top : 8 * top + 8, 8 * left : 8 * left + 8]
        assert np.array_equal(cut, images[n])
        assert placed[n].sum() == images[n].sum()
    assert np.array_equal(read("even_odd", part)[1], digits % 2)
    assert np.array_equal(read("low_high", part)[1], digits >= 5)


def test_a_task_is_a_source_with_its_own_parts():
    config = DataConfig("digits:quarter_turn", validation="validation", test="test")
    splits = load_splits(config, channels=1)
    sizes = [len(part) for part in (splits.train, splits.validation, splits.test)]
    assert sizes == [800, 200, 797]
    assert splits.class_names == ("0", "90", "180", "270")
