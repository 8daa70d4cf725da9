"""Every encoder block under everything that wraps or reads one."""

import numpy as np
import pytest
from long_cases import long_after
from tiny_model import NO_QKV_BIASES, build_vit, numpy

from training.engine.lora import enable_lora
from training.engine.rematerialize import rematerialize_blocks

pytestmark = pytest.mark.backend

PATCHES = {"pooling": "avg", "class_token": False, "depth": 1}
DROPPED = {"depth": 2, "stochastic_depth": 0.9}  # of the first block nothing is
RELATIVE = {"position_embedding": "relative"}
WIDE = {"width": 24, "heads": 3}
BLOCKS = {
    "full": {},
    "axial": {**PATCHES, "attention": "axial"},
    "shared relative": {**RELATIVE, "position_placement": "shared"},
    "scaled, normalized, gated": {"layer_scale": 0.5, "qk_norm": True, "swiglu": True},
    "all normalized": {"norm": "rms", "attention_norm": True, "mlp_norm": True},
    "rotary": {"rotary": "mixed", "rotary_pairing": "neighbors", **WIDE},
    "post-norm": {"post_norm": True, "layer_scale": 0.5},
    "parallel": {"parallel": True, "layer_scale": 0.5},
    "branches": {"branches": 2, "layer_scale": 0.5},
    "relative bias": {"relative_bias": "every_layer"},
    "shared relative bias": {"relative_bias": "shared"},
    "patches alone": PATCHES,
    "relative": RELATIVE,
    "without biases": {**NO_QKV_BIASES, "output_bias": False, "mlp_bias": False},
}


def rematerialized(model, images):
    rematerialize_blocks(model)
    outputs = model(images, training=True)
    for layer in model.layers:
        vars(layer).pop("call", None)  # as it was
    return outputs


def adapted(model, images):
    enable_lora(model, 2, ("query", "key", "value", "out", "mlp"))
    return model(images, training=True)


def read_from_all_tokens(model, images):
    """The logits, from the last block's output for all tokens."""
    tokens = model.features_model(prefix_tokens=True)(images)
    tokens = numpy(model.get_layer("encoder_norm")(tokens))
    pooled = tokens[:, 0] if model.pooling == "token" else tokens.mean(1)
    return model.get_layer("head")(pooled)


def read_with_attention(model, images):
    """The logits, computed beside attention weights that sum to 1."""
    if model.attention == "full":
        for weights in model.attention_weights_model()(images):
            np.testing.assert_allclose(numpy(weights).sum(-1), 1, atol=1e-5)
    return model(images)


# In this order on one model: the last time, adapted blocks are rematerialized.
WRAPPERS = (
    read_from_all_tokens,
    read_with_attention,
    rematerialized,
    adapted,
    rematerialized,
)


@pytest.mark.parametrize("kind", long_after(4, BLOCKS))
def test_a_block_computes_the_same_under_every_wrapper(kind, images):
    model, pixels = build_vit(**BLOCKS[kind]), images(3)
    expected = numpy(model(pixels))
    assert np.abs(expected).max() > 0.01
    for wrap in WRAPPERS:
        found = numpy(wrap(model, pixels))
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=wrap.__name__)


@pytest.mark.parametrize("kind", long_after(2, BLOCKS))
def test_dropped_branches_are_drawn_within_a_rematerialized_block(kind, images):
    model, pixels = build_vit(**BLOCKS[kind] | DROPPED), images(3)
    rematerialize_blocks(model)
    outputs = (numpy(model(pixels, training=True)).tobytes() for _ in range(8))
    first = next(outputs)
    assert any(output != first for output in outputs)
