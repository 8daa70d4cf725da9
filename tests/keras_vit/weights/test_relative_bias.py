"""Tables of relative positions: grids, images of another size."""

import foreign_files
import numpy as np
import pytest
from foreign_files import arrays_of, edit
from tiny_model import small, with_random_weights

import keras_vit
from keras_vit.weights import WeightsFileError
from keras_vit.weights.resampling import resample_relative_bias

pytest.importorskip("safetensors")

BEIT = {
    "gelu": "exact",
    "key_bias": False,
    "layer_scale": 0.1,
    "fc_norm": True,
    "pooling": "avg",
    "norm_epsilon": 1e-12,
    "position_embedding": "none",
    "image_size": 8,
}
TABLE = "encoder_block_1/attention/relative_bias"


def written(folder, **options):
    model = with_random_weights(small(**{**BEIT, **options}), 3)
    keras_vit.save_checkpoint(model, folder, "hugging_face")
    return model


@pytest.mark.parametrize("bias", ["every_layer", "shared"])
def test_the_grid_is_that_of_the_table(bias, tmp_path):
    source = written(tmp_path, relative_bias=bias)
    model = keras_vit.open_model(tmp_path)
    assert (model.grid, model.relative_bias) == ((4, 4), bias)
    foreign_files.check_same_weights(model, source)
    edit(tmp_path / "config.json", image_size=10)
    with pytest.raises(WeightsFileError, match=r"52 of them for 5 x 5 patches"):
        keras_vit.open_model(tmp_path)


def test_a_table_is_resampled_for_images_of_another_size(tmp_path, caplog):
    source = written(tmp_path, relative_bias="every_layer")
    model = keras_vit.open_model(tmp_path, image_size=(6, 12), resample="bilinear")
    assert "grid (4, 4) to (3, 6), method 'bilinear'" in caplog.text
    table = arrays_of(model)[TABLE]
    assert table.shape == (5 * 11 + 3, 5)
    before = arrays_of(source)[TABLE]
    np.testing.assert_array_equal(table[-3:], before[-3:])
    expected = resample_relative_bias(before, (4, 4), (3, 6), "bilinear")
    np.testing.assert_array_equal(table, expected)
    again = keras_vit.with_image_size(source, (6, 12), resample="bilinear")
    np.testing.assert_array_equal(arrays_of(again)[TABLE], table)


def test_offsets_without_curvature_stay_what_they_are():
    """Corner to corner, a table that is linear in its offsets keeps its values."""
    rows, columns = np.mgrid[-3:4, -2:3]
    table = np.concatenate([(rows + 10 * columns).reshape(-1, 1), [[7], [8], [9]]])
    found = resample_relative_bias(table.astype("float32"), (4, 3), (7, 5), "google")
    rows, columns = np.mgrid[-3:3:13j, -2:2:9j]
    np.testing.assert_allclose(found[:-3, 0], (rows + 10 * columns).ravel(), atol=1e-5)
    assert found[-3:, 0].tolist() == [7, 8, 9]


@pytest.mark.parity
def test_transformers_resamples_alike(tmp_path):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    table = np.random.default_rng(0).normal(size=(52, 3)).astype("float32")
    image = torch.tensor(table[:-3].T.reshape(1, 3, 7, 7))
    theirs = functional.interpolate(image, size=(5, 11), mode="bilinear")
    found = resample_relative_bias(table, (4, 4), (3, 6), "bilinear")
    expected = theirs.numpy().reshape(3, -1).T
    np.testing.assert_allclose(found[:-3], expected, atol=1e-6)
