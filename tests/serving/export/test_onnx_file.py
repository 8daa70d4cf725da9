"""ONNX files in onnxruntime: the numbers, exact GELUs, and what conversion copies."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_model import small_classifier

import keras_vit
from serving.export import onnx_file

pytest.importorskip("tf2onnx")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(autouse=True)
def seeded():
    """The same random weights in any order of the tests."""
    keras.utils.set_random_seed(0)


def compare(model, path):
    """Write a model and return the file's graph, after onnxruntime agreed."""
    onnx_file.write(model, path, "pixels in [-1, 1]")
    onnx.checker.check_model(path)
    images = np.random.default_rng(1).normal(size=(3, *model.input_shape[1:]))
    images = images.astype("float32")
    [answer] = onnxruntime.InferenceSession(path).run(None, {"images": images})
    expected = model(images).numpy()
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(answer, expected, atol=1e-5)
    return onnx.load(path).graph


def test_an_exact_gelu_is_one_operation_of_onnxruntime(tiny_vit, tmp_path):
    graph = compare(tiny_vit(gelu="exact", depth=1), tmp_path / "m.onnx")
    assert "Erfc" not in {node.op_type for node in graph.node}
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    onnxruntime.InferenceSession(tmp_path / "m.onnx", options)
    fused = onnx.load(tmp_path / "fused.onnx").graph
    assert [node.op_type for node in fused.node].count("Gelu") == 1
    assert "Erf" not in {node.op_type for node in fused.node}


@pytest.mark.slow
def test_the_padding_of_bit_is_the_largest_where_all_are_negative(tmp_path):
    """onnxruntime makes of a Pad of exactly zero the pool's own, the lowest number."""
    model = keras_vit.ResNet(image_size=(13, 22), blocks=(1,), classes=2)
    kernel = model.get_layer("stem_conv").kernel
    kernel.assign(np.random.default_rng(2).normal(size=kernel.shape))
    head = model.get_layer("head").kernel
    head.assign(np.random.default_rng(3).normal(scale=0.1, size=head.shape))
    compare(model, tmp_path / "m.onnx")


def test_another_padding_before_a_pool_is_kept(tmp_path):
    model = small_classifier(
        keras.layers.Conv2D(3, 2, bias_initializer=keras.initializers.Constant(-2)),
        keras.layers.Lambda(
            lambda x: tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], constant_values=0.7)
        ),
        keras.layers.MaxPooling2D(3, 2),
        classes=2,
    )
    model.get_layer("head").kernel.assign([[0.1, 0.2], [0.3, 0.4], [0.5, 0.7]])
    compare(model, tmp_path / "m.onnx")


@pytest.mark.parametrize("function", [tf.math.erfc, lambda x: tf.math.erfc(-x * x)])
def test_another_erfc_is_converted_too(tmp_path, function):
    layers = keras.layers.Lambda(function), keras.layers.Conv2D(4, 3)
    model = small_classifier(*layers, classes=2)
    model.get_layer("head").kernel.assign(np.eye(4, 2))
    compare(model, tmp_path / "m.onnx")


def test_a_file_holds_the_weights_but_no_seeds(tiny_vit, tmp_path):
    model = tiny_vit(depth=1, dropout=0.1, stochastic_depth=0.1)
    assert len(model.variables) > len(model.weights)
    graph = compare(model, tmp_path / "m.onnx")
    assert [value.name for value in graph.input] == ["images"]
    weights = [v.name for v in graph.initializer if v.name.startswith("weight_")]
    assert len(weights) == len(model.weights)


def test_what_tf2onnx_copies_holds_no_weight(tiny_vit, tmp_path, monkeypatch):
    import tf2onnx

    model, sizes = tiny_vit(), []
    convert = tf2onnx.convert.from_function

    def measured(*args, **kwargs):
        written, storage = convert(*args, **kwargs)
        sizes.append(sum(len(v.raw_data) for v in written.graph.initializer))
        return written, storage

    monkeypatch.setattr(tf2onnx.convert, "from_function", measured)
    compare(model, tmp_path / "m.onnx")
    [size] = sizes
    assert size < 0.02 * 4 * model.count_params()
