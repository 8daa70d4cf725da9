"""Kernels of training on CPUs: their numbers and gradients, and where they run."""

import keras
import ml_dtypes
import numpy as np
import numpy_vit
import pytest
from long_cases import long_after
from tiny_model import numpy

from keras_vit import fusion, layers
from keras_vit.layers import gelu, mlp

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow only"
)
WIDTH = 13


def tokens(scale=1.0, dtype="float32"):
    values = np.random.default_rng(2).normal(size=(3, 5, WIDTH)) * scale
    return values.astype(dtype)


def derivative(function, x, step=1e-6):
    """Central difference of an elementwise function, in float64."""
    return (function(x + step) - function(x - step)) / (2 * step)


def outputs_and_gradients(call, x):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = tf.function(call)(x)
    gradient = tape.gradient(outputs, x)
    return numpy(tf.cast(outputs, "float32")), numpy(tf.cast(gradient, "float32"))


@pytest.mark.parametrize("kind", ["tanh", "exact"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), (ml_dtypes.bfloat16, 2**-8)]
)
def test_gelu_and_its_gradient_equal_the_equations(kind, dtype, tolerance):
    """In bfloat16 each is rounded once, with half a unit in the last place to spare."""
    x = tokens(2.0, dtype)
    outputs, gradient = outputs_and_gradients(
        lambda x: fusion.fused(
            getattr(gelu, kind), x, training=True, dtype=x.dtype.name
        ),
        x,
    )
    x = x.astype("float64")
    np.testing.assert_allclose(
        outputs, numpy_vit.gelu(x, kind), rtol=tolerance, atol=tolerance
    )
    wanted = derivative(lambda x: numpy_vit.gelu(x, kind), x)
    np.testing.assert_allclose(gradient, wanted, rtol=tolerance, atol=tolerance)


def test_swiglu_equals_the_equation():
    x = tokens(2.0)[..., :12]
    outputs, gradient = outputs_and_gradients(
        lambda x: fusion.fused(mlp.silu_gate, x, training=True, dtype="float32"), x
    )
    gate, values = np.split(x.astype("float64"), 2, axis=-1)
    sigmoid = 1 / (1 + np.exp(-gate))
    np.testing.assert_allclose(outputs, gate * sigmoid * values, atol=1e-6)
    of_gate = sigmoid * (1 + gate * (1 - sigmoid)) * values
    wanted = np.concatenate([of_gate, gate * sigmoid], axis=-1)
    np.testing.assert_allclose(gradient, wanted, atol=1e-6)


def test_layer_norm_and_its_gradients_equal_the_equation():
    """With x' = (x - mean) / stddev: dx = (g' - mean(g') - x' mean(g' x')) / stddev."""
    norm = layers.LayerNorm()
    x, upstream = tf.constant(tokens()), tokens()[::-1] * 0.7
    norm.build(x.shape)
    random = np.random.default_rng(4)
    norm.set_weights([random.normal(size=WIDTH), random.normal(size=WIDTH)])
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = norm(x, training=True)
    sources = [x, norm.gamma.value, norm.beta.value]
    of_x, of_gamma, of_beta = tape.gradient(outputs, sources, upstream)

    weights = {"/gamma": numpy(norm.gamma), "/beta": numpy(norm.beta)}
    x = tokens().astype("float64")
    wanted = numpy_vit.layer_norm(x, weights, "")
    np.testing.assert_allclose(outputs, wanted, atol=1e-5)
    stddev = np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    normalized = (x - x.mean(-1, keepdims=True)) / stddev
    scaled = upstream * weights["/gamma"]
    mean = scaled.mean(-1, keepdims=True)
    projection = normalized * (scaled * normalized).mean(-1, keepdims=True)
    np.testing.assert_allclose(of_x, (scaled - mean - projection) / stddev, atol=1e-5)
    wanted = (upstream * normalized).sum((0, 1))
    np.testing.assert_allclose(of_gamma, wanted, atol=1e-5)
    np.testing.assert_allclose(of_beta, upstream.sum((0, 1)), atol=1e-5)


@pytest.mark.parametrize(
    "kwargs",
    long_after(
        1,
        [
            {"gelu": "exact", "key_bias": False, "depth": 1, "pooling": "avg"},
            {
                **{"norm": "rms", "attention_norm": True, "mlp_norm": True},
                **{"gelu": "quick", "mlp_bias": False, "depth": 1},
            },
            {"swiglu": True, "depth": 1, "pooling": "avg"},
            {},
        ],
    ),
)
def test_a_model_has_the_same_logits_and_gradients_without_kernels(
    tiny_vit, images, monkeypatch, kwargs
):
    results = []
    for kernels in (True, False):
        monkeypatch.setattr(fusion, "on_tensorflow_cpu", lambda k=kernels: k)
        model = tiny_vit(**kwargs)
        with tf.GradientTape() as tape:
            logits = model(images(), training=True)
        results.append([logits, *tape.gradient(logits, model.trainable_variables)])
    for fused, plain in zip(*results, strict=True):
        scale = max(1.0, np.abs(plain).max())
        np.testing.assert_allclose(fused / scale, plain / scale, atol=1e-5)


@pytest.mark.parametrize(("training", "kernels"), [(True, True), (False, False)])
def test_only_training_is_compiled_by_xla(tiny_vit, images, training, kernels):
    """A server may have no XLA, and oneDNN fuses more at inference."""
    model = tiny_vit()
    call = tf.function(lambda x: model(x, training=training))
    graph = call.get_concrete_function(tf.TensorSpec(images().shape)).graph
    functions = graph.as_graph_def(add_shapes=False).library.function
    compiled = [f for f in functions if f.attr["_XlaMustCompile"].b]
    assert bool(compiled) == kernels


def test_inference_has_gradients_without_kernels(tiny_vit, images):
    """What a saliency map of a trained model reads."""
    model, x = tiny_vit(), tf.constant(images())
    with tf.GradientTape() as tape:
        tape.watch(x)
        scores = model(x, training=False)
    assert np.isfinite(tape.gradient(scores, x)).all()


def test_training_keeps_nothing_between_a_kernel_and_its_dense_layers(tiny_vit, images):
    """The gradients of their weights read what the kernel's gradient computes again."""
    model = tiny_vit(depth=3)

    @tf.function
    def gradients(x):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
        return tape.gradient(logits, model.trainable_variables)

    graph = gradients.get_concrete_function(tf.TensorSpec(images().shape)).graph
    products = [op for op in graph.get_operations() if op.type == "MatMul"]
    read = [op.inputs[0].op for op in products if op.get_attr("transpose_a")]
    again = [
        op
        for op in read
        if "Call" in op.type and "differentiate" in op.get_attr("f").name
    ]
    # Query, key, value and the MLP of two blocks; of the last, the MLP.
    assert len(again) == 2 * 5 + 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_a_quantized_model_can_be_called_in_training(tiny_vit, images):
    model = tiny_vit()
    model.quantize("int8")
    np.testing.assert_allclose(
        model(images(), training=True), model(images(), training=False), atol=1e-5
    )
