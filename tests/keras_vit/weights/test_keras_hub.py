"""keras-hub's presets of other backbones than the ViT's."""

import contextlib
import json

import foreign_files
import foreign_weights as foreign
import h5py
import numpy as np
import pytest
from foreign_files import (
    arrays_of,
    check_same_options,
    check_same_weights,
    edit,
    needs,
    write_hdf5,
)
from tiny_model import numpy

import keras_vit
from benchmarks import narrow_copies, narrow_keras_hub
from keras_vit.weights import WeightsFileError
from keras_vit.weights.checkpoint import FAMILIES
from keras_vit.weights.reading import ArrayFile

CLIP = {
    "embedding_bias": False,
    "embedding_norm": True,
    "norm_epsilon": 1e-5,
    "gelu": "quick",
    "classes": None,
}


def clip_tower(model):
    """The arrays of a `CLIPVisionEncoder`, as it names them."""
    w = arrays_of(model)
    flat = foreign.google(w, model.heads)
    positions = w["position_embedding/embedding"][0]
    embedding = "layers/clip_vision_embedding"
    arrays = {
        f"{embedding}/patch_embedding/vars/0": w["embedding/kernel"],
        f"{embedding}/position_embedding/vars/0": positions,
        f"{embedding}/vars/0": w["class_token/token"][0, 0],
        f"{embedding}/vars/1": np.arange(len(positions))[None],
    }
    for number, ours in (("", "embedding_norm"), ("_1", "encoder_norm")):
        arrays[f"layers/layer_normalization{number}/vars/0"] = w[f"{ours}/gamma"]
        arrays[f"layers/layer_normalization{number}/vars/1"] = w[f"{ours}/beta"]
    modules = {
        "LayerNorm_0": "layer_norm_1",
        "LayerNorm_2": "layer_norm_2",
        "MlpBlock_3/Dense_0": "dense_1",
        "MlpBlock_3/Dense_1": "dense_2",
        **{
            f"MultiHeadDotProductAttention_1/{name}": f"attention/{theirs}_dense"
            for name, theirs in zip(
                ("query", "key", "value", "out"),
                ("query", "key", "value", "output"),
                strict=True,
            )
        },
    }
    for i in range(model.depth):
        block = f"layers/clip_encoder_layer{f'_{i}' if i else ''}"
        for module, name in modules.items():
            source = f"Transformer/encoderblock_{i}/{module}"
            first = "scale" if "LayerNorm" in module else "kernel"
            arrays[f"{block}/{name}/vars/0"] = flat[f"{source}/{first}"]
            arrays[f"{block}/{name}/vars/1"] = flat[f"{source}/bias"]
    return arrays


def clip(model, folder):
    """The preset of a `CLIPBackbone`."""
    arrays = {
        f"layers/clip_vision_encoder/{name}": array
        for name, array in clip_tower(model).items()
    }
    arrays["layers/dense/vars/0"] = arrays_of(model)["projection/kernel"]
    # Of the text tower, whose blocks have the same names.
    arrays["layers/dense_1/vars/0"] = np.zeros((15, 9), "float32")
    block = "layers/clip_text_encoder/layers/clip_encoder_layer"
    arrays[f"{block}/dense_1/vars/1"] = np.zeros(23, "float32")
    write_hdf5(folder / "model.weights.h5", arrays)
    vision = {
        "image_shape": [*model.image_size, 3],
        "patch_size": model.patch_size,
        "hidden_dim": model.width,
        "num_layers": model.depth,
        "num_heads": model.heads,
        "intermediate_dim": model.mlp_dim,
        "intermediate_activation": "quick_gelu",
    }
    document = {
        "registered_name": "keras_hub>CLIPBackbone",
        "class_name": "CLIPBackbone",
        "config": {
            "projection_dim": model.projection,
            "vision_encoder": {"class_name": "CLIPVisionEncoder", "config": vision},
        },
    }
    (folder / "config.json").write_text(json.dumps(document))
    return folder


def test_the_image_tower_of_clip_is_read_beside_its_text_tower(tiny_vit, tmp_path):
    source, model = (tiny_vit(seed=s, projection=9, **CLIP) for s in (11, 12))
    report = keras_vit.load_checkpoint(model, clip(source, tmp_path))
    check_same_weights(model, source)
    assert report.unused == []
    assert "a text tower beside it, which is left out" in report.notes
    assert [name.split("/")[1] for name in report.outside] == [
        *("clip_text_encoder", "clip_vision_encoder", "dense_1")
    ]
    opened = keras_vit.open_model(tmp_path)
    check_same_options(opened, source)
    assert opened.projection == 9


def test_a_tower_by_itself_has_no_projection(tiny_vit, tmp_path):
    source = tiny_vit(**CLIP)
    arrays = {**clip_tower(source), "optimizer/vars/0": np.int64(5)}
    path = write_hdf5(tmp_path / "tower.weights.h5", arrays)
    model = keras_vit.VisionTransformer.from_preset(path, grid=(11, 7))
    check_same_weights(model, source)


def test_a_projection_of_another_width_than_stated_is_refused(tiny_vit, tmp_path):
    path = clip(tiny_vit(projection=9, **CLIP), tmp_path)
    edit(tmp_path / "config.json", config={"projection_dim": 8})
    match = "`projection_dim` states projection=8, .* show projection=9, by "
    with pytest.raises(WeightsFileError, match=match):
        keras_vit.open_model(path)


def test_positions_in_another_order_are_refused(tiny_vit, tmp_path):
    """All 0 in a model of keras-hub that has never loaded weights."""
    path = clip(tiny_vit(projection=9, **CLIP), tmp_path)
    name = "layers/clip_vision_encoder/layers/clip_vision_embedding/vars/1"
    with h5py.File(path / "model.weights.h5", "r+") as file:
        file[name][:] = 0
    with pytest.raises(WeightsFileError, match=f"`{name}` must be the numbers from 0"):
        keras_vit.open_model(path)


def stated(family, folder, config):
    """Options that a backbone's arguments state."""
    (folder / "config.json").write_text(json.dumps({"config": config}))
    with ArrayFile(folder, "hdf5", {}, {}, contextlib.ExitStack()) as file:
        found = FAMILIES[f"keras_hub_{family}"].stated(file)
    return {name: each.value for name, each in found.items()}


@pytest.mark.parametrize(
    ("family", "config", "options"),
    [
        ("deit", {"use_mha_bias": False}, {"key_bias": False, "output_bias": False}),
        ("dinov2", {"intermediate_dim": 48}, {"swiglu": False, "mlp_dim": 48}),
        (
            "dinov2",
            {"intermediate_dim": 52, "use_swiglu_ffn": True},
            {
                "swiglu": True,
                "mlp_dim": 40,
            },  # 52 * 2 / 3, rounded up to a multiple of 8
        ),
        ("dinov3", {}, {"register_tokens": 4, "rotary_temperature": 100.0}),
        ("dinov3", {"hidden_activation": "silu"}, {"swiglu": False, "gelu": "silu"}),
        ("dinov3", {"use_key_bias": False}, {"query_bias": True, "key_bias": False}),
        ("clip", {"intermediate_activation": "gelu"}, {"gelu": "exact"}),
        ("siglip", {}, {"gelu": "tanh"}),
    ],
)
def test_arguments_of_a_backbone_state_our_options(family, config, options, tmp_path):
    found = stated(family, tmp_path, {"intermediate_dim": 40, **config})
    assert {name: found[name] for name in options} == options


@pytest.mark.parametrize(
    ("family", "config", "match"),
    [
        ("dinov2", {"use_mask_token": False}, "`use_mask_token` must be True"),
        ("dinov3", {"use_mask_token": False}, "`use_mask_token` must be True"),
        ("dinov3", {"use_gated_mlp": True}, "`use_gated_mlp` must be one of silu"),
        ("clip", {"intermediate_activation": "relu"}, "must be one of gelu, .*'relu'"),
        ("siglip", {"layer_norm_epsilon": 1e-5}, "must be 1e-06.*1e-05"),
        ("deit", {"depth_multiplier": 2}, "known here.*`depth_multiplier`"),
    ],
)
def test_what_no_model_here_computes_is_refused(family, config, match, tmp_path):
    with pytest.raises(WeightsFileError, match=match):
        stated(family, tmp_path, {"intermediate_dim": 40, **config})


def test_a_dinos_variables_have_no_names_without_its_config(tmp_path):
    """A mask token and one register have the same shape."""
    arrays = {
        "layers/dinov3_encoder/layers/dinov3_layer/layer_scale1/vars/0": np.ones(15),
        "layers/dinov3_encoder/layers/dinov3_layer/norm1/vars/0": np.ones(15),
        "layers/dinov3_embedding/patch_embeddings/projection/vars/0": np.ones(
            (2, 2, 3, 15)
        ),
        "layers/dinov3_encoder/layers/dinov3_layer/mlp/up_proj/vars/0": np.ones(
            (15, 23)
        ),
        "layers/dinov3_encoder/layers/dinov3_layer/attention/query_dense/vars/0": (
            np.ones((15, 15))
        ),
    }
    path = write_hdf5(tmp_path / "model.weights.h5", arrays)
    with pytest.raises(WeightsFileError, match=r"DINOv3 must have its config\.json"):
        keras_vit.open_model(path)


def test_the_activation_of_a_classifier_is_the_tasks(tiny_vit, tmp_path):
    source = tiny_vit(gelu="exact")
    path = foreign_files.keras_hub(source, tmp_path)
    edit(tmp_path / "task.json", config={"activation": "softmax"})
    model = keras_vit.open_model(path)
    pixels = np.random.default_rng(3).normal(size=(2, 22, 14, 3)).astype("float32")
    logits = numpy(source(pixels)).astype("float64")
    powers = np.exp(logits)
    expected = powers / powers.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(numpy(model(pixels)), expected, rtol=0, atol=1e-6)
    edit(tmp_path / "task.json", config={"activation": "linear"})
    assert keras_vit.open_model(path).classifier_activation is None


@pytest.mark.parity
@needs("keras_hub")
@pytest.mark.parametrize(
    "case", narrow_keras_hub.KERAS_HUB, ids=lambda case: case.title
)
def test_a_preset_computes_what_keras_hub_computes(case, tmp_path):
    result = narrow_keras_hub.compare_keras_hub(case, tmp_path)
    assert result.difference["float32"] < narrow_copies.TOLERANCE, result.refused
    # CLIP's projection has a place beside a text tower only.
    assert ("projection must be None" in result.kept) == (case.title == "CLIP")
    assert (result.back is None) == bool(result.kept)
    assert (result.back or 0.0) < narrow_copies.TOLERANCE
