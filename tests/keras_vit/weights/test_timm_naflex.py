"""timm's NaFlexVit: its grid, its arguments, and what only it can hold."""

import json

import numpy as np
import pytest
from foreign_files import arrays_of, edit, write_safetensors
from tiny_model import small

import keras_vit
from keras_vit.weights import CheckpointError, WeightsFileError, open_checkpoint
from keras_vit.weights.families.registry import FAMILIES
from keras_vit.weights.saving import WRITERS, save_checkpoint

pytest.importorskip("safetensors")

# Rotary positions, registers and attention pooling of the patches: no other class of
# timm has all three.
OPTIONS = {
    "gelu": "exact",
    "width": 24,
    "heads": 3,
    "image_size": (12, 20),
    "patch_size": 4,
    "class_token": False,
    "register_tokens": 2,
    "prefix_positions": False,
    "pooling": "map",
    "rotary": "grid",
    "rotary_pairing": "neighbors",
    "rotary_temperature": 50.0,
}


@pytest.fixture
def model():
    return small(**OPTIONS)


@pytest.fixture
def folder(model, tmp_path):
    save_checkpoint(model, tmp_path, "timm")
    return tmp_path


def arguments_in(folder):
    return json.loads((folder / "config.json").read_text())["model_args"]


def test_its_table_and_patches_lie_as_timm_reads_them(model, folder):
    """A grid of positions; pixels of a patch row by row, channels last."""
    ours = arrays_of(model)
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.family == "timm_naflex"
        stored = {name: a.read() for name, a in checkpoint.file.arrays.items()}
    positions = ours["position_embedding/embedding"]
    np.testing.assert_array_equal(
        stored["embeds.pos_embed"], positions.reshape(1, 3, 5, 24)
    )
    kernel = ours["embedding/kernel"]
    assert stored["embeds.proj.weight"][7, (2 * 4 + 1) * 3 + 2] == kernel[2, 1, 2, 7]
    assert arguments_in(folder)["pos_embed_grid_size"] == [3, 5]


def test_another_grid_than_that_of_the_table_is_refused(folder):
    edit(
        folder / "config.json",
        model_args={**arguments_in(folder), "pos_embed_grid_size": [5, 3]},
    )
    match = (
        r"pos_embed_grid_size=\(5, 3\), where `embeds.pos_embed` has the shape \(1, 3"
    )
    with pytest.raises(WeightsFileError, match=match):
        keras_vit.open_model(folder)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("pos_embed", "factorized"),
        ("attn_gated", True),
        ("attn_only_layer_scale", True),
        ("embed_proj_type", "conv"),
        ("patchify_channels_last", False),
        ("rope_type", "mrope"),
        ("num_kv_heads", 1),
        ("input_norm_layer", "layernorm"),
    ],
)
def test_what_no_model_here_computes_is_refused_by_its_argument(
    argument, value, folder
):
    edit(folder / "config.json", model_args={**arguments_in(folder), argument: value})
    with pytest.raises(WeightsFileError, match=f"`model_args.{argument}`"):
        keras_vit.open_model(folder)


@pytest.mark.parametrize(
    ("argument", "value", "option"),
    [
        ("attn_type", "eva", "key_bias"),
        ("class_token", True, "class_token"),
        ("reg_tokens", 1, "register_tokens"),
        ("init_values", 0.1, "layer_scale"),
        ("qk_norm", True, "qk_norm"),
        ("final_norm", False, "final_norm"),
        ("rope_type", "mixed", "rotary"),
        ("pos_embed", "none", "position_embedding"),
    ],
)
def test_an_argument_that_contradicts_the_arrays_is_refused(
    argument, value, option, folder
):
    edit(folder / "config.json", model_args={**arguments_in(folder), argument: value})
    match = rf"`{option}` must be the same.*`model_args.\w+` states {option}="
    with pytest.raises(WeightsFileError, match=match):
        keras_vit.open_model(folder)


def test_the_report_names_the_resample_that_timm_has(folder, caplog):
    given = {**arguments_in(folder), "pos_embed_ar_preserving": True}
    edit(
        folder / "config.json",
        model_args={**given, "pos_embed_align_corners": True},
    )
    keras_vit.open_model(folder)
    assert "no `resample` does" in caplog.text
    given |= {"pos_embed_align_corners": True, "pos_embed_antialias": False}
    edit(folder / "config.json", model_args=given)
    keras_vit.open_model(folder, image_size=16, resample="google")
    assert "squares alone, timm resamples as resample='google' does" in caplog.text


def test_arrays_without_a_config_need_an_architecture_of_their_size(folder):
    (folder / "config.json").unlink()
    with pytest.raises(WeightsFileError, match=r"must have its config.json.*rotary"):
        keras_vit.open_model(folder, heads=3)


@pytest.mark.parametrize("name", ["embeds.pos_embed", "embeds.proj.weight"])
def test_an_array_of_another_shape_is_one_line(name, folder):
    with open_checkpoint(folder) as checkpoint:
        arrays = {k: np.array(a.read()) for k, a in checkpoint.file.arrays.items()}
    arrays[name] = arrays[name].reshape(-1)
    write_safetensors(folder / "model.safetensors", arrays)
    with pytest.raises(WeightsFileError, match=f"`{name}` must have the shape"):
        keras_vit.open_model(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"channels": 4}, "channels must be 3"),
        ({"class_token": True}, "no class token beside register tokens"),
        ({"norm_epsilon": 1e-5}, "norm_epsilon must be 1e-06"),
    ],
)
def test_what_it_cannot_hold_is_not_written(changes, reason, tmp_path, monkeypatch):
    monkeypatch.setitem(WRITERS, ("timm", "vit"), [FAMILIES["timm_naflex"]])
    with pytest.raises(CheckpointError, match=reason):
        save_checkpoint(small(**{**OPTIONS, **changes}), tmp_path / "x", "timm")
