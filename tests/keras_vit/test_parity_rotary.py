"""Rotary positions are timm's."""

import numpy as np
import pytest
from foreign_files import needs
from tiny_model import numpy

from keras_vit import layers
from keras_vit.layers.rotary import rotate

pytestmark = [pytest.mark.parity, needs("timm")]

GRID, HEADS, WIDTH, PREFIX = (3, 5), 2, 24, 2
TOKENS = np.zeros((1, PREFIX + 15, WIDTH * HEADS), "float32")


def scores(query, key):
    """Of each query for each key, [B, A, N, N]."""
    return np.einsum("bqak,bnak->baqn", query, key)


def ours(query, key, pairing="halves", **options):
    layer = layers.RotaryPositions(GRID, HEADS, 3, **options)
    [table] = numpy(layer(TOKENS))
    return scores(*(numpy(rotate(x, table, pairing)) for x in (query, key)))


def theirs(query, key, embedding, half):
    import torch
    from timm.layers import apply_rot_embed_cat

    def rotated(x):
        x = torch.tensor(x.transpose(0, 2, 1, 3))  # [B, A, N, K]
        patches = apply_rot_embed_cat(x[:, :, PREFIX:], embedding, half=half)
        return torch.cat([x[:, :, :PREFIX], patches], 2).numpy().transpose(0, 2, 1, 3)

    return scores(rotated(query), rotated(key))


@pytest.fixture
def heads():
    random = np.random.default_rng(4)
    shape = (2, PREFIX + 15, HEADS, WIDTH)
    return [random.normal(size=shape).astype("float32") for _ in "qk"]


@pytest.mark.parametrize("axes", ["yx", "xy"])
def test_centered_positions_are_those_of_dinov3(heads, axes):
    from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3

    indexing = {"yx": "ij", "xy": "xy"}[axes]
    twin = RotaryEmbeddingDinoV3(
        WIDTH, temperature=50.0, feat_shape=list(GRID), grid_indexing=indexing
    )
    options = {"rotary_axes": axes, "rotary_temperature": 50.0}
    found = ours(*heads, rotary="centered", **options)
    expected = theirs(*heads, twin.get_embed(), half=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("axes", "offset"), [("yx", 0.0), ("xy", 1.0)])
@pytest.mark.parametrize("reference", [None, (7, 4)])
@pytest.mark.parametrize("pairing", ["halves", "neighbors"])
def test_positions_of_the_grid_are_those_of_eva(
    heads, axes, offset, reference, pairing
):
    from timm.layers import RotaryEmbeddingCat

    twin = RotaryEmbeddingCat(
        WIDTH,
        in_pixels=False,
        temperature=10_000.0,
        feat_shape=list(GRID),
        ref_feat_shape=reference,
        grid_offset=offset,
        grid_indexing={"yx": "ij", "xy": "xy"}[axes],
        rotate_half=pairing == "halves",
    )
    found = ours(
        *heads,
        pairing=pairing,
        rotary="grid",
        rotary_axes=axes,
        rotary_temperature=10_000.0,
        rotary_offset=offset,
        rotary_reference_grid=reference,
    )
    expected = theirs(*heads, twin.get_embed(), half=pairing == "halves")
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_mixed_positions_are_those_of_rope_vit(heads):
    import torch
    from timm.layers.pos_embed_sincos import RotaryEmbeddingMixed

    twin = RotaryEmbeddingMixed(WIDTH * HEADS, 3, HEADS, feat_shape=list(GRID))
    layer = layers.RotaryPositions(
        GRID, HEADS, 3, rotary="mixed", rotary_axes="xy", rotary_temperature=10.0
    )
    layer.build(TOKENS.shape)
    lengths = (np.linalg.norm(x, axis=0) for x in (layer.frequencies, twin.freqs.data))
    np.testing.assert_allclose(*lengths, rtol=1e-5)
    layer.frequencies.assign(twin.freqs.detach().numpy())
    tables = numpy(layer(TOKENS))
    with torch.no_grad():
        embeddings = twin.get_embed()
    for table, embedding in zip(tables, embeddings, strict=True):
        found = scores(*(numpy(rotate(x, table, "neighbors")) for x in heads))
        expected = theirs(*heads, embedding, half=False)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
