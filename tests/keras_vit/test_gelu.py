"""The GELU's implementations: their numbers, and which one a graph holds."""

import itertools

import keras
import numpy as np
import numpy_vit
import pytest
from tiny_model import numpy

from keras_vit import devices
from keras_vit.layers import MLP, gelu

KINDS = ("tanh", "exact")
on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow only"
)


@pytest.fixture(params=[True, False], ids=["AVX2", "AVX-512"])
def lacks_avx512(request, monkeypatch):
    monkeypatch.setattr(devices, "lacks_avx512", lambda: request.param)
    return request.param


@pytest.mark.parametrize("name", ["tanh", "tanh_as_sigmoid", "exact"])
def test_each_implementation_equals_the_equation(name):
    x = np.concatenate([np.linspace(-12, 12, 999), [-1e4, -0.0, 1e4]]).astype("float32")
    outputs = numpy(getattr(gelu, name)(keras.ops.convert_to_tensor(x)))
    kind = name.partition("_")[0]
    wanted = numpy_vit.gelu(x.astype("float64"), kind)
    np.testing.assert_allclose(outputs, wanted, rtol=1e-5, atol=1e-6)


@on_tensorflow
def test_only_inference_in_float32_without_avx512_takes_another_form(lacks_avx512):
    for kind, training, dtype in itertools.product(
        KINDS, (False, True), ("float32", "bfloat16")
    ):
        wanted = getattr(gelu, kind)
        if lacks_avx512 and (kind, training, dtype) == ("tanh", False, "float32"):
            wanted = gelu.tanh_as_sigmoid
        assert gelu.implementation(kind, training, dtype) is wanted


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_a_graph_for_elsewhere_does_not_depend_on_this_processor(
    platform, lacks_avx512
):
    with devices.making_graphs_for(platform):
        assert gelu.implementation("tanh", False, "float32") is gelu.tanh


@on_tensorflow
@pytest.mark.parametrize("kind", KINDS)
def test_an_mlp_equals_the_equation_on_every_processor(kind, lacks_avx512):
    layer = MLP(12, gelu=kind)
    layer.build((None, 3, 8))
    random = np.random.default_rng(1)
    weights = [random.normal(size=w.shape) for w in layer.weights]
    layer.set_weights(weights)
    tokens = random.normal(size=(2, 3, 8)).astype("float32")
    hidden = numpy_vit.gelu(tokens @ weights[0] + weights[1], kind)
    wanted = hidden @ weights[2] + weights[3]
    np.testing.assert_allclose(numpy(layer(tokens)), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("flags", "lacking"),
    [
        ("fpu sse2 avx avx2 fma", True),
        ("fpu sse2 avx avx2 fma avx512f avx512_vnni", False),
        ("fp asimd sve", False),  # aarch64
        (None, False),  # not Linux
    ],
)
def test_the_processor_is_read_from_linux(flags, lacking, monkeypatch):
    def read_text(path, encoding):
        assert str(path) == "/proc/cpuinfo"
        if flags is None:
            raise FileNotFoundError(path)
        return f"processor\t: 0\nflags\t\t: {flags}\n"

    monkeypatch.setattr("pathlib.Path.read_text", read_text)
    assert devices.lacks_avx512.__wrapped__() is lacking
