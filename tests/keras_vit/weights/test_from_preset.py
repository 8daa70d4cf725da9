"""`from_preset`: every kind of source, and what it refuses."""

import keras
import pytest
from foreign_files import (
    arrays_of,
    check_same_weights,
    google,
    write_npz,
)
from foreign_weights import bit

import keras_vit
from keras_vit.weights import CheckpointError, WeightsFileError

pytestmark = pytest.mark.backend

from_preset = keras_vit.VisionTransformer.from_preset
SQUARE = {"image_size": (8, 8), "patch_size": 2}


def test_a_published_name_is_looked_up_by_variant(monkeypatch, tmp_path):
    source = keras_vit.ViTTi16(include_top=False, pooling="token")
    path, asked = google(source, tmp_path), []
    monkeypatch.setattr(
        "keras_vit.weights.building.fetch", lambda row: asked.append(row) or path
    )
    model = from_preset("Ti/16:augreg_in21k", classes=3)
    assert [(row.variant, row.name) for row in asked] == [("Ti/16", "augreg_in21k")]
    assert model.classes == 3
    check_same_weights(model, source, "head/kernel", "head/bias")


def test_a_keras_file_is_the_model_itself(tiny_vit, tmp_path):
    source = tiny_vit(**SQUARE, gelu="exact", register_tokens=2)
    source.save(tmp_path / "best.keras")
    model = from_preset(tmp_path / "best.keras")
    assert model.get_config() == source.get_config()
    check_same_weights(model, source)


def test_a_keras_file_takes_other_classes(tiny_vit, tmp_path):
    source = tiny_vit(**SQUARE)
    source.save(tmp_path / "best.keras")
    model = from_preset(str(tmp_path / "best.keras"), classes=3, dropout=0.1)
    assert (model.classes, model.dropout) == (3, 0.1)
    check_same_weights(model, source, "head/kernel", "head/bias")


def test_a_keras_file_of_another_model_is_refused(tmp_path):
    inputs = keras.Input((4,))
    keras.Model(inputs, keras.layers.Dense(2)(inputs)).save(tmp_path / "m.keras")
    with pytest.raises(CheckpointError, match="must hold a VisionTransformer.*m.keras"):
        from_preset(tmp_path / "m.keras")


def test_a_resnets_file_is_for_a_resnet(tmp_path):
    source = keras_vit.ResNet(image_size=32, blocks=(1,), classes=7)
    path = write_npz(tmp_path / "bit.npz", bit(arrays_of(source)))
    check_same_weights(keras_vit.ResNet.from_preset(path, image_size=32), source)
    with pytest.raises(CheckpointError, match="one of a VisionTransformer.*bit.npz"):
        from_preset(path)


def test_a_vits_file_is_for_a_vit(tiny_vit, tmp_path):
    path = google(tiny_vit(**SQUARE), tmp_path)
    with pytest.raises(CheckpointError, match="one of a ResNet"):
        keras_vit.ResNet.from_preset(path)


@pytest.mark.parametrize(
    ("preset", "error", "message"),
    [
        ("B/16:augerg", ValueError, "'augreg_in21k'.*B/16.*'augerg'"),
        ("X/16:augreg_in21k", ValueError, "'B/16'.*variant='X/16'"),
        ("nowhere.npz", WeightsFileError, "nowhere.npz"),
        ("augreg_in21k", WeightsFileError, "augreg_in21k"),
    ],
)
def test_an_unknown_preset_is_reported(preset, error, message):
    with pytest.raises(error, match=message):
        from_preset(preset)
