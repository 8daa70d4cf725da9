"""The model computes the paper's equations: NumPy float64 and finite differences."""

import itertools

import keras
import numpy as np
import numpy_vit
import pytest

pytestmark = pytest.mark.backend


@pytest.mark.parametrize(
    "kwargs",
    [
        *(
            {"pooling": pooling, "gelu": gelu}
            for pooling in ("token", "avg", "map", None)
            for gelu in ("tanh", "exact")
        ),
        *(
            {"depth": 1, **kwargs}  # what is before and behind the blocks
            for kwargs in (
                {"channels": 1},
                {"channels": 5},
                {"class_token": False, "pooling": "avg"},
                {"class_token": False, "pooling": "map"},
                {"representation_size": 13},
                {"classes": None},
                {"classes": None, "representation_size": 13, "pooling": "avg"},
                {"prefix_positions": False},
                {"register_tokens": 4, "prefix_positions": False, "pooling": "avg"},
                {"register_tokens": 4, "class_token": False, "pooling": "avg"},
                {"register_tokens": 4, "pooling": "map"},
                {"register_tokens": 4, "class_token": False, "pooling": "map"},
                {"fc_norm": True, "pooling": "token"},
                {"fc_norm": True, "pooling": "avg", "representation_size": 13},
                {"fc_norm": True, "pooling": "map"},
                {"norm_epsilon": 0.3, "fc_norm": True, "pooling": "avg"},
                {"position_embedding": "none"},
            )
        ),
        {"depth": 1, "heads": 3},
        {"register_tokens": 4},
        {"layer_scale": 0.1},
        {"qk_norm": True},
        {"qkv_bias": False, "pooling": "map"},
        {"output_bias": False, "pooling": "map"},
        {"swiglu": True},
        {"swiglu": True, "pooling": "map", "layer_scale": 0.1},
        {"norm_epsilon": 0.3, "qk_norm": True, "pooling": "map"},
        {"attention": "axial", "pooling": "avg", "class_token": False},
        {
            "attention": "axial",
            "pooling": "map",
            "class_token": False,
            "layer_scale": 0.1,
            "qk_norm": True,
        },
    ],
)
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


# Each row with two kinds of prefix tokens, in turn; `make test` takes one.
@pytest.mark.parametrize(
    ("kind", "placement", "prefix"),
    [
        pytest.param(*row, PREFIXES[(number + more) % 4], marks=marks)
        for number, row in enumerate(TABLE_8)
        for more, marks in ((0, ()), (1, pytest.mark.slow))
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
        ({"resnet_blocks": (), "patch_size": 2}, (3, 4)),
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
    [
        {"pooling": "token"},
        {"pooling": "avg"},
        {"pooling": "map"},
        {"position_embedding": "relative", "qk_norm": True, "layer_scale": 0.1},
        {"position_embedding": "learned_2d", "width": 30, "register_tokens": 4},
    ],
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
