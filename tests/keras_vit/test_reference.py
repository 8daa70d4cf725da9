"""The model computes the paper's equations: NumPy float64 and finite differences."""

import itertools

import keras
import numpy as np
import numpy_vit
import pytest
from long_cases import long_after

pytestmark = pytest.mark.backend


DEPTH_1 = {"depth": 1}  # what is before and behind the blocks
NO_CLASS = {"class_token": False}
FORMS = [
    {"pooling": "token", "gelu": "tanh"},
    {"pooling": "avg", "gelu": "exact"},
    {"pooling": "map", "gelu": "tanh"},
    {"pooling": None, "gelu": "exact"},
    {**DEPTH_1, "channels": 5},
    {**DEPTH_1, **NO_CLASS, "pooling": "avg"},
    {**DEPTH_1, "classes": None, "representation_size": 13, "pooling": "avg"},
    {**DEPTH_1, "prefix_positions": False},
    {**DEPTH_1, "register_tokens": 4, **NO_CLASS, "pooling": "map"},
    {**DEPTH_1, "register_tokens": 4, "prefix_positions": False, "pooling": "avg"},
    {**DEPTH_1, "fc_norm": True, "pooling": "avg", "representation_size": 13},
    {**DEPTH_1, "fc_norm": True, "pooling": "map"},
    {**DEPTH_1, "position_embedding": "none"},
    {**DEPTH_1, "heads": 3},
    {"layer_scale": 0.1},
    {"norm_epsilon": 0.3, "qk_norm": True, "pooling": "map"},
    {"key_bias": False, "value_bias": False, "pooling": "map"},
    {"norm": "rms", "norm_epsilon": 0.3, "attention_norm": True, "qk_norm": True},
    {"swiglu": True, "mlp_norm": True, "mlp_bias": False, "pooling": "map"},
    {"gelu": "quick", "mlp_norm": True, "embedding_norm": True, "projection": 9},
    {**DEPTH_1, "patch_norm": True, "embedding_bias": False, "final_norm": False},
    {"swiglu": True},
    {"attention": "axial", "pooling": "avg", **NO_CLASS},
]
WIDE = {"width": 24, "heads": 3}  # K = 8: rotary positions need a multiple of 4
FORMS += [
    {**WIDE, "rotary": "centered", "register_tokens": 4},
    {
        **{**WIDE, "rotary": "grid", "rotary_pairing": "neighbors"},
        **{"rotary_temperature": 9.0, "rotary_offset": 1.0, "rotary_axes": "xy"},
        **{"rotary_reference_grid": (5, 3), "pooling": "avg", "qk_norm": True},
    },
    {**WIDE, "rotary": "mixed", "position_embedding": "none", "pooling": "avg"},
]
FORMS += [
    {"relative_bias": "every_layer", "position_embedding": "none"},
    {"relative_bias": "shared", "pooling": "avg", "key_bias": False},
    {**DEPTH_1, "pooling": "map", "heads": 3, "pool_heads": 5, "pool_mlp_dim": 11},
    {**DEPTH_1, "pooling": "query", "key_bias": False, "register_tokens": 2},
    {"register_tokens": 2, "distilled": True},
    {"post_norm": True, "norm_epsilon": 0.3, "pooling": "avg"},
    {"parallel": True, "layer_scale": 0.1, "qk_norm": True},
    {"branches": 3, "layer_scale": 0.1},
]
LONG_FORMS = [
    {"pooling": "token", "gelu": "exact"},
    {"pooling": "avg", "gelu": "tanh"},
    {"pooling": "map", "gelu": "exact"},
    {"pooling": None, "gelu": "tanh"},
    {**DEPTH_1, "channels": 1},
    {**DEPTH_1, **NO_CLASS, "pooling": "map"},
    {**DEPTH_1, "representation_size": 13},
    {**DEPTH_1, "classes": None},
    {**DEPTH_1, "register_tokens": 4, **NO_CLASS, "pooling": "avg"},
    {**DEPTH_1, "register_tokens": 4, "pooling": "map"},
    {**DEPTH_1, "fc_norm": True, "pooling": "token"},
    {**DEPTH_1, "norm_epsilon": 0.3, "fc_norm": True, "pooling": "avg"},
    {"register_tokens": 4},
    {"qk_norm": True},
    {"output_bias": False, "query_bias": False, "pooling": "map"},
    {"gelu": "silu", "mlp_norm": True, "mlp_bias": False},
    {**DEPTH_1, "norm": "rms", "fc_norm": True, "projection": 9, "classes": None},
    {**DEPTH_1, "norm": "rms", "patch_norm": True, "embedding_norm": True},
    {**DEPTH_1, "pooling": "query", "heads": 3, "pool_heads": 5, **NO_CLASS},
    {**DEPTH_1, "register_tokens": 1, "distilled": True, "projection": 9},
    {"relative_bias": "shared", **WIDE, "rotary": "centered"},
    {**WIDE, "rotary": "mixed", "rotary_axes": "xy", "rotary_pairing": "neighbors"},
    {**WIDE, **NO_CLASS, "rotary": "centered", "rotary_axes": "xy", "pooling": "map"},
    {**WIDE, "rotary": "grid", "rotary_jitter": 2.0, "position_embedding": "sincos2d"},
    {"swiglu": True, "pooling": "map", "layer_scale": 0.1},
    {"post_norm": True, "norm": "rms", "swiglu": True, "layer_scale": 0.1},
    {"post_norm": True, "position_embedding": "relative"},
    {"parallel": True, "norm": "rms", "swiglu": True, "pooling": "avg"},
    {"parallel": True, "position_embedding": "relative"},
    {**NO_CLASS, "post_norm": True, "attention": "axial", "pooling": "avg"},
    {
        "attention": "axial",
        "pooling": "map",
        **NO_CLASS,
        "layer_scale": 0.1,
        "qk_norm": True,
    },
]


@pytest.mark.parametrize("kwargs", long_after(len(FORMS), FORMS + LONG_FORMS))
def test_every_form_of_the_model_equals_the_equations(tiny_vit, images, kwargs):
    numpy_vit.check_outputs(tiny_vit(**kwargs), images(kwargs.get("channels", 3)))


WITHOUT = {"class_token": False, "pooling": "avg"}
PREFIXES = [{}, {"register_tokens": 4}, {"prefix_positions": False}, WITHOUT]
TABLE_8 = [
    *itertools.product(
        ["learned_1d", "learned_2d", "sincos2d", "sincos2d_mae"],
        ["stem", "every_layer", "shared"],
    ),
    ("relative", "every_layer"),
    ("relative", "shared"),
]


# Each row with two kinds of prefix tokens, in turn; `make test` takes one of every
# other row.
@pytest.mark.parametrize(
    ("kind", "placement", "prefix"),
    [
        pytest.param(
            *row,
            PREFIXES[(number + more) % 4],
            marks=() if number % 2 and not more else pytest.mark.slow,
        )
        for number, row in enumerate(TABLE_8)
        for more in (0, 1)
    ],
)
def test_every_row_of_table_8_equals_the_equations(
    tiny_vit, images, kind, placement, prefix
):
    options = {"position_embedding": kind, "position_placement": placement}
    model = tiny_vit(width=24, heads=3, **options, **prefix)
    numpy_vit.check_outputs(model, images())


@pytest.mark.parametrize(
    ("kwargs", "grid"),
    [
        pytest.param(
            {"resnet_blocks": (), "patch_size": 2}, (3, 4), marks=pytest.mark.slow
        ),
        ({"resnet_blocks": (1, 2), "patch_size": 1}, (3, 4)),
    ],
)
def test_a_hybrid_equals_the_equations(tiny_vit, kwargs, grid):
    model = tiny_vit(image_size=(24, 32), channels=2, resnet_width_factor=1, **kwargs)
    pixels = np.random.default_rng(8).uniform(-1, 1, (2, 24, 32, 2)).astype("float32")
    assert model.grid == grid
    numpy_vit.check_outputs(model, pixels, atol=1e-4)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_stays_close_and_answers_in_float32(tiny_vit, images, policy):
    model = tiny_vit(dtype=policy)
    assert keras.backend.standardize_dtype(model(images()).dtype) == "float32"
    tolerance = {"mixed_bfloat16": 0.15, "mixed_float16": 0.02}[policy]
    numpy_vit.check_outputs(model, images(), atol=tolerance)


def _gradients(model, images, labels):
    """The loss's gradient for each trainable weight, by the backend's own autodiff."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if keras.backend.backend() == "jax":
        import jax

        def loss_of(trainable):
            output, _ = model.stateless_call(
                trainable, model.non_trainable_variables, images, training=False
            )
            return loss(labels, output)

        return jax.grad(loss_of)([v.value for v in model.trainable_variables])
    import tensorflow as tf

    with tf.GradientTape() as tape:
        value = loss(labels, model(images, training=False))
    return tape.gradient(value, [v.value for v in model.trainable_variables])


def _reference_loss(model, images, labels):
    logits = numpy_vit.forward(model, images)
    probabilities = numpy_vit.softmax(logits)
    return -np.log(probabilities[np.arange(len(labels)), labels]).mean()


@pytest.mark.parametrize(
    "kwargs",
    long_after(
        3,
        [
            {"pooling": "token"},
            {"pooling": "map"},
            {"position_embedding": "relative", "qk_norm": True, "layer_scale": 0.1},
            {"position_embedding": "learned_2d", "width": 30, "register_tokens": 4},
            {"relative_bias": "every_layer"},
            {"register_tokens": 1, "distilled": True},
            {"pooling": "query"},
            {"width": 24, "heads": 3, "rotary": "mixed", "rotary_pairing": "neighbors"},
            {"norm": "rms", "attention_norm": True, "mlp_norm": True, "gelu": "quick"},
            {"post_norm": True},
            {"parallel": True, "layer_scale": 0.1},
            {"pooling": "avg"},
        ],
    ),
)
def test_gradients_equal_finite_differences(tiny_vit, images, monkeypatch, kwargs):
    model = tiny_vit(**{"depth": 1, **kwargs})
    labels = np.array([2, 5])
    gradients = _gradients(model, images(), labels)
    weights = numpy_vit.weights_of(model)
    monkeypatch.setattr(numpy_vit, "weights_of", lambda _: weights)
    random = np.random.default_rng(5)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        name = variable.path
        direction = random.normal(size=variable.shape)
        direction /= np.linalg.norm(direction)
        slope = float(np.sum(keras.ops.convert_to_numpy(gradient) * direction))
        original, losses = weights[name], []
        for step in (1e-5, -1e-5):
            weights[name] = original + step * direction
            losses.append(_reference_loss(model, images(), labels))
        weights[name] = original
        expected = (losses[0] - losses[1]) / 2e-5
        assert slope == pytest.approx(expected, abs=2e-5), name
