"""What users do with constructors, own weight files, labels and the command line."""

import numpy as np
import pytest
from foreign_files import check_same_weights
from tiny_model import small

import keras_vit
from keras_vit.commands import main
from keras_vit.weights import CheckpointError, open_checkpoint
from keras_vit.weights.checkpoint import LoadReport

pytestmark = pytest.mark.backend
SMALL = {"depth": 1, "input_shape": (32, 32, 3)}


def test_a_top_needs_classes_where_the_file_has_none(tmp_path):
    model = keras_vit.ViTTi16(include_top=False, pooling="token", **SMALL)
    keras_vit.save_checkpoint(model, tmp_path / "features.npz")
    weights = tmp_path / "features.npz"
    with pytest.raises(ValueError, match=r"`classes` must be given.*features.npz"):
        keras_vit.ViTTi16(weights=weights, depth=1)
    assert keras_vit.ViTTi16(weights=weights, depth=1, classes=3).classes == 3


def test_own_weights_of_another_model_are_refused(tmp_path):
    path = tmp_path / "own.weights.h5"
    deep = keras_vit.ViTTi16(classes=3, depth=2, input_shape=(32, 32, 3))
    deep.save_weights(path)
    with pytest.raises(CheckpointError, match=r"of the same model.*parameters"):
        keras_vit.ViTTi16(weights=path, classes=3, **SMALL)
    again = keras_vit.ViTTi16(weights=path, classes=3, depth=2, input_shape=(32, 32, 3))
    check_same_weights(again, deep)


@pytest.mark.parametrize("family", ["timm", "hugging_face"])
def test_class_names_survive_a_round_trip(family, tmp_path):
    pytest.importorskip("safetensors")
    names = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]
    model = small(gelu="exact", class_names=names)
    keras_vit.save_checkpoint(model, tmp_path / "out", family)
    assert (
        keras_vit.VisionTransformer.from_preset(tmp_path / "out").class_names == names
    )
    fewer = keras_vit.VisionTransformer.from_preset(tmp_path / "out", classes=3)
    assert fewer.class_names is None


def test_placeholder_class_names_are_ignored(tmp_path):
    pytest.importorskip("safetensors")
    model = small(gelu="exact")
    keras_vit.save_checkpoint(model, tmp_path / "out", "hugging_face")
    assert keras_vit.VisionTransformer.from_preset(tmp_path / "out").class_names is None


def test_converting_a_file_into_itself_is_refused(tmp_path, capsys):
    path = tmp_path / "model.npz"
    model = small(image_size=14)
    keras_vit.save_checkpoint(model, path)
    before = path.read_bytes()
    assert main(["convert", str(path), f"{tmp_path}/./model.npz"]) == 2
    assert "OUT must not be IN" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert main(["convert", str(path), str(tmp_path / "copy.npz")]) == 0
    with open_checkpoint(tmp_path / "copy.npz") as copy, open_checkpoint(path) as file:
        assert copy.entries.keys() == file.entries.keys()


def test_the_report_summarizes_many_weights_in_one_line():
    paths = [f"encoder_block_{i}/norm1/gamma" for i in range(50)]
    report = LoadReport(
        "x.npz", "google", adapted=dict.fromkeys(paths, "from bfloat16")
    )
    assert "and 46 more: from bfloat16" in str(report)
    assert len(str(report).splitlines()) == 3


def test_a_file_without_a_classifier_needs_a_policy(tmp_path):
    scores = small(image_size=14)
    features = small(image_size=14, classes=None)
    keras_vit.save_checkpoint(features, tmp_path / "features.npz")
    with pytest.raises(CheckpointError, match="the file none: pass classifier='keep'"):
        keras_vit.load_checkpoint(scores, tmp_path / "features.npz")


def test_an_image_size_may_be_a_numpy_integer(tmp_path):
    model = small(image_size=14)
    larger = keras_vit.with_image_size(model, np.int64(28))
    assert larger.image_size == (28, 28)
    larger.save(tmp_path / "larger.keras")
    with pytest.raises(ValueError, match=r"`image_size` must be.*Received: .*3\.5"):
        keras_vit.with_image_size(model, 3.5)


def test_a_resnet_has_no_patches():
    model = keras_vit.ResNet(image_size=32, blocks=(1,), classes=3)
    assert keras_vit.with_image_size(model, 48).input_shape == (None, 48, 48, 3)
    with pytest.raises(ValueError, match=r"`patch_size` must be None.*patch_size=8"):
        keras_vit.with_image_size(model, 48, patch_size=8)
