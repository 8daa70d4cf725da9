"""Made-up handwriting: in the form of MNIST, repeatable, and legible."""

import numpy as np
import pytest
from PIL import Image
from sklearn.svm import SVC

from docs.experiments import images as characters


def written(digit, seed, count):
    """Digits as an array [count, 28, 28] of 0 to 1."""
    random = np.random.default_rng(seed)
    images = [characters.write(digit, random) for _ in range(count)]
    assert {(image.mode, image.size) for image in images} == {("L", (28, 28))}
    return np.stack([np.asarray(image) for image in images]) / 255


@pytest.mark.parametrize("digit", ["1", "8"])
def test_a_digit_is_white_in_the_middle_of_black(digit):
    images = written(digit, 3, 40)
    weights = images.clip(0.3) - 0.3  # without the noise of the background
    rows, columns = np.indices((28, 28))
    total = weights.sum((1, 2))
    for places in (rows, columns):
        assert (abs((weights * places).sum((1, 2)) / total - 13.5) < 4).all()
    assert images[:, :2].mean() < 0.1
    assert (images.max((1, 2)) > 0.6).all()


def test_the_same_seed_writes_the_same_and_no_two_digits_are_equal():
    images = written("4", 7, 11)
    np.testing.assert_array_equal(images, written("4", 7, 11))
    assert len({image.tobytes() for image in images}) == 11


@pytest.mark.slow
def test_a_support_vector_machine_reads_them():
    train, test = (
        np.concatenate([written(digit, seed, count) for digit in characters.WAYS])
        for seed, count in ((0, 60), (1, 12))
    )
    labels, wanted = np.repeat(range(10), 60), np.repeat(range(10), 12)
    machine = SVC(C=5).fit(train.reshape(600, -1), labels)
    assert 0.75 < machine.score(test.reshape(120, -1), wanted) < 1


def test_each_part_has_a_folder_of_files_for_each_digit(tmp_path, monkeypatch):
    monkeypatch.setattr(characters, "WRITTEN", {"train": 3, "test": 2})
    characters.make_strokes(tmp_path, seed=5)
    files = sorted(tmp_path.glob("*/*/*.png"))
    assert len(files) == 10 * (3 + 2)
    assert Image.open(tmp_path / "train" / "9" / "0002.png").size == (28, 28)
