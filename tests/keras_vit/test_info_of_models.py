"""`keras-vit info` of `.keras` files and of runs."""

import keras
import pytest
from long_cases import long_after
from tiny_model import small, small_classifier

import keras_vit
from keras_vit.commands import main, weights_files
from keras_vit.costs import variant_costs


def info(capsys, monkeypatch, *targets):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["info", *map(str, targets)]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_a_file_is_described(tmp_path, capsys, monkeypatch):
    model = keras_vit.VisionTransformer.from_variant(
        "Ti/16", image_size=(32, 48), classes=7, class_names=[*"abcdefg"]
    )
    model.save(tmp_path / "m.keras")
    printed = info(capsys, monkeypatch, tmp_path / "m.keras")
    costs = variant_costs("Ti/16", (32, 48), 3, 7)
    for words in (
        "ViT Ti/16",
        f"{costs.parameters:,}",
        f"{costs.flops / 1e9:.3g} for one image",
        "32 x 48 x 3 pixels",
        "pixels in [-1, 1]",
        "logits of 7 classes",
        "7: a, b, c, d, e, ...",
    ):
        assert words in printed, words


def test_a_run_is_its_best_model(tiny_vit, tmp_path, capsys, monkeypatch):
    policy = keras_vit.ImagePreprocessing((22, 14))
    model = tiny_vit(preprocessing=policy, register_tokens=2)
    model.save(tmp_path / "best.keras")
    printed = info(capsys, monkeypatch, tmp_path)
    assert "pixels from 0 to 255" in printed
    assert "none" in printed
    assert "GFLOPs" in printed


SIDES = {"image_size": 32, "patch_size": 2}
KINDS = {
    "ViT, of no published size": lambda: small(**SIDES),
    "width_factor=1": lambda: keras_vit.ResNet(blocks=(1, 2), image_size=(33, 26)),
    "ImageClassifier around net": lambda: small_classifier(
        keras.layers.Flatten(), name="net"
    ),
    "ViT behind a ResNet, of no published size": lambda: small(
        **SIDES, resnet_blocks=(1,)
    ),
}


@pytest.mark.parametrize("words", long_after(3, KINDS))
def test_every_kind_of_model_is_described(words, tmp_path, capsys, monkeypatch):
    model = KINDS[words]()
    model.save(tmp_path / "m.keras")
    printed = info(capsys, monkeypatch, tmp_path / "m.keras")
    assert words in printed
    assert f"{model.count_params():,}" in printed


def test_published_weights_are_described(tmp_path, capsys, monkeypatch):
    model = keras_vit.VisionTransformer.from_variant(
        "Ti/16", image_size=32, classes=7, depth=1
    )
    path = tmp_path / "Ti_16.npz"
    keras_vit.save_checkpoint(model, path)
    monkeypatch.setattr(weights_files, "fetch", lambda row: fetched(row, path))
    printed = info(capsys, monkeypatch, "Ti/16:augreg_in21k")
    assert "Ti/16:augreg_in21k" in printed
    assert "7 classes" in printed
    assert "32 x 32 x 3 pixels" in printed


def test_a_mistyped_name_of_published_weights_is_asked_about(capsys):
    assert main(["info", "Ti/16:augreg_in21"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Did you mean Ti/16:augreg_in21k?" in error


def fetched(row, path):
    """The file for what is published with this name."""
    assert (row.variant, row.name) == ("Ti/16", "augreg_in21k")
    return path


def test_other_models_and_missing_files_are_one_line(tmp_path, capsys):
    path = tmp_path / "m.keras"
    assert main(["info", str(path)]) == 1
    assert "there is no such file" in capsys.readouterr().err
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(path)
    assert main(["info", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "holds a Sequential" in error
