"""The model computes the paper's equations: NumPy float64 and finite differences."""

import keras
import numpy as np
import numpy_vit
import pytest

pytestmark = pytest.mark.backend


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
@pytest.mark.parametrize("head", ["token", "gap", "map", "none"])
def test_every_head_and_gelu_equals_the_equations(tiny_vit, images, head, gelu):
    model = tiny_vit(head=head, gelu=gelu)
    output = keras.ops.convert_to_numpy(model(images()))
    expected = numpy_vit.forward(model, images())
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_any_number_of_channels_equals_the_equations(tiny_vit, images, channels):
    model = tiny_vit(channels=channels)
    output = keras.ops.convert_to_numpy(model(images(channels)))
    expected = numpy_vit.forward(model, images(channels))
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"class_token": False, "head": "gap"},
        {"class_token": False, "head": "map"},
        {"representation_size": 13},
        {"classes": None},
        {"classes": None, "representation_size": 13, "head": "gap"},
        {"depth": 1, "heads": 3},
    ],
)
def test_every_form_of_the_model_equals_the_equations(tiny_vit, images, kwargs):
    model = tiny_vit(**kwargs)
    output = keras.ops.convert_to_numpy(model(images()))
    expected = numpy_vit.forward(model, images())
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_stays_close_and_answers_in_float32(tiny_vit, images, policy):
    model = tiny_vit(dtype=policy)
    output = model(images())
    expected = numpy_vit.forward(model, images())
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    tolerance = {"mixed_bfloat16": 0.15, "mixed_float16": 0.02}[policy]
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(output), expected, rtol=0, atol=tolerance
    )


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


@pytest.mark.parametrize("head", ["token", "gap", "map"])
def test_gradients_equal_finite_differences(tiny_vit, images, monkeypatch, head):
    model = tiny_vit(head=head, depth=1)
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
