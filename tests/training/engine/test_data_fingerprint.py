"""Fingerprints of a run's images notice every change that counts."""

import shutil

import numpy as np
import pytest
from PIL import Image

from training.data.splits import load_splits
from training.engine.data_fingerprint import contents_fingerprint, names_fingerprint
from training.recipe import DataConfig


@pytest.fixture
def folder(tmp_path):
    """Class folders with parts, of uncompressed images: all files have one size."""
    random = np.random.default_rng(0)
    for part, count in (("train", 3), ("val", 2), ("test", 2)):
        for name in ("cat", "dog"):
            (tmp_path / "a" / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (5, 7, 3), np.uint8)
                file = tmp_path / "a" / part / name / f"{number}.bmp"
                Image.fromarray(pixels).save(file)
    return tmp_path / "a"


def fingerprints(folder):
    config = DataConfig(f"folder:{folder}", validation="validation")
    splits = load_splits(config, 3)
    return names_fingerprint(splits), contents_fingerprint(splits, config.source)


def test_a_copy_in_another_folder_is_the_same_data(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "b", copy_function=shutil.copyfile)
    assert fingerprints(folder) == fingerprints(tmp_path / "b")


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_one_level_of_one_pixel_counts_where_it_is_trained_with(folder, part):
    names, contents = fingerprints(folder)
    file = folder / part / "dog" / "1.bmp"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    changed = fingerprints(folder)
    assert changed[0] == names
    assert (changed[1] != contents) == (part != "test")


def test_two_files_that_change_places_are_noticed(folder):
    before = fingerprints(folder)
    one, two = folder / "train" / "cat" / "0.bmp", folder / "train" / "cat" / "1.bmp"
    first = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(first)
    assert fingerprints(folder)[1] != before[1]


def test_a_renamed_file_is_another_name_with_the_same_contents(folder):
    before = fingerprints(folder)
    (folder / "train" / "dog" / "2.bmp").rename(folder / "train" / "dog" / "9.bmp")
    after = fingerprints(folder)
    assert after[0] != before[0]
    assert after[1] == before[1]
