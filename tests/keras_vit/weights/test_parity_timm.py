"""Every architecture of timm's ViT modules: the same scores, or a refusal."""

import json

import numpy as np
import pytest

import keras_vit

timm = pytest.importorskip("timm")
torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

pytestmark = [pytest.mark.parity, pytest.mark.slow]

MODULES = ("vision_transformer", "deit", "vision_transformer_hybrid")
NAMES = [name for module in MODULES for name in timm.list_models(module=module)]
# What a config on the hub has; arguments of an architecture are in its code alone.
PUBLISHED = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")


def small(name):
    """A narrow copy of the architecture with random numbers everywhere."""
    with torch.device("meta"):
        heads = timm.create_model(name).blocks[0].attn.num_heads
    model = timm.create_model(name, embed_dim=8 * heads, depth=2, num_classes=7).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 25
            start = 0 if parameter.ndim > 1 else parameter
            parameter.copy_(start + noise * fan_in**-0.5)
    return model


def write(model, name, folder):
    published = {key: model.pretrained_cfg[key] for key in PUBLISHED}
    config = {
        "architecture": name,
        "num_classes": 7,
        "global_pool": model.global_pool,
        "pretrained_cfg": published,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.save_file(model.state_dict(), folder / "model.safetensors")
    return folder


def difference(model, ours):
    """The largest difference of logits, as a share of their size."""
    size, (height, width) = model.patch_embed.img_size, ours.image_size
    pixels = np.random.default_rng(3).normal(size=(1, *size, 3)).astype("float32")
    with torch.no_grad():
        theirs = model(torch.tensor(pixels.transpose(0, 3, 1, 2).copy())).numpy()
    # A convolution leaves out what is less than a patch at the border.
    logits = np.asarray(ours(pixels[:, :height, :width]))
    return np.abs(logits - theirs).max() / np.abs(theirs).max()


def test_every_architecture_gives_the_same_scores_or_is_refused(tmp_path):
    same, refused, wrong = [], [], {}
    for name in NAMES:
        try:
            model = small(name)
        except Exception:  # whatever an architecture of other blocks lacks
            continue
        heads = model.blocks[0].attn.num_heads
        folder = write(model, name, tmp_path / name)
        try:
            ours = keras_vit.VisionTransformer.from_preset(folder, heads=heads)
        except ValueError:
            refused.append(name)
            continue
        error = difference(model, ours)
        (same.append(name) if error < 1e-4 else wrong.update({name: error}))
    assert wrong == {}
    assert len(same) > 100
    assert "vit_base_patch16_224" in same
    assert "test_vit3" in refused
