"""Attention that timm computes with the same weights, read by PyTorch's hooks.

Needs `pip install -e ".[parity]"` (`make parity`); skipped without.
"""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit import analysis

timm = pytest.importorskip("timm")
torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.parity

SIZE, PATCH, GRID = (35, 21), 7, (5, 3)
SIZES = {
    "img_size": SIZE,
    "patch_size": PATCH,
    "embed_dim": 40,
    "depth": 3,
    "num_heads": 5,
}
FORMS = [
    {},
    {"global_pool": "avg", "class_token": False},
    {"reg_tokens": 3, "no_embed_class": True},
    {"global_pool": "map", "class_token": False},
]


def twin(**kwargs):
    """A small model of timm with random numbers everywhere."""
    model = timm.models.VisionTransformer(**SIZES, num_classes=11, **kwargs).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model


def hooked_weights(model, pixels):
    """float64 attention weights [B, A, Q, N]: of each block, and of the pooling."""
    modules = [block.attn for block in model.blocks]
    if model.attn_pool is not None:
        modules.append(model.attn_pool)
    found = []
    for module in modules:
        module.fused_attn = False
    for module in modules[: len(model.blocks)]:
        module.attn_drop.register_forward_pre_hook(
            lambda _, inputs: found.append(inputs[0].double().numpy())
        )
    if model.attn_pool is not None:
        # The latent pooling has no dropout of its weights to hook: q and k are.
        parts = {}
        model.attn_pool.q.register_forward_hook(
            lambda *_args: parts.update(q=_args[2].double().numpy())
        )
        model.attn_pool.kv.register_forward_hook(
            lambda *_args: parts.update(kv=_args[2].double().numpy())
        )
    with torch.no_grad():
        model(torch.tensor(pixels.transpose(0, 3, 1, 2).copy()))
    if model.attn_pool is not None:
        found.append(pooling_weights(parts, heads=5))
    return found


def pooling_weights(parts, heads):
    """Softmax over the keys of the scaled products."""
    (batch, tokens, _), width = parts["kv"].shape, parts["q"].shape[-1]
    query = np.broadcast_to(parts["q"], (batch, 1, width))
    query = query.reshape(batch, 1, heads, -1).transpose(0, 2, 1, 3)
    key = parts["kv"].reshape(batch, tokens, 2, heads, -1)[:, :, 0]
    scores = query @ key.transpose(0, 2, 3, 1) * query.shape[-1] ** -0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.fixture(params=FORMS, ids=lambda form: str(form or "token"))
def pair(request, tmp_path):
    """Our model, timm's weights for three images, and the images."""
    model = twin(**request.param)
    config = {
        "architecture": "vit_base_patch16_224",
        "num_classes": 11,
        "global_pool": model.global_pool,
        "model_args": {**SIZES, **request.param},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
    ours = keras_vit.VisionTransformer.from_preset(tmp_path, heads=5, grid=GRID)
    pixels = np.random.default_rng(0).normal(size=(3, *SIZE, 3)).astype("float32")
    return ours, hooked_weights(model, pixels), pixels


def test_attention_distance_of_timms_weights(pair):
    ours, theirs, pixels = pair
    y, x = np.divmod(np.arange(15), 3)
    distances = PATCH * np.hypot(y[:, None] - y, x[:, None] - x)
    expected = []
    for weights in theirs[:3]:
        patches = weights[:, :, -15:, -15:]
        mean = (patches * distances).sum(-1) / patches.sum(-1)
        expected.append(mean.mean(axis=(0, 2)))
    distance = analysis.attention_distance(ours, pixels)
    np.testing.assert_allclose(distance, expected, rtol=1e-4)


def test_class_attention_and_rollout_of_timms_weights(pair):
    ours, theirs, pixels = pair
    last = theirs[-1]
    output = last.mean(axis=2) if ours.pooling == "avg" else last[:, :, 0]
    attention = analysis.class_attention(ours, pixels)
    expected = output[:, :, -15:].reshape(3, 5, *GRID)
    np.testing.assert_allclose(attention, expected, atol=1e-5)

    tokens = theirs[0].shape[-1]
    product = np.eye(tokens)
    for weights in theirs[:3]:
        product = 0.5 * (weights.mean(axis=1) + np.eye(tokens)) @ product
    rows = {"token": np.eye(1, tokens), "avg": np.full((1, tokens), 1 / tokens)}
    row = rows[ours.pooling] if ours.pooling in rows else last.mean(axis=1)
    shares = (row @ product)[:, 0, -15:]
    shares = (shares / shares.sum(axis=1, keepdims=True)).reshape(3, *GRID)
    np.testing.assert_allclose(
        analysis.attention_rollout(ours, pixels), shares, atol=1e-5
    )
