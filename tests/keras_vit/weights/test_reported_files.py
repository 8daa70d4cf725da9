"""Files of which something is left out or replaced: it is said, or refused."""

import json

import foreign_files
import numpy as np
import pytest
from foreign_files import arrays_of, edit, write_safetensors
from tiny_model import small, with_random_weights

import keras_vit
from keras_vit.commands import main
from keras_vit.weights import WeightsFileError, open_checkpoint

pytest.importorskip("safetensors")

EXACT = {"gelu": "exact"}
CLIP = {
    "gelu": "quick",
    "norm_epsilon": 1e-5,
    "embedding_norm": True,
    "embedding_bias": False,
    "classes": None,
}


def clip(folder, options=CLIP, **more):
    """CLIP's image tower in a file, and other arrays beside it."""
    model = with_random_weights(small(**options), 3)
    keras_vit.save_checkpoint(model, folder, "hugging_face")
    with open_checkpoint(folder) as checkpoint:
        stored = checkpoint.file.arrays
        arrays = {name: np.array(each.read()) for name, each in stored.items()}
    write_safetensors(folder / "model.safetensors", {**arrays, **more})
    return model


def test_of_two_towers_the_image_tower_is_taken_and_said(tmp_path, caplog):
    text = {"text_model.final_layer_norm.weight": np.ones(3, "float32")}
    source = clip(tmp_path, **text)
    inner = json.loads((tmp_path / "config.json").read_text())
    both = {"model_type": "clip", "architectures": ["CLIPVisionModel"]}
    document = {**both, "vision_config": inner, "text_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    model = keras_vit.open_model(tmp_path)
    foreign_files.check_same_weights(model, source)
    assert "a text tower beside it, which is left out" in caplog.text


def test_the_command_says_why_a_library_has_no_place_for_a_model(tmp_path, capsys):
    clip(tmp_path, {**CLIP, "projection": 20})
    assert main(["convert", str(tmp_path), str(tmp_path / "x"), "--to", "timm"]) == 1
    [line] = capsys.readouterr().err.strip().splitlines()[-1:]
    assert "such as a timm ViT" in line
    assert "; there is no place for projection/kernel" in line


@pytest.mark.parametrize("kind", ["clip_text_model", "detr", "sam", "swin"])
def test_another_model_is_refused_by_its_name(kind, tmp_path):
    clip(tmp_path)
    edit(tmp_path / "config.json", model_type=kind)
    with pytest.raises(WeightsFileError, match=f"names {kind!r} of Hugging Face"):
        keras_vit.open_model(tmp_path)


@pytest.mark.parametrize(
    "kind", ["BeitForSemanticSegmentation", "ViTForObjectDetection"]
)
def test_a_model_with_other_layers_around_is_refused_by_its_class(
    kind, tiny_vit, tmp_path
):
    foreign_files.hugging_face(tiny_vit(classes=None), tmp_path)
    edit(tmp_path / "config.json", architectures=[kind])
    with pytest.raises(WeightsFileError, match=f"names {kind!r} of Hugging Face"):
        keras_vit.open_model(tmp_path)


def test_a_text_model_with_the_config_of_both_is_refused(tmp_path):
    clip(tmp_path)
    edit(tmp_path / "config.json", model_type="clip")
    arrays = {"text_model.final_layer_norm.weight": np.ones(3, "float32")}
    write_safetensors(tmp_path / "model.safetensors", arrays)
    with pytest.raises(WeightsFileError, match=r"'clip'.*with text_model.final"):
        keras_vit.open_model(tmp_path)


def test_an_architecture_of_timm_that_is_none_of_ours_is_refused(tiny_vit, tmp_path):
    name = "swin_tiny_patch4_window7_224"
    path = foreign_files.timm(tiny_vit(**EXACT), tmp_path, architecture=name)
    with pytest.raises(WeightsFileError, match=f"names {name!r} of timm"):
        keras_vit.open_model(path)


def test_a_config_without_arrays_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(WeightsFileError, match=r"a folder without any of model\.safe"):
        keras_vit.open_model(tmp_path)


def test_of_two_checkpoints_in_a_folder_the_other_is_named(tiny_vit, tmp_path, caplog):
    foreign_files.timm(tiny_vit(**EXACT), tmp_path)
    tiny_vit().save_weights(tmp_path / "model.weights.h5")
    keras_vit.open_model(tmp_path)
    words = "read from model.safetensors, not model.weights.h5"
    assert words in caplog.text


@pytest.mark.parametrize("place", ["pretrained_cfg", None])
@pytest.mark.parametrize("numbered", [True, False])
def test_timms_label_names_are_read_wherever_it_writes_them(
    place, numbered, tiny_vit, tmp_path, caplog
):
    path = foreign_files.timm(tiny_vit(**EXACT), tmp_path)
    names = list("abcdefg")
    labels = {str(i): name for i, name in enumerate(names)} if numbered else names
    change = {"label_names": labels}
    edit(tmp_path / "config.json", **({place: change} if place else change))
    assert keras_vit.open_model(path).class_names == names
    others = keras_vit.open_model(path, class_names=list("ABCDEFG"))
    assert others.class_names == list("ABCDEFG")
    assert "`class_names` replace the file's, a, ..." in caplog.text


def test_rows_that_no_patch_covers_are_named(tiny_vit, tmp_path, caplog):
    """As of SigLIP so400m/14 at 384 pixels, which are 27 patches of 14."""
    source = tiny_vit(**EXACT)
    given = {"model_args": {"img_size": [23, 15]}}
    model = keras_vit.open_model(foreign_files.timm(source, tmp_path, **given))
    assert model.image_size == (22, 14)
    assert "images of (23, 15); the model reads (22, 14)" in caplog.text
    before = arrays_of(source)["position_embedding/embedding"]
    np.testing.assert_array_equal(
        arrays_of(model)["position_embedding/embedding"], before
    )


def test_patches_are_resampled_as_the_caller_asks(tiny_vit, tmp_path, caplog):
    path = foreign_files.timm(tiny_vit(**EXACT), tmp_path)
    for method, of_patches in (("google", "bilinear"), ("timm", "timm")):
        keras_vit.open_model(path, patch_size=1, image_size=(11, 7), resample=method)
        assert f"pseudo-inverse resize, method '{of_patches}'" in caplog.text
