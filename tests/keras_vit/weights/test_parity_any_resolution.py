"""Models of any resolution: timm's NaFlexVit and transformers' SigLIP 2 give the same.

Needs `pip install -e ".[parity]"` (`make parity`); skipped without.
"""

import functools

import numpy as np
import pytest
from foreign_files import needs

import keras_vit
from benchmarks import narrow_timm, narrow_transformers
from benchmarks.narrow_copies import Opened, difference, randomize, write_back

pytestmark = pytest.mark.parity

SMALL = {
    "num_classes": 7,
    "embed_dim": 48,
    "depth": 2,
    "num_heads": 3,
    "patch_size": 4,
    "pos_embed_grid_size": (5, 3),
}
SIDE = SMALL["patch_size"]


def made(folder, name="naflexvit_base_patch16_siglip", **arguments):
    """A model of timm's, and its folder."""
    timm = pytest.importorskip("timm")
    model = randomize(timm.create_model(name, **{**SMALL, **arguments}))
    narrow_timm.write_timm(model, folder, "float32")
    return model


def their_outputs(model, pixels):
    import torch

    with torch.no_grad():
        return model(torch.tensor(pixels.transpose(0, 3, 1, 2))).numpy()


def outputs_of_patches(model, pixels):
    """Of the dictionary that timm's loader makes of images of any resolution."""
    import torch

    images, height, width = pixels.shape[:3]
    rows, columns = height // SIDE, width // SIDE
    patches = pixels.reshape(images, rows, SIDE, columns, SIDE, 3)
    flat = patches.transpose(0, 1, 3, 2, 4, 5).reshape(images, rows * columns, -1)
    grid = np.stack(np.meshgrid(range(rows), range(columns), indexing="ij"), -1)
    coordinates = np.broadcast_to(grid.reshape(-1, 2), (images, rows * columns, 2))
    batch = {
        "patches": torch.tensor(flat),
        "patch_coord": torch.tensor(coordinates.copy()),
        "patch_valid": torch.ones(flat.shape[:2], dtype=torch.bool),
    }
    with torch.no_grad():
        return model(batch).numpy()


CASES = {
    "registers, mean": {"reg_tokens": 2, "global_pool": "avg", "init_values": 0.1},
    "class token": {"class_token": True, "global_pool": "token", "pre_norm": True},
    "all tokens pooled": {"class_token": True, "pool_include_prefix": True},
    "patches pooled": {"reg_tokens": 2, "attn_pool_num_heads": 4},
    "norms": {
        "qk_norm": True,
        "scale_mlp_norm": True,
        "scale_attn_inner_norm": True,
        "embed_norm_layer": "layernorm",
    },
    "RMSNorm": {
        "norm_layer": "rmsnorm",
        "qkv_bias": False,
        "proj_bias": False,
        "global_pool": "avg",
    },
    "EVA's attention": {"attn_type": "eva", "init_values": 0.1, "proj_bias": False},
    "SwiGLU": {"swiglu_mlp": True, "act_layer": "gelu"},
    "SwiGLU, norm": {
        "swiglu_mlp": True,
        "scale_mlp_norm": True,
        "swiglu_align_to": 64,
        "attn_type": "rope",
    },
    "axial rotation": {
        "rope_type": "axial",
        "rope_grid_offset": 1.0,
        "rope_ref_feat_shape": (4, 4),
        "reg_tokens": 2,
    },
    "mixed rotation": {
        "rope_type": "mixed",
        "rope_temperature": 10.0,
        "pos_embed": "none",
        "reg_tokens": 2,
    },
    "DINOv3's rotation": {
        "rope_type": "dinov3",
        "rope_temperature": 100.0,
        "rope_rotate_half": True,
        "class_token": True,
        "reg_tokens": 2,
        "global_pool": "token",
        "attn_type": "eva",
    },
    "no norm at the end": {"final_norm": False, "global_pool": "avg"},
}
# timm has no JSON for a norm of the patches, or for RMSNorm but AIMv2's.
NOT_WRITTEN = ("norms", "RMSNorm")


@needs("timm")
@pytest.mark.parametrize("case", CASES)
def test_its_arguments_mean_the_same(case, tmp_path):
    import timm

    theirs = made(tmp_path, **CASES[case])
    size = (5 * SIDE, 3 * SIDE)
    table = CASES[case].get("pos_embed") != "none"
    ours = keras_vit.open_model(tmp_path, **({} if table else {"image_size": size}))
    for outputs in (their_outputs, outputs_of_patches):
        assert difference(ours, functools.partial(outputs, theirs), size) < 2e-6
    result = Opened("timm", case)
    if back := write_back(result, ours, tmp_path, "timm"):
        twin = timm.create_model(f"local-dir:{back}", pretrained=True).eval()
        found = difference(ours, functools.partial(their_outputs, twin), size)
        assert found < 2e-6
    assert bool(result.kept) == (case in NOT_WRITTEN), result.kept


RESAMPLES = {
    "timm": {"pos_embed_interp_mode": "bicubic"},
    "bicubic": {"pos_embed_interp_mode": "bicubic", "pos_embed_antialias": False},
    "bilinear": {"pos_embed_antialias": False},
    "antialiased": {},
    "google": {"pos_embed_antialias": False, "pos_embed_align_corners": True},
}


@needs("timm")
@pytest.mark.parametrize("resample", RESAMPLES)
def test_the_named_resample_is_timms(resample, tmp_path, caplog):
    theirs = made(tmp_path, **RESAMPLES[resample])
    size = (3 * SIDE, 7 * SIDE)
    ours = keras_vit.open_model(tmp_path, image_size=size, resample=resample)
    assert f"timm resamples as resample={resample!r} does" in caplog.text
    assert difference(ours, functools.partial(their_outputs, theirs), size) < 5e-6


@needs("timm")
def test_radio_is_resampled_for_squares(tmp_path, caplog):
    theirs = made(tmp_path, "naflexvit_base_patch16_radio_v3")
    ours = keras_vit.open_model(tmp_path, image_size=4 * SIDE, resample="google")
    assert "squares alone, timm resamples as resample='google' does" in caplog.text
    outputs = functools.partial(their_outputs, theirs)
    assert difference(ours, outputs, (4 * SIDE, 4 * SIDE)) < 5e-6


@needs("transformers")
def test_the_named_resample_is_that_of_transformers(tmp_path, caplog):
    import torch
    import transformers

    config = transformers.Siglip2VisionConfig(**narrow_transformers.SIGLIP2)
    theirs = randomize(transformers.Siglip2VisionModel(config))
    theirs.save_pretrained(tmp_path)

    def outputs(pixels):
        images = torch.tensor(pixels.transpose(0, 3, 1, 2))
        flat, arguments = narrow_transformers.flat_patches(images, side=8)
        with torch.no_grad():
            return theirs(flat, **arguments).pooler_output.numpy()

    ours = keras_vit.open_model(
        tmp_path, image_size=(16, 56), resample="antialiased", pooling="map"
    )
    assert "transformers resamples as resample='antialiased' does" in caplog.text
    assert difference(ours, outputs, (16, 56)) < 5e-6
