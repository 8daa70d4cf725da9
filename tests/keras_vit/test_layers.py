"""The contract of every public layer, and what single layers promise."""

import keras
import numpy as np
import pytest
from layer_contract import *  # noqa: F403
from tiny_model import numpy

from keras_vit import layers, options
from keras_vit.option_rows import rows

pytestmark = pytest.mark.backend

LAYERS = {name: getattr(layers, name) for name in layers.__all__}
BLOCK = {
    "mlp_dim": 7,
    "heads": 3,
    "dropout": 0.1,
    "attention_dropout": 0.2,
    "stochastic_depth": 0.3,
    "gelu": "exact",
    "layer_scale": 0.4,
    "qk_norm": True,
    "query_bias": False,
    "key_bias": False,
    "value_bias": False,
    "output_bias": False,
    "attention_norm": True,
    "norm": "rms",
    "norm_epsilon": 0.01,
    "relative_stddev": 0.5,
    "relative_bias_grid": (1, 5),
    "swiglu": True,
    "mlp_norm": True,
    "mlp_bias": False,
    "rotary_pairing": "neighbors",
    "post_norm": True,
    "parallel": False,
    "branches": 2,
}
ARGUMENTS = {
    "AttentionPooling": {
        name: BLOCK[name] for name in ("mlp_dim", "heads", "gelu", "norm_epsilon")
    },
    "AxialEncoderBlock": {
        "grid": (2, 3),
        "block": {**BLOCK, "relative_bias_grid": None},
    },
    "EncoderBlock": BLOCK,
    "LayerNorm": {"epsilon": 0.01},
    "LayerScale": {"initial_value": 0.4},
    "MLP": {
        "hidden_dim": 7,
        **{name: BLOCK[name] for name in rows(options.MLPOptions)},
    },
    "MultiHeadSelfAttention": {
        "heads": 3,
        "relative_stddev": 0.5,
        "relative_bias_grid": (1, 5),
        "query_projection": False,
        **{name: BLOCK[name] for name in rows(options.AttentionOptions)},
    },
    "PatchDropout": {"rate": 0.4, "prefix_tokens": 2, "seed": 5},
    "PositionEmbedding": {"stddev": 0.5, "skip_tokens": 2},
    "PositionEmbedding2D": {"grid": (1, 3), "stddev": 0.5, "skip_tokens": 2},
    "QueryPooling": {"heads": 3, "key_bias": False, "value_bias": False},
    "RelativeBias": {"grid": (1, 5), "heads": 3},
    "RMSNorm": {"epsilon": 0.01},
    "RegisterTokens": {"count": 4},
    "RelativePosition": {"heads": 3, "stddev": 0.5},
    "RotaryPositions": {
        **{"grid": (1, 5), "heads": 3, "depth": 2, "rotary": "mixed"},
        **{"rotary_axes": "xy", "rotary_temperature": 7.0},
        **{"rotary_offset": 0.0, "rotary_reference_grid": None},
        **{"rotary_shift": 0.2, "rotary_jitter": 1.5, "rotary_rescale": 2.0},
    },
    "SinCosPositionEmbedding": {"grid": (1, 5), "last_frequency": False},
    "StochasticDepth": {"rate": 0.3, "seed": 5},
}


@pytest.fixture
def inputs():
    return np.random.default_rng(2).normal(size=(5, 6, 12)).astype("float32")


def test_dropped_branches_are_whole_examples_and_the_mean_stays():
    layer = layers.StochasticDepth(0.25, seed=3)
    dropped = numpy(layer(np.ones((4000, 3, 2), "float32"), training=True))
    kept = dropped[:, 0, 0] > 0
    np.testing.assert_allclose(dropped[kept], 1 / 0.75, rtol=1e-6)
    assert not dropped[~kept].any()
    assert kept.mean() == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("dropout", [layers.StochasticDepth, layers.PatchDropout])
def test_nothing_is_dropped_at_inference(dropout, inputs):
    np.testing.assert_array_equal(numpy(dropout(0.9)(inputs)), inputs)


@pytest.mark.parametrize(
    ("rate", "kept"), [(0.0, 11), (0.05, 10), (0.5, 5), (0.75, 2), (0.99, 1)]
)
def test_patch_dropout_keeps_the_prefix_and_whole_patches_in_order(rate, kept):
    tokens = np.arange(7 * 13 * 3, dtype="float32").reshape(7, 13, 3)
    layer = layers.PatchDropout(rate, prefix_tokens=2, seed=4)
    output = numpy(layer(tokens, training=True))
    assert output.shape == (7, 2 + kept, 3)
    for image, all_tokens in zip(output, tokens, strict=True):
        rows = [all_tokens.tolist().index(token) for token in image.tolist()]
        assert rows[:2] == [0, 1]
        assert rows == sorted(set(rows))


def test_patch_dropout_draws_anew_and_every_patch_as_often():
    tokens = np.broadcast_to(np.arange(1.0, 6.0)[None, :, None], (3000, 5, 1))
    layer = layers.PatchDropout(0.4, seed=3)
    first, second = (numpy(layer(tokens, training=True)) for _ in range(2))
    assert (first != second).any(axis=(1, 2)).mean() > 0.8
    kept = [(first == patch).any(axis=1).mean() for patch in range(1, 6)]
    np.testing.assert_allclose(kept, 3 / 5, atol=0.03)


@pytest.mark.parametrize("relative_stddev", [None, 0.5])
def test_a_block_computes_the_tokens_alone_that_are_asked_for(inputs, relative_stddev):
    block = layers.EncoderBlock(**{**BLOCK, "relative_stddev": relative_stddev})
    expected = numpy(block(inputs))[:, :2]
    output = block(inputs, {"asked_for": inputs[:, :2]})
    np.testing.assert_allclose(numpy(output), expected, rtol=0, atol=1e-5)
    tokens = keras.Input((6, 12))
    assert block(tokens, {"asked_for": tokens[:, :2]}).shape == (None, 2, 12)


def test_the_branches_of_an_axial_block_are_dropped_for_whole_images():
    block = {"mlp_dim": 7, "heads": 3, "stochastic_depth": 0.5}
    layer = layers.AxialEncoderBlock((3, 2), block)
    tokens = np.ones((40, 6, 12), "float32")
    layer.build(tokens.shape)
    for weight in layer.trainable_weights:
        weight.assign(np.full(weight.shape, 0.1))
    output = numpy(layer(tokens, training=True))
    np.testing.assert_allclose(output, np.broadcast_to(output[:, :1], output.shape))
    assert len(np.unique(output[:, 0, 0].round(4))) > 2


def test_both_dense_layers_of_an_mlp_are_followed_by_dropout():
    """With identity kernels a number passes both, and is doubled twice, or is 0."""
    keras.utils.set_random_seed(2)
    mlp = layers.MLP(64, dropout=0.5)
    tokens = np.full((4, 50, 64), 9.0, "float32")  # where GELU is the identity
    mlp(tokens)
    for dense in (mlp.dense1, mlp.dense2):
        dense.kernel.assign(np.eye(64))
        dense.bias.assign(np.zeros(64))
    outputs = numpy(mlp(tokens, training=True))
    passed = np.isclose(outputs, 36)
    assert (passed | (outputs == 0)).all()
    assert passed.mean() == pytest.approx(0.25, abs=0.02)


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis -1")
def test_one_token_takes_all_of_itself_whatever_its_relative_position(inputs):
    layer = layers.MultiHeadSelfAttention(3, relative_stddev=1.0)
    output = layer(inputs[:, :1])
    assert layer.relative_embedding.shape == (1, 4)
    expected = layer.out(layer.value(inputs[:, :1]))
    np.testing.assert_allclose(numpy(output), numpy(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.StochasticDepth(1.0), r"`rate` must be in \[0, 1\).*rate=1.0"),
        (lambda: layers.MLP(7, gelu="relu"), "`gelu` must be one of 'tanh', 'exact'"),
        (lambda: layers.PatchDropout(-0.1), r"`rate` must be in \[0, 1\).*rate=-0.1"),
        (
            lambda: layers.AxialEncoderBlock((2, 3), BLOCK).build((None, 7, 12)),
            r"whole `grid` and no other.*grid=\(2, 3\), 7 tokens",
        ),
        (
            lambda: layers.PositionEmbedding2D((2, 3)).build((None, 6, 15)),
            "even width.*width=15",
        ),
        (
            lambda: layers.SinCosPositionEmbedding((2, 3)).build((None, 6, 14)),
            "multiple of 4.*width=14",
        ),
        (
            lambda: layers.MultiHeadSelfAttention(4).build((None, 6, 15)),
            "`heads` must divide.*heads=4, width=15",
        ),
    ],
)
def test_an_error_names_the_argument_and_what_came(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
def test_layer_norm_is_the_formula_in_every_precision(dtype):
    random = np.random.default_rng(3)
    layer = layers.LayerNorm(0.3, dtype=dtype)
    tokens = random.normal(3, 2, (2, 5, 12)).astype(layer.compute_dtype)
    layer.build(tokens.shape)
    layer.set_weights([random.normal(size=12), random.normal(size=12)])
    gamma, beta = (numpy(weight).astype("float64") for weight in layer.weights)
    x = tokens.astype("float64")
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 0.3)
    expected = (x - x.mean(axis=-1, keepdims=True)) / deviation
    expected = expected * gamma + beta
    outputs = layer(tokens)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    tolerance = 2e-2 if "bfloat16" in dtype else 2e-6
    np.testing.assert_allclose(
        numpy(outputs).astype("float64"), expected, rtol=0, atol=tolerance
    )


def test_attention_normalizes_tokens_and_queries(inputs):
    attention, norm = layers.MultiHeadSelfAttention(3), layers.LayerNorm()
    norm.build(inputs.shape)
    norm.gamma.assign(np.linspace(0.5, 2, 12))
    outputs = attention(inputs, queries=inputs[:, :2], project=norm.dense)
    normalized = norm(inputs)
    expected = attention(normalized, queries=normalized[:, :2])
    np.testing.assert_allclose(numpy(outputs), numpy(expected), rtol=0, atol=1e-5)
