"""Models of DINOv3's, EVA-02's, BEiT's, CLIP's and AIMv2's kind in ONNX and LiteRT.

In float32, and in int8.
"""

import numpy as np
import pytest
from tiny_model import small, with_random_weights

from keras_vit import devices
from serving.export import formats, quantization

WIDE = {"width": 24, "heads": 3, "mlp_dim": 32, "image_size": 16, "patch_size": 4}
KINDS = {
    "DINOv3": {
        "rotary": "centered",
        "position_embedding": "none",
        "register_tokens": 2,
        "key_bias": False,
        "layer_scale": 0.1,
    },
    "EVA-02": {
        "rotary": "grid",
        "rotary_pairing": "neighbors",
        "rotary_reference_grid": (3, 3),
        "swiglu": True,
        "mlp_norm": True,
        "attention_norm": True,
    },
    "RoPE-Mixed": {"rotary": "mixed", "rotary_pairing": "neighbors"},
    "BEiT": {"relative_bias": "every_layer", "position_embedding": "none"},
    "shared table": {"relative_bias": "shared"},
    "CLIP": {"embedding_norm": True, "embedding_bias": False, "gelu": "quick"},
    "AIMv2": {
        "norm": "rms",
        "swiglu": True,
        "patch_norm": True,
        "mlp_bias": False,
        "class_token": False,
        "pooling": "query",
    },
    "EVA-02 E": {"post_norm": True, "key_bias": False},
    "ViT-22B": {"parallel": True, "qk_norm": True},
    "18x2": {"branches": 2},
    "DeiT": {"distilled": True, "register_tokens": 1},
}
SLOW = ("RoPE-Mixed", "shared table", "CLIP", "EVA-02 E", "ViT-22B", "18x2", "DeiT")


@pytest.mark.parametrize("export_format", ["onnx", "litert"])
@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[pytest.mark.slow] if k in SLOW else []) for k in KINDS],
)
def test_its_file_answers_as_keras(kind, export_format, tmp_path):
    form = formats.FORMATS[export_format]
    for package in form.packages:
        pytest.importorskip(package)
    model = with_random_weights(small(**{**WIDE, **KINDS[kind]}), 3)
    path = tmp_path / form.file
    with devices.making_graphs_for("gpu"):  # as an export does
        form.writer(model, path, "pixels in [-1, 1]")
    images = np.random.default_rng(1).normal(size=(2, 16, 16, 3)).astype("float32")
    expected = model(images).numpy()
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(form.runner(path)(images), expected, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_its_int8_file_has_every_kernel_in_int8(kind, tmp_path):
    onnx = pytest.importorskip("onnx")
    form = formats.FORMATS["onnx"]
    model = with_random_weights(small(**{**WIDE, **KINDS[kind]}), 3)
    form.writer(model, tmp_path / "float32.onnx", "pixels in [-1, 1]")
    random = np.random.default_rng(1)
    batches = [random.normal(size=(8, 16, 16, 3)).astype("float32") for _ in range(4)]
    path = tmp_path / form.file
    quantization.quantize_onnx(tmp_path / "float32.onnx", path, batches)
    stored = onnx.load(path).graph.initializer
    int8 = [x for x in stored if x.data_type == onnx.TensorProto.INT8]
    kernels = [w for w in model.weights if w.path.endswith("/kernel")]
    assert len([x for x in int8 if len(x.dims) > 1]) == len(kernels)
    expected = model(batches[0]).numpy()
    error = np.abs(form.runner(path)(batches[0]) - expected).mean()
    assert 0 < error < 0.1 * np.abs(expected).mean()
