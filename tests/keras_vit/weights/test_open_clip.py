"""OpenCLIP's image towers."""

import json

import numpy as np
import pytest
from foreign_files import (
    arrays_of,
    check_same_options,
    check_same_weights,
    edit,
    needs,
    write_safetensors,
)

import keras_vit
from benchmarks import narrow_copies, narrow_open_clip
from keras_vit.weights import WeightsFileError
from keras_vit.weights.checkpoint import open_checkpoint

TOWER = {
    "embedding_bias": False,
    "embedding_norm": True,
    "norm_epsilon": 1e-5,
    "gelu": "exact",
    "classes": None,
    "projection": 9,
}


def tower(model, last_norm="encoder_norm"):
    """The arrays of an OpenCLIP, as it names them, with some of its text tower."""
    w = arrays_of(model)
    arrays = {
        "visual.class_embedding": w["class_token/token"][0, 0],
        "visual.positional_embedding": w["position_embedding/embedding"][0],
        "visual.conv1.weight": w["embedding/kernel"].transpose(3, 2, 0, 1),
        "visual.proj": w["projection/kernel"],
        "token_embedding.weight": np.zeros((11, 15), "float32"),
        "transformer.resblocks.0.attn.in_proj_bias": np.zeros(45, "float32"),
        "logit_scale": np.zeros((), "float32"),
    }
    norms = {"visual.ln_post": last_norm}
    if model.embedding_norm:
        norms["visual.ln_pre"] = "embedding_norm"
    for i in range(model.depth):
        ours, theirs = f"encoder_block_{i}", f"visual.transformer.resblocks.{i}"
        norms |= {f"{theirs}.ln_{n}": f"{ours}/norm{n}" for n in (1, 2)}
        parts = [f"{ours}/attention/{name}" for name in ("query", "key", "value")]
        arrays[f"{theirs}.attn.in_proj_weight"] = np.concatenate(
            [w[f"{part}/kernel"].T for part in parts]
        )
        arrays[f"{theirs}.attn.in_proj_bias"] = np.concatenate(
            [w[f"{part}/bias"] for part in parts]
        )
        for layer, name in (
            ("attn.out_proj", "attention/out"),
            ("mlp.c_fc", "mlp/Dense_0"),
            ("mlp.c_proj", "mlp/Dense_1"),
        ):
            arrays[f"{theirs}.{layer}.weight"] = w[f"{ours}/{name}/kernel"].T
            arrays[f"{theirs}.{layer}.bias"] = w[f"{ours}/{name}/bias"]
    for theirs, ours in norms.items():
        arrays[f"{theirs}.weight"] = w[f"{ours}/gamma"]
        arrays[f"{theirs}.bias"] = w[f"{ours}/beta"]
    return arrays


def write(model, folder, last_norm="encoder_norm", **vision):
    """What OpenCLIP pushes to the Hub."""
    config = {
        "model_cfg": {
            "embed_dim": model.projection,
            "vision_cfg": {
                "image_size": list(model.image_size),
                "layers": model.depth,
                "width": model.width,
                "head_width": model.width // model.heads,
                "mlp_ratio": (model.mlp_dim + 0.5) / model.width,
                "patch_size": model.patch_size,
                **vision,
            },
            "text_cfg": {"width": 15},
        },
        "preprocess_cfg": {"mean": [0.5, 0.4, 0.2], "std": [0.2] * 3},
    }
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    path = folder / "open_clip_model.safetensors"
    return write_safetensors(path, tower(model, last_norm))


def test_the_image_tower_is_read_without_the_text_tower(tiny_vit, tmp_path):
    source, model = tiny_vit(**TOWER), tiny_vit(seed=12, **TOWER)
    report = keras_vit.load_checkpoint(model, write(source, tmp_path))
    check_same_weights(model, source)
    assert report.unused == []
    assert "a text tower beside it, which is left out" in report.notes
    assert report.outside == [
        "logit_scale",
        "token_embedding.weight",
        "transformer.resblocks.0.attn.in_proj_bias",
    ]
    opened = keras_vit.open_model(tmp_path)
    check_same_options(opened, source)
    layer = opened.preprocessing
    assert (layer.mean, layer.std) == ((127.5, 102.0, 51.0), 51.0)
    assert (layer.interpolation, layer.resize) == ("bicubic", "small")


def test_the_last_norm_may_follow_the_pooling(tiny_vit, tmp_path):
    options = {**TOWER, "embedding_norm": False, "pooling": "avg", "fc_norm": True}
    source = tiny_vit(**options)
    vision = {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}
    opened = keras_vit.open_model(write(source, tmp_path, "fc_norm", **vision))
    check_same_options(opened, source)
    check_same_weights(opened, source)


def test_its_file_has_its_own_config_beside_hugging_faces(tiny_vit, tmp_path):
    source = tiny_vit(**{**TOWER, "gelu": "quick"})
    path = write(source, tmp_path)
    edit(tmp_path / "open_clip_config.json", model_cfg={"quick_gelu": True})
    other = {"model_type": "clip", "vision_config": {"hidden_act": "silu"}}
    (tmp_path / "config.json").write_text(json.dumps(other))
    check_same_options(keras_vit.open_model(path), source)


def test_without_a_config_openclips_defaults_are_assumed(tiny_vit, tmp_path, caplog):
    path = write(tiny_vit(**TOWER), tmp_path)
    (tmp_path / "open_clip_config.json").unlink()
    model = keras_vit.VisionTransformer.from_preset(path, heads=5, grid=(11, 7))
    assert (model.gelu, model.norm_epsilon, model.pooling) == ("exact", 1e-5, "token")
    assert "assumed: gelu='exact', pooling='token'" in caplog.text


@pytest.mark.parametrize(
    ("vision", "match"),
    [
        ({"layers": [3, 4, 6, 3]}, "names 'ModifiedResNet' of OpenCLIP"),
        ({"timm_model_name": "vitamin_base_224"}, "names 'vitamin_base_224 of timm'"),
        ({"attentional_pool": True}, "`vision_cfg.attentional_pool` must be False"),
        ({"scale_heads": True}, r"`vision_cfg.scale_heads` must be False"),
        ({"pool_type": "none"}, "`pooling` must be one of"),
        ({"no_ln_pre": True}, "`vision_cfg.no_ln_pre` states embedding_norm=False"),
        ({"head_width": 0}, "`vision_cfg.head_width` must be a positive integer"),
        ({"width": 16}, "states width=16, .* width=15"),
    ],
)
def test_other_towers_are_refused(vision, match, tiny_vit, tmp_path):
    path = write(tiny_vit(**TOWER), tmp_path, **vision)
    with pytest.raises(ValueError, match=match):
        keras_vit.open_model(path)


def timm_tower(folder, **vision):
    """The file of a tower of timm, and its family."""
    vision = {"timm_pool": "token", **vision}
    vision["timm_model_name"] = "vit_tiny_patch16_224"
    config = {"model_cfg": {"embed_dim": 9, "vision_cfg": vision}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    path = folder / "open_clip_model.safetensors"
    name = "visual.trunk.patch_embed.proj.weight"
    write_safetensors(path, {name: np.zeros((192, 3, 16, 16), "float32")})
    checkpoint = open_checkpoint(path)
    return checkpoint.file, checkpoint.described


@pytest.mark.parametrize(("projection", "classes"), [(None, 9), ("none", None)])
def test_timms_code_describes_a_tower_of_timm(projection, classes, tmp_path):
    file, family = timm_tower(tmp_path, timm_proj=projection, width=768)
    stated = {name: each.value for name, each in family.stated(file).items()}
    assert [stated[name] for name in ("width", "depth", "heads")] == [192, 12, 3]
    assert stated["classes"] == classes
    assert family.pooling(file) == ("token", False)


@pytest.mark.parametrize(("pool", "after"), [("token", False), ("avg", True)])
def test_openclip_chooses_the_pooling_of_a_tower_of_timm(pool, after, tmp_path):
    file, family = timm_tower(tmp_path, timm_pool=pool, timm_proj="none")
    assert family.pooling(file) == (pool, False)
    assert family.stated(file)["fc_norm"].value == after


@pytest.mark.parametrize("vision", [{}, {"timm_proj": "mlp"}])
def test_layers_of_openclips_after_timms_are_refused(vision, tmp_path):
    file, family = timm_tower(tmp_path, **vision)
    with pytest.raises(
        WeightsFileError, match=r"`vision_cfg\.timm_proj` must be one of"
    ):
        family.stated(file)


@pytest.mark.parity
@needs("open_clip")
@pytest.mark.parametrize(
    "case", narrow_open_clip.OPEN_CLIP, ids=lambda case: case.title
)
def test_a_tower_computes_what_openclip_computes(case, tmp_path):
    result = narrow_open_clip.compare_open_clip(case, tmp_path)
    assert (result.refused == "") == case.opens, result.refused
    assert all(gap < narrow_copies.TOLERANCE for gap in result.difference.values())
