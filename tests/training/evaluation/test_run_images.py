"""The images of a run that the int8 export calibrates and compares with."""

import dataclasses

import numpy as np
import pytest
import sklearn.datasets
from tiny_recipe import TINY_RECIPE

import keras_vit
from training.__main__ import main
from training.evaluation import run_images
from training.recipe import DataConfig


@pytest.fixture
def model_file(tmp_path):
    """A run with shares of the digits for validation and test."""
    data = DataConfig("digits", validation=0.1, test=0.2)
    recipe = dataclasses.replace(TINY_RECIPE, data=data)
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    model = keras_vit.VisionTransformer(
        **{"image_size": 16, "patch_size": 8, "width": 8, "depth": 1, "mlp_dim": 8},
        **{"heads": 1, "classes": 10, "channels": 1},
        class_names=[str(digit) for digit in range(10)],
        preprocessing=keras_vit.ImagePreprocessing((16, 16), interpolation="nearest"),
    )
    model.save(tmp_path / "best.keras")
    return tmp_path / "best.keras"


def rows(images):
    """Each image of 8 x 8 pixels, of one of 16 x 16."""
    return {image[::2, ::2].tobytes() for image in images}


def test_images_of_all_splits_are_written_in_the_model_s_size(model_file, monkeypatch):
    monkeypatch.setattr(run_images, "NUMBER", 170)
    target = model_file.parent / "images.npz"
    assert main(["run-images", str(model_file), str(target)]) == 0
    with np.load(target) as arrays:
        splits = dict(arrays)
    # 0.2 of 1797, then 0.1 of the rest, which is less than the limit.
    sizes = {name: len(images) for name, images in splits.items()}
    assert sizes == {"train": 170, "validation": 144, "test": 170}
    digits = np.round(sklearn.datasets.load_digits().images * (255 / 16))
    known = {image.tobytes() for image in digits.astype("uint8")}
    seen = {name: rows(images) for name, images in splits.items()}
    for name, images in splits.items():
        assert images.dtype == np.uint8
        assert images.shape[1:] == (16, 16, 1)
        assert seen[name] <= known
        assert len(seen[name]) == len(images), "each image once"
    assert not seen["train"] & (seen["validation"] | seen["test"])
    again = run_images.read_images(model_file)
    np.testing.assert_array_equal(again["train"], splits["train"])


def test_what_cannot_be_read_is_said_in_one_line(model_file, capsys):
    (model_file.parent / "recipe.yaml").unlink()
    target = model_file.parent / "images.npz"
    assert main(["run-images", str(model_file), str(target)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "is not the folder of a run, as it has no recipe.yaml" in line
    assert not target.exists()
