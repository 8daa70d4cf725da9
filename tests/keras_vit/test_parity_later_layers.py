"""Layers of later models are those of timm and transformers."""

import numpy as np
import pytest
from foreign_files import needs
from tiny_model import numpy

from keras_vit import layers
from keras_vit.layers.positions import relative_bias_rows

pytestmark = pytest.mark.parity


@needs("timm")
@pytest.mark.parametrize("grid", [(3, 5), (4, 2)])
def test_rows_of_relative_positions_are_those_of_beit(grid):
    from timm.models.beit import gen_relative_position_index

    expected = gen_relative_position_index(grid).numpy()
    np.testing.assert_array_equal(relative_bias_rows(grid), expected)


@needs("transformers")
@pytest.mark.parametrize("biased", [True, False])
def test_query_pooling_is_that_of_aimv2(biased):
    import torch
    from transformers.models.aimv2 import modeling_aimv2

    config = modeling_aimv2.Aimv2VisionConfig(
        hidden_size=24, num_attention_heads=3, qkv_bias=biased
    )
    twin = modeling_aimv2.Aimv2AttentionPoolingHead(config).eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    tokens = np.random.default_rng(5).normal(size=(2, 7, 24)).astype("float32")
    pooling = layers.QueryPooling(3, key_bias=biased, value_bias=biased)
    pooling.build(tokens.shape)
    pooling.probe.assign(twin.cls_token.detach().numpy())
    projections = {"key": "k_proj", "value": "v_proj", "out": "output_proj"}
    for ours, theirs in projections.items():
        dense, linear = getattr(pooling.attention, ours), getattr(twin, theirs)
        dense.kernel.assign(linear.weight.detach().numpy().T)
        if dense.use_bias:
            dense.bias.assign(linear.bias.detach().numpy())
    with torch.no_grad():
        expected = twin(torch.tensor(tokens)).numpy()
    np.testing.assert_allclose(numpy(pooling(tokens)), expected, rtol=0, atol=1e-5)


@needs("transformers")
def test_rms_norm_is_that_of_aimv2():
    import torch
    from transformers.models.aimv2 import modeling_aimv2

    tokens = np.random.default_rng(5).normal(size=(2, 7, 24)).astype("float32")
    gamma = np.linspace(0.5, 2, 24).astype("float32")
    twin = modeling_aimv2.Aimv2RMSNorm(24, eps=0.3)
    twin.weight.data = torch.tensor(gamma)
    norm = layers.RMSNorm(0.3)
    norm.build(tokens.shape)
    norm.gamma.assign(gamma)
    expected = twin(torch.tensor(tokens)).detach().numpy()
    np.testing.assert_allclose(numpy(norm(tokens)), expected, rtol=0, atol=1e-6)


@needs("timm")
@pytest.mark.parametrize("gated", [True, False])
def test_a_block_of_eva02_has_the_same_outputs(gated):
    """Norms of the merged heads and of the hidden layer, neighbors rotated."""
    import torch
    from timm.layers import RotaryEmbeddingCat
    from timm.models.eva import EvaBlock

    grid, width, hidden = (3, 2), 24, 31
    twin = EvaBlock(
        width,
        3,
        qkv_fused=False,
        mlp_ratio=(hidden + 0.5) / width,
        swiglu_mlp=gated,
        scale_mlp=True,
        scale_attn_inner=True,
    ).eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    weights = {name: value.numpy() for name, value in twin.state_dict().items()}
    block = layers.EncoderBlock(
        hidden,
        3,
        **{"key_bias": False, "attention_norm": True, "mlp_norm": True},
        **{"swiglu": gated, "gelu": "exact", "norm_epsilon": 1e-5},
        rotary_pairing="neighbors",
        name="block",
    )
    tokens = np.random.default_rng(5).normal(size=(2, 7, width)).astype("float32")
    block.build(tokens.shape)
    for weight in block.weights:
        weight.assign(eva_array(weights, weight.path.removeprefix("block/")))
    rotary = {"rotary": "grid", "rotary_temperature": 10_000.0}
    [table] = layers.RotaryPositions(grid, 3, 1, **rotary)(tokens)
    embedding = RotaryEmbeddingCat(8, in_pixels=False, feat_shape=list(grid))
    with torch.no_grad():
        expected = twin(torch.tensor(tokens), rope=embedding.get_embed()).numpy()
    found = numpy(block(tokens, {"rotary": table}))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def eva_array(weights, path):
    """Of timm's EVA block, by our name."""
    layer, _, name = path.rpartition("/")
    kind = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}[name]
    layers_of = {
        "attention/query": ["attn.q_proj"],
        "attention/key": ["attn.k_proj"],
        "attention/value": ["attn.v_proj"],
        "attention/out": ["attn.proj"],
        "attention/norm": ["attn.norm"],
        "mlp/norm": ["mlp.norm"],
        "mlp/Dense_0": ["mlp.fc1_g", "mlp.fc1_x"],
        "mlp/Dense_1": ["mlp.fc2"],
    }
    theirs = layers_of.get(layer, [layer])
    if "mlp.fc1.weight" in weights and layer == "mlp/Dense_0":
        theirs = ["mlp.fc1"]
    arrays = [weights[f"{each}.{kind}"] for each in theirs]
    return np.concatenate(arrays).T if name == "kernel" else np.concatenate(arrays)
