"""Every implementation of attention, against the equations in NumPy float64."""

import collections
import functools

import keras
import ml_dtypes
import numpy as np
import numpy_vit
import pytest
from long_cases import long_after
from tiny_model import numpy

from keras_vit import devices, layers
from keras_vit.devices import making_graphs_for
from keras_vit.layers import dot_product_attention as attention
from keras_vit.layers.positions import relative_bias_rows

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow only"
)
jax_only = pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX only")
B, A, K = 2, 6, 7


def inputs(queries, keys, dtype="float32"):
    """Queries, keys, values and the gradient of the output."""
    random = np.random.default_rng(5)
    lengths = (queries, keys, keys, queries)
    return [random.normal(size=(B, n, A, K)).astype(dtype) for n in lengths]


def equations(query, key, value):
    """Equations (6) and (7), and what their gradient needs."""
    weights = numpy_vit.softmax(np.einsum("bqak,bnak->baqn", query, key) / K**0.5)
    return np.einsum("baqn,bnak->bqak", weights, value), weights


def gradients_of_equations(query, key, value, upstream):
    _, weights = equations(query, key, value)
    of_value = np.einsum("baqn,bqak->bnak", weights, upstream)
    of_weights = np.einsum("bqak,bnak->baqn", upstream, value)
    mean = (of_weights * weights).sum(-1, keepdims=True)
    of_scores = weights * (of_weights - mean) / K**0.5
    return (
        np.einsum("baqn,bnak->bqak", of_scores, key),
        np.einsum("baqn,bqak->bnak", of_scores, query),
        of_value,
    )


def outputs_and_gradients(function, arrays):
    *arrays, upstream = map(keras.ops.convert_to_tensor, arrays)
    if keras.backend.backend() == "jax":
        import jax

        outputs, pullback = jax.vjp(function, *arrays)
        return outputs, pullback(upstream)
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(arrays)
        outputs = tf.function(function)(*arrays)
    return outputs, tape.gradient(outputs, arrays, upstream)


def check(function, arrays, tolerance):
    outputs, gradients = outputs_and_gradients(function, arrays)
    arrays = [x.astype("float64") for x in arrays]
    expected = [equations(*arrays[:3])[0], *gradients_of_equations(*arrays)]
    for actual, wanted in zip([outputs, *gradients], expected, strict=True):
        scale = np.abs(wanted).max()
        actual = numpy(keras.ops.cast(actual, "float32"))
        np.testing.assert_allclose(actual / scale, wanted / scale, atol=tolerance)


@pytest.mark.backend
@pytest.mark.parametrize("queries", [31, 1])
def test_whole_attention_equals_the_equations(queries):
    check(attention.whole, inputs(queries, 31), 1e-6)


@tensorflow_only
@pytest.mark.parametrize(
    ("queries", "scores", "where"),
    long_after(
        4,
        [
            (31, 31 * 31 * 5, "three heads"),
            (31, 31 * 30, "two blocks of queries, of 16 and 15"),
            (31, 31 * 4, "eight blocks, the last of 3"),
            (23, 31 * 23 * 2, "other queries"),
            (23, 31 * 23 * 6, "other queries"),
            (23, 31 * 30, "other queries"),
            (31, 31 * 31 * 6, "all heads of an image"),
            (31, 31 * 31, "one head"),
            (31, 1, "a block for each query"),
        ],
    ),
)
def test_blocks_and_their_gradients_equal_the_equations(
    monkeypatch, queries, scores, where
):
    monkeypatch.setitem(attention.BLOCK, "cpu", scores)
    check(attention.in_blocks, inputs(queries, 31), 1e-6)


@tensorflow_only
def test_blocks_of_a_batch_of_unknown_size(monkeypatch):
    import tensorflow as tf

    monkeypatch.setitem(attention.BLOCK, "cpu", 31 * 9)
    arrays = inputs(31, 31)[:3]
    shape = tf.TensorSpec((None, 31, A, K))
    call = tf.function(attention.in_blocks, input_signature=[shape] * 3)
    for batch in (0, 1, 2):
        part = [x[:batch] for x in arrays]
        np.testing.assert_allclose(call(*part), equations(*part)[0], atol=1e-5)


@pytest.mark.slow
@tensorflow_only
def test_blocks_compiled_by_xla(monkeypatch):
    import tensorflow as tf

    monkeypatch.setitem(attention.BLOCK, "cpu", 31 * 9)
    compiled = tf.function(attention.in_blocks, jit_compile=True)
    check(compiled, inputs(31, 31), 1e-6)


@tensorflow_only
@pytest.mark.parametrize("function", [attention.whole, attention.in_blocks])
def test_bfloat16_is_rounded_but_not_summed_in_bfloat16(monkeypatch, function):
    """2,000 equal weights: a sum in bfloat16 would stop growing at 256."""
    monkeypatch.setitem(attention.BLOCK, "cpu", 2000)
    random = np.random.default_rng(0)
    value = random.uniform(1, 2, size=(1, 2000, 2, K)).astype(ml_dtypes.bfloat16)
    zeros = np.zeros((1, 3, 2, K), ml_dtypes.bfloat16), np.zeros_like(value)
    outputs = function(*map(keras.ops.convert_to_tensor, (*zeros, value)))
    wanted = np.repeat(value.astype("float64").mean(1, keepdims=True), 3, axis=1)
    actual = numpy(keras.ops.cast(outputs, "float32"))
    np.testing.assert_allclose(actual, wanted, rtol=2**-7)
    check(functools.partial(function), inputs(31, 31, ml_dtypes.bfloat16), 0.02)


@jax_only
@pytest.mark.backend
@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(31, 31), (130, 130), (250, 480), (1, 250)])
def test_splash_attention_equals_the_equations(lengths):
    """Its kernel multiplies in bfloat16 on TPUs; interpreted it is exact."""
    splash = functools.partial(attention.splash, interpret=True)
    check(splash, inputs(*lengths), 1e-5)


@pytest.mark.parametrize(
    ("tokens", "block"),
    [(1, 128), (577, 128), (785, 128), (1025, 384), (2305, 512), (1370, 512)],
)
def test_splash_attention_has_the_largest_blocks_that_pad_little(tokens, block):
    assert attention._splash_block(tokens) == block


@jax_only
@pytest.mark.backend
@pytest.mark.parametrize("lengths", [(31, 31), (30, 30), (1, 31)])
def test_the_token_appended_for_cudnn_changes_nothing(lengths):
    padded = functools.partial(attention.cudnn, training=True, implementation="xla")
    check(padded, inputs(*lengths), 1e-6)


@jax_only
@pytest.mark.backend
@pytest.mark.parametrize("tokens", [197, 196])
def test_training_on_a_gpu_lowers_to_cudnn(monkeypatch, tokens):
    """Lowered without a GPU, which JAX would ask for its versions."""
    import jax
    from jax._src.cudnn import fused_attention_stablehlo as jax_cudnn

    monkeypatch.setattr(jax_cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(jax_cudnn, "check_compute_capability", lambda _: True)

    def total(*tensors):
        return attention.dot_product_attention(*tensors, training=True).sum()

    shape = jax.ShapeDtypeStruct((2, tokens, 12, 64), "bfloat16")
    with making_graphs_for("gpu"):
        gradient = jax.jit(jax.grad(total)).trace(shape, shape, shape)
    program = gradient.lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("@__cudnn$fmhaSoftmax(") == 1
    assert program.count("@__cudnn$fmhaSoftmaxBackward(") == 1


@pytest.mark.parametrize(
    ("backend", "platform", "tokens", "name"),
    [
        ("tensorflow", "cpu", 17, "whole"),
        ("tensorflow", "cpu", 256, "whole"),
        ("tensorflow", "cpu", 257, "in_blocks"),
        ("tensorflow", "cpu", None, "whole"),
        ("tensorflow", "gpu", 2048, "whole"),
        ("tensorflow", "gpu", 2049, "in_blocks"),
        ("tensorflow", "tpu", 2048, "whole"),
        ("jax", "cpu", 4097, "whole"),
        ("jax", "gpu", 197, "cudnn"),
        ("jax", "tpu", 1024, "whole"),
        ("jax", "tpu", 1025, "splash"),
    ],
)
def test_the_implementation_follows_device_and_length(
    monkeypatch, backend, platform, tokens, name
):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    with making_graphs_for(platform):
        chosen = attention.implementation(tokens, tokens, training=True)
    assert getattr(chosen, "func", chosen).__name__ == name


def test_graphs_are_made_for_this_process_s_devices_otherwise():
    with making_graphs_for("tpu"), making_graphs_for("gpu"):
        assert devices.platform() == "gpu"
    assert devices.platform() == "cpu"


@jax_only
@pytest.mark.backend
def test_inference_on_a_gpu_takes_odd_numbers_of_tokens_as_they_are():
    shape = keras.ops.ones((1, 197, 2, 8), "float16")
    run = functools.partial(attention.cudnn, implementation="xla")
    import jax

    assert "pad" not in str(jax.make_jaxpr(run)(shape, shape, shape))
    trained = functools.partial(run, training=True)
    assert "pad" in str(jax.make_jaxpr(trained)(shape, shape, shape))


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_flash_attention_can_be_disabled(monkeypatch, platform):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(keras.config, "is_flash_attention_enabled", lambda: False)
    with making_graphs_for(platform):
        assert attention.implementation(1577, 1577) is attention.whole


def test_flash_attention_that_the_device_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(keras.config, "is_flash_attention_enabled", lambda: True)
    with pytest.raises(ValueError, match=r"needs Keras on JAX with a GPU or TPU.*\("):
        attention.implementation(577, 577)


@jax_only
@pytest.mark.backend
def test_flash_attention_that_cudnn_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(keras.config, "is_flash_attention_enabled", lambda: True)
    query = keras.ops.ones((1, 4, 2, 8), "float32")
    with (
        making_graphs_for("gpu"),
        pytest.raises(ValueError, match="cuDNN's flash attention needs half precision"),
    ):
        attention.dot_product_attention(query, query, query)


# 17 x 16 patches and the class token: 273 tokens, all of which ask in the one block.
LONG = {"image_size": (34, 32), "depth": 1, "pooling": "avg"}


def tensors(model, images):
    """Shape to count of the tensors in the graph of a training step, loops included."""
    import tensorflow as tf

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    graph = step.get_concrete_function(tf.TensorSpec(images.shape)).graph
    graphs, seen = [graph], set()
    shapes: collections.Counter = collections.Counter()
    while graphs:
        current = graphs.pop()
        for operation in current.get_operations():
            shapes.update(str(tensor.shape) for tensor in operation.outputs)
            for attribute in operation.node_def.attr.values():
                name = attribute.func.name
                if name and name not in seen:
                    seen.add(name)
                    if found := current._get_function(name):
                        graphs.append(found.graph)
    return shapes


@tensorflow_only
@pytest.mark.parametrize(
    ("kwargs", "whole"),
    long_after(1, [({}, False), ({"attention_dropout": 0.1}, True)]),
)
def test_no_tensor_of_a_long_sequence_is_quadratic(
    tiny_vit, monkeypatch, kwargs, whole
):
    """Where attention dropout needs the weights, there is one, and it is found."""
    monkeypatch.setitem(attention.BLOCK, "cpu", 273 * 100)
    model = tiny_vit(**LONG, **kwargs)
    images = np.ones((2, *LONG["image_size"], 3), "float32")
    quadratic = [shape for shape in tensors(model, images) if shape.count("273") > 1]
    assert bool(quadratic) == whole, quadratic


@pytest.mark.slow
@tensorflow_only
def test_a_long_sequence_has_the_logits_and_gradients_of_whole_attention(
    tiny_vit, monkeypatch
):
    import tensorflow as tf

    monkeypatch.setitem(attention.BLOCK, "cpu", 273 * 100)
    images = np.random.default_rng(1).uniform(-1, 1, (2, 34, 32, 3)).astype("float32")
    model, results = tiny_vit(**LONG), []
    for name in ("in_blocks", "whole"):
        function = getattr(attention, name)
        monkeypatch.setattr(attention, "implementation", lambda *_, f=function: f)
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
        results.append([logits, *tape.gradient(logits, model.trainable_variables)])
    for blocks, whole in zip(*results, strict=True):
        scale = max(1.0, np.abs(whole).max())
        np.testing.assert_allclose(blocks / scale, whole / scale, atol=1e-5)


@tensorflow_only
def test_gradients_of_beits_relative_positions_are_dense():
    """Sparse ones, of a lookup, cannot be all-reduced efficiently."""
    import tensorflow as tf

    layer = layers.RelativeBias((2, 3), 5)
    with tf.GradientTape() as tape:
        bias = layer(np.zeros((1, 7, 15), "float32"))
    gradient = tape.gradient(bias, layer.table.value)
    assert isinstance(gradient, tf.Tensor)
    _, pairs = np.unique(relative_bias_rows((2, 3)), return_counts=True)
    np.testing.assert_array_equal(gradient, np.repeat(pairs[:, None], 5, axis=1))
