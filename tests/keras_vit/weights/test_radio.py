"""RADIO, as transformers writes it."""

import json

import numpy as np
import pytest
from foreign_files import arrays_of, edit, needs, write_safetensors

import keras_vit
from keras_vit.weights import WeightsFileError
from keras_vit.weights.checkpoint import open_checkpoint

OPTIONS = {
    "image_size": 16,
    "patch_size": 4,
    "norm_epsilon": 1e-6,
    "gelu": "exact",
    "class_token": False,
    "register_tokens": 3,
    "prefix_positions": False,
    "embedding_bias": False,
    "final_norm": False,
    "classes": None,
    "pooling": None,
}
MEAN = [0.5, 0.4, 0.3]


def written(model, folder, **arrays):
    """The model's folder, with arrays beside its own."""
    keras_vit.save_checkpoint(model, folder, "hugging_face")
    path = folder / "model.safetensors"
    with open_checkpoint(folder) as checkpoint:
        held = {n: np.array(a.read()) for n, a in checkpoint.file.arrays.items()}
    beside = {
        f"radio_model.{name.replace('__', '.')}": np.asarray(value, "float32")
        for name, value in arrays.items()
    }
    write_safetensors(path, {**held, **beside})
    return folder


def test_its_own_normalization_becomes_our_preprocessing(tiny_vit, tmp_path):
    layer = keras_vit.ImagePreprocessing(
        16, mean=tuple(255 * m for m in MEAN), std=51.0, convention="hugging_face"
    )
    source = tiny_vit(**OPTIONS, preprocessing=layer)
    folder = written(source, tmp_path, input_conditioner__norm_mean=MEAN)
    config = json.loads((folder / "config.json").read_text())
    assert config["norm_mean"] == MEAN
    assert config["norm_std"] == [0.2] * 3
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    assert processor["do_normalize"] is False
    opened = keras_vit.open_model(folder).preprocessing
    np.testing.assert_allclose(opened.mean, layer.mean, rtol=1e-6)
    np.testing.assert_allclose(opened.std, layer.std, rtol=1e-6)


def test_pixels_are_not_normalized_twice(tiny_vit, tmp_path, caplog):
    folder = written(tiny_vit(**OPTIONS), tmp_path)
    edit(folder / "preprocessor_config.json", do_normalize=True)
    assert keras_vit.open_model(folder).preprocessing is None
    assert "do_normalize=True before a model that normalizes" in caplog.text


def test_arrays_that_normalize_otherwise_are_refused(tiny_vit, tmp_path):
    wrong = {"input_conditioner__norm_mean": [0.1] * 3}
    folder = written(tiny_vit(**OPTIONS), tmp_path, **wrong)
    with pytest.raises(WeightsFileError, match=r"`norm_mean` must be the same in the"):
        keras_vit.open_model(folder)


def test_what_is_left_out_or_elsewhere_is_said(tiny_vit, tmp_path):
    video = {"model__patch_generator__video_embedder__weight": np.zeros((15, 96))}
    folder = written(tiny_vit(**OPTIONS), tmp_path, **video)
    report = keras_vit.load_checkpoint(tiny_vit(**OPTIONS), folder)
    assert len(report.notes) == 3
    assert "the patches of videos, which are left out" in report.notes


@pytest.mark.parity
@needs("transformers")
@pytest.mark.parametrize("side", [16, 12, 24])
def test_transformers_computes_the_same_at_every_size(side, tiny_vit, tmp_path):
    import torch
    import transformers

    model = tiny_vit(**OPTIONS)
    folder = written(model, tmp_path)
    # Written without LayerScale, as NVIDIA's are.
    assert not any("layer_scale" in name for name in arrays_of(model))
    twin = transformers.RadioModel.from_pretrained(folder).eval()
    twin.make_preprocessor_external()
    size = {"image_size": side, "resample": "bilinear"}
    opened = keras_vit.open_model(folder, **size, pooling=None)
    pixels = np.random.default_rng(1).normal(size=(2, side, side, 3)).astype("float32")
    with torch.no_grad():
        images = torch.tensor(pixels.transpose(0, 3, 1, 2))
        theirs = twin(images).last_hidden_state.numpy()
    ours = np.asarray(opened(pixels))
    np.testing.assert_allclose(ours, theirs, atol=2e-6 * np.abs(theirs).max())
