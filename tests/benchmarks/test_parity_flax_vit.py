"""`benchmarks.flax_vit`: a peer that computes less would be no peer."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.specs import ViTSpec

pytest.importorskip("flax", exc_type=ImportError)
import jax

from benchmarks import flax_vit

pytestmark = pytest.mark.parity
SPEC = ViTSpec(width=12, depth=2, mlp_dim=20, heads=3)
CLASSES, PIXELS, PATCH = 5, 14, 7  # 4 patches and the class token


def ours():
    """keras-vit's model with random weights; the class token's position is zero."""
    model = keras_vit.VisionTransformer(
        image_size=PIXELS,
        patch_size=PATCH,
        width=SPEC.width,
        depth=SPEC.depth,
        mlp_dim=SPEC.mlp_dim,
        heads=SPEC.heads,
        classes=CLASSES,
    )
    random = np.random.default_rng(0)
    for weight in model.weights:
        value = random.normal(scale=0.3, size=weight.shape)
        if weight.path.startswith("position"):
            value[:, 0] = 0
        weight.assign(value)
    return model


def flax_weights(model):
    """The model's weights in Flax's structure."""
    values = {w.path: keras.ops.convert_to_numpy(w) for w in model.weights}
    heads, width = SPEC.heads, SPEC.width

    def dense(path, **shapes):
        pair = {key: values[f"{path}/{key}"] for key in ("kernel", "bias")}
        return pair | {key: pair[key].reshape(shape) for key, shape in shapes.items()}

    def norm(path):
        return {"scale": values[f"{path}/gamma"], "bias": values[f"{path}/beta"]}

    def block(path):
        split = {
            "kernel": (width, heads, width // heads),
            "bias": (heads, width // heads),
        }
        attention = {
            name: dense(f"{path}/attention/{name}", **split)
            for name in ("query", "key", "value")
        }
        merged = {"kernel": (heads, width // heads, width)}
        attention["out"] = dense(f"{path}/attention/out", **merged)
        return {
            "LayerNorm_0": norm(f"{path}/norm1"),
            "MultiHeadDotProductAttention_0": attention,
            "LayerNorm_1": norm(f"{path}/norm2"),
            "Dense_0": dense(f"{path}/mlp/Dense_0"),
            "Dense_1": dense(f"{path}/mlp/Dense_1"),
        }

    [positions] = [v for path, v in values.items() if path.startswith("position")]
    blocks = {f"Block_{i}": block(f"encoder_block_{i}") for i in range(SPEC.depth)}
    return {
        "params": {
            "Conv_0": dense("embedding"),
            "positions": positions[:, 1:],
            "token": values["class_token/token"],
            **blocks,
            "LayerNorm_0": norm("encoder_norm"),
            "Dense_0": dense("head"),
        }
    }


@pytest.mark.parametrize("pad", [False, True])
def test_it_has_the_weights_and_logits_of_our_model(pad):
    model = ours()
    attention = flax_vit.attention_of("xla", pad)
    peer = flax_vit.VisionTransformer(SPEC, PATCH, CLASSES, "float32", attention)
    images = np.random.default_rng(1).uniform(-1, 1, (3, PIXELS, PIXELS, 3))
    images = images.astype("float32")
    weights = flax_weights(model)
    made = peer.init(jax.random.key(0), images)
    assert jax.tree.map(np.shape, made) == jax.tree.map(np.shape, weights)
    logits = keras.ops.convert_to_numpy(model(images))
    np.testing.assert_allclose(peer.apply(weights, images), logits, atol=1e-5)


def test_one_step_clips_decays_kernels_and_updates_all_weights():
    """Against the equations of AdamW in its first step, where the update is a sign."""
    attention = flax_vit.attention_of("xla", pad=False)
    peer = flax_vit.VisionTransformer(SPEC, PATCH, CLASSES, "float32", attention)
    images = np.random.default_rng(1).uniform(-1, 1, (3, PIXELS, PIXELS, 3))
    labels = np.eye(CLASSES)[:3]
    weights = flax_weights(ours())
    optimizer = flax_vit.adamw(learning_rate=0.01, weight_decay=0.5)
    before = jax.tree.map(np.array, weights)
    state = jax.tree.map(jax.numpy.asarray, (weights, optimizer.init(weights)))
    after, _ = flax_vit.training_step(peer, optimizer)(state, images, labels)
    head = before["params"]["Dense_0"], after["params"]["Dense_0"]
    change = {key: np.asarray(head[1][key] - head[0][key]) for key in head[0]}
    np.testing.assert_allclose(np.abs(change["bias"]), 0.01, rtol=1e-3)
    decayed = change["kernel"] + 0.01 * 0.5 * head[0]["kernel"]
    np.testing.assert_allclose(np.abs(decayed), 0.01, rtol=1e-3)
