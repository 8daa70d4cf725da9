"""Resampling gives what PyTorch and timm give.

Needs `pip install -e ".[parity]"` (`make parity`); skipped without.
"""

import importlib.util
import math

import numpy as np
import pytest

from keras_vit.weights import resampling

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(
        importlib.util.find_spec("timm") is None, reason="timm is not installed"
    ),
]


@pytest.fixture
def embedding(grids, prefix_tokens):
    length = prefix_tokens + math.prod(grids[0])
    return np.random.default_rng(3).normal(size=(1, length, 6)).astype("float32")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("timm", {"mode": "bicubic", "antialias": True}),
        ("bicubic", {"mode": "bicubic"}),
        ("bilinear", {"mode": "bilinear"}),
        ("antialiased", {"mode": "bilinear", "antialias": True}),
    ],
)
def test_positions_are_those_of_torch(embedding, grids, prefix_tokens, method, options):
    import torch

    old, new = grids
    image = embedding[:, prefix_tokens:].reshape(1, *old, 6).transpose(0, 3, 1, 2)
    expected = torch.nn.functional.interpolate(
        torch.tensor(image.astype("float64")), new, align_corners=False, **options
    )
    found = resampling.resample_positions(embedding, old, new, prefix_tokens, method)
    found = found[:, prefix_tokens:].reshape(1, *new, 6).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-6)


def test_positions_are_those_of_timm(embedding, grids, prefix_tokens):
    import torch
    from timm.layers import resample_abs_pos_embed

    old, new = grids
    expected = resample_abs_pos_embed(
        torch.tensor(embedding),
        new_size=list(new),
        old_size=list(old),
        num_prefix_tokens=prefix_tokens,
    )
    found = resampling.resample_positions(embedding, old, new, prefix_tokens, "timm")
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)


SIZES = [
    ((16, 16), (14, 14)),
    ((16, 16), (32, 32)),
    ((5, 3), (11, 4)),
    ((1, 4), (2, 2)),
]


def torch_kernel(kernel):
    import torch

    return torch.tensor(np.ascontiguousarray(kernel.transpose(3, 2, 0, 1)))


@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("method", ["bilinear", "timm"])
def test_patches_are_those_of_timm(old, new, method):
    from timm.layers import resample_patch_embed

    kernel = np.random.default_rng(5).normal(size=(*old, 3, 7)).astype("float32")
    expected = resample_patch_embed(
        torch_kernel(kernel),
        list(new),
        interpolation={"timm": "bicubic"}.get(method, method),
        antialias=True,
    )
    expected = expected.numpy().transpose(2, 3, 1, 0)
    found = resampling.resample_patches(kernel, new, method)
    # timm inverts in float32.
    atol = 1e-5 * abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
def test_channels_are_those_of_timm(channels):
    from timm.models import adapt_input_conv

    kernel = np.random.default_rng(5).normal(size=(5, 2, 3, 7)).astype("float32")
    expected = adapt_input_conv(channels, torch_kernel(kernel))
    found = resampling.adapt_channels(kernel, channels)
    np.testing.assert_allclose(
        found, expected.numpy().transpose(2, 3, 1, 0), rtol=0, atol=1e-6
    )
