"""What `make demo` does by itself, beside the commands that it runs."""

import contextlib

import numpy as np
from PIL import Image

import demo
from training.data.splits import load_splits
from training.recipe import DataConfig


def test_the_png_of_a_digit_is_the_first_test_image(tmp_path):
    with contextlib.chdir(tmp_path):
        demo.RUN.mkdir(parents=True)
        path = demo.digit_png()
        test = load_splits(DataConfig("digits"), channels=1).test
        assert path.stem == f"digit-{test.labels[0]}"
        image = np.asarray(Image.open(path))
        np.testing.assert_array_equal(image, test.read(0)[..., 0])
