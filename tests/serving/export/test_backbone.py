"""The backbone of a SavedModel: equations, precision, fused layers."""

import collections

import keras
import numpy as np
import numpy_resnet
import numpy_vit
import pytest
import tensorflow as tf
from processor import BFLOAT16_KERNELS
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.util._pywrap_util_port import IsMklEnabled

import keras_vit
from serving.export import signatures
from serving.export.backbone import Backbone, in_precision, make_backbone
from serving.export.options import ExportOptions

FORMS = {
    "token": {"classifier_activation": "softmax", "class_names": [*"abcdefg"]},
    "gap": {
        "pooling": "avg",
        "class_token": False,
        "representation_size": 13,
        "fc_norm": True,
        "dropout": 0.1,
    },
    "map": {
        "depth": 1,
        "pooling": "map",
        "register_tokens": 4,
        "gelu": "exact",
        "norm_epsilon": 0.3,
        "layer_scale": 0.1,
        "qk_norm": True,
    },
    "relative": {"position_embedding": "relative", "position_placement": "shared"},
    "axial": {
        "depth": 1,
        "attention": "axial",
        "pooling": "avg",
        "class_token": False,
    },
    "rounded": {"dtype": "mixed_bfloat16", "stochastic_depth": 0.2},
}
BIT = {"image_size": (33, 26), "blocks": (1, 2), "channels": 5, "classes": 7}


SCALES = ("gamma", "moving_variance")
ON_ONEDNN = pytest.mark.skipif(
    not IsMklEnabled(), reason="TensorFlow uses oneDNN on x86-64 with AVX512_VNNI"
)


def randomized(model):
    """Randomize all weights of a model, and create images for it."""
    random = np.random.default_rng(7)
    for weight in model.weights:
        noise = random.normal(scale=0.3, size=weight.shape)
        weight.assign(1 + noise**2 if weight.name in SCALES else noise)
    images = random.uniform(-1, 1, (2, *model.image_size, model.channels))
    return model, images.astype("float32")


def convolutional():
    """A network of Keras layers: nested, with BatchNorm and an operation."""
    images = keras.Input((10, 14, 3))
    x = keras.layers.Conv2D(8, 3, name="conv")(images)
    x = keras.layers.BatchNormalization()(keras.ops.relu(x))
    inner = keras.Sequential([keras.Input((8, 12, 8)), keras.layers.Conv2D(16, 3)])
    x = keras.layers.LayerNormalization()(inner(x))
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(x), name="net")


def around(backbone, **kwargs):
    return keras_vit.ImageClassifier(backbone=backbone, classes=4, **kwargs)


@pytest.fixture
def answer(tmp_path):
    """Write a SavedModel, and run it in a session as TensorFlow Serving does."""

    def run(backbone, images, call=None, batched=False):
        spec = tf.TensorSpec([None, *images.shape[1:]], tf.float32, "pixel_values")
        call = backbone if call is None else call
        call = in_a_batch(call, spec) if batched else call
        function = tf.function(lambda x: call(x), input_signature=[spec])
        tf.saved_model.save(backbone, str(tmp_path), signatures={"f": function})
        return session_run(tmp_path, images)

    return run


def in_a_batch(function, spec):
    """The function as a batching op calls it."""
    inner = tf.function(function, input_signature=[spec]).get_concrete_function()

    def call(pixel_values):
        outputs = tf.raw_ops.BatchFunction(
            in_tensors=[pixel_values],
            captured_tensors=inner.captured_inputs,
            f=inner,
            num_batch_threads=1,
            max_batch_size=4,
            batch_timeout_micros=0,
            Tout=[tensor.dtype for tensor in inner.outputs],
        )
        return tf.nest.pack_sequence_as(inner.structured_outputs, outputs)

    return call


def session_run(folder, images, name="f"):
    """The outputs of a signature, and the operations that ran, counted."""
    metadata = config_pb2.RunMetadata()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        signature = graph.signature_def[name]
        values = session.run(
            {name: tensor.name for name, tensor in signature.outputs.items()},
            {signature.inputs["pixel_values"].name: images},
            options=config_pb2.RunOptions(trace_level=3),
            run_metadata=metadata,
        )
    nodes = [
        node for stats in metadata.step_stats.dev_stats for node in stats.node_stats
    ]
    labels = (node.timeline_label.partition(" = ")[2] for node in nodes)
    return values, collections.Counter(label.partition("(")[0] for label in labels)


@pytest.mark.parametrize(
    "form",
    [
        "token",
        pytest.param("gap", marks=pytest.mark.slow),
        pytest.param("map", marks=pytest.mark.slow),
        pytest.param("relative", marks=pytest.mark.slow),
        "axial",
        pytest.param("rounded", marks=pytest.mark.slow),
    ],
)
def test_a_vision_transformer_answers_by_the_equations(tiny_vit, answer, form):
    model, images = randomized(tiny_vit(**FORMS[form]))
    values, _ = answer(make_backbone(model, target="cpu"), images)
    expected = numpy_vit.forward(model, images)
    np.testing.assert_allclose(values["logits"], expected, rtol=0, atol=1e-5)
    head = model.get_layer("head")
    scores = values["embedding"] @ head.kernel.numpy() + head.bias.numpy()
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("inner", "precision"),
    [
        ("net", "bfloat16"),
        ("vit", "float32"),
        pytest.param("net", "float32", marks=pytest.mark.slow),
        pytest.param("vit", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_any_keras_network_gives_its_own_outputs(tiny_vit, answer, inner, precision):
    backbone = convolutional() if inner == "net" else tiny_vit(classes=None, depth=1)
    model, images = randomized(around(backbone, classifier_activation="softmax"))
    values, _ = answer(make_backbone(model, precision), images)
    tolerance = 1e-4 if precision == "float32" else 5e-2
    expected = model(images).numpy()
    scores = tf.nn.softmax(values["logits"])
    np.testing.assert_allclose(scores, expected, rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["map", "token", "gap"])
def test_bfloat16_is_close_and_returns_float32(tiny_vit, answer, form):
    model, images = randomized(tiny_vit(**FORMS[form]))
    values, _ = answer(make_backbone(model, "bfloat16"), images)
    expected = numpy_vit.forward(model, images)
    distance = np.abs(values["logits"] - expected).max()
    assert 1e-5 < distance < 0.05 * np.abs(expected).max()
    assert {value.dtype.name for value in values.values()} == {"float32"}


@pytest.mark.slow
def test_bfloat16_weights_take_half_the_bytes(tiny_vit, answer, tmp_path):
    model, images = randomized(tiny_vit(width=60, depth=4))
    sizes = {}
    for precision in ("float32", "bfloat16"):
        backbone = make_backbone(model, precision)
        answer(backbone, images)
        sizes[precision] = sum(f.stat().st_size for f in tmp_path.glob("variables/*"))
        dtypes = collections.Counter(v.dtype.name for v in backbone.variables)
    assert dtypes == {"float32": 2, "bfloat16": len(model.weights) - 2}  # 2: the head
    assert sizes["bfloat16"] < 0.55 * sizes["float32"]


@pytest.mark.parametrize(
    "precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)]
)
def test_a_resnet_answers_by_the_equations_with_precomputed_kernels(answer, precision):
    model, images = randomized(keras_vit.ResNet(**BIT))
    before = model.get_weights()
    backbone = make_backbone(model, precision, "cpu")
    expected = numpy_resnet.standardized(before[0].astype("float64"), "bit")
    kernel = tf.cast(backbone.variables[0], tf.float32).numpy()
    tolerance = 1e-5 if precision == "float32" else 5e-2
    np.testing.assert_allclose(kernel, expected, rtol=0, atol=tolerance)
    values, held = answer(backbone, images)
    if precision == "float32":
        expected = numpy_resnet.bit(model, images)
        np.testing.assert_allclose(values["logits"], expected, rtol=0, atol=2e-4)
    raw = Backbone(in_precision(model, precision), "cpu")
    _, made_each_time = answer(raw, images)
    kernels = sum(len(weight.shape) == 4 for weight in model.weights)
    assert made_each_time["SquaredDifference"] - held["SquaredDifference"] == kernels
    for ours, theirs in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
@ON_ONEDNN
@pytest.mark.optimized
@pytest.mark.parametrize(
    "precision", ["float32", pytest.param("bfloat16", marks=BFLOAT16_KERNELS)]
)
@pytest.mark.parametrize("batched", [False, True])
def test_layers_are_fused_inside_a_batching_operation(
    tiny_vit, answer, batched, precision
):
    """Blocks of 6 dense layers, and the head."""
    model, images = randomized(tiny_vit(depth=2))
    backbone = make_backbone(model, precision)
    _, operations = answer(backbone, images, batched=batched)
    assert operations["_MklNativeFusedMatMul"] == 2 * 6 + 1
    assert not {"BiasAdd", "Tanh", "_MklMatMul"} & operations.keys()
    assert operations["ReadVariableOp"] == len(model.weights)


# What `serve_pixels` does beside the network: its checks, softmax, and the queue.
AROUND = {"Shape", "GreaterEqual", "LessEqual", "LogicalAnd", "Assert", "Identity"}
AROUND |= {"EnsureShape", "IsFinite", "Pack", "Reshape", "All", "Cast", "ArgMin"}
AROUND |= {"StridedSlice", "Softmax", "_MklSoftmax", "BatchFunction", "Const"}
AROUND |= {"PartitionedCall", "StatefulPartitionedCall", "NoOp", "_Arg", "_Retval"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batching", "precision"), [("graph", "float32"), ("none", "bfloat16")]
)
def test_an_export_runs_no_more_operations_than_the_backbone(
    tiny_vit, answer, tmp_path, only, batching, precision
):
    """Otherwise the served model is slower than `benchmarks.forward` measures."""
    model, images = randomized(tiny_vit(depth=3))
    _, bare = answer(make_backbone(model, precision, "cpu"), images)
    only("serve_pixels")
    options = ExportOptions(batching=batching, precision=precision, target="cpu")
    signatures.save(model, tmp_path / "1", options)
    _, served = session_run(tmp_path / "1", images, "serve_pixels")
    network = {operation: n for operation, n in bare.items() if operation not in AROUND}
    assert {operation: served[operation] for operation in network} == network
    assert set(served - bare) <= AROUND
    assert served["ReadVariableOp"] == len(model.weights)


def test_another_precision_is_refused(tiny_vit):
    with pytest.raises(ValueError, match="`precision`.*'float16'"):
        make_backbone(tiny_vit(), "float16")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_a_quantized_model_is_refused(tiny_vit):
    model = tiny_vit(depth=1, pooling="avg", class_token=False)
    model.quantize("int8")
    with pytest.raises(ValueError, match="quantized"):
        make_backbone(model)


def test_a_network_that_cannot_be_cloned_is_refused():
    class Stubborn(keras.layers.Layer):
        def __init__(self, must):
            super().__init__()

        def call(self, x):
            return x

    images = keras.Input((10, 14, 3))
    x = keras.layers.GlobalAveragePooling2D()(Stubborn(must=1)(images))
    with pytest.raises(ValueError, match="`backbone` must be a functional model"):
        make_backbone(around(keras.Model(images, x)))
