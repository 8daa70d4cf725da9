"""Files of every family load into our model: right numbers, and a right report."""

import functools
import json

import foreign_weights as foreign
import keras
import ml_dtypes
import numpy as np
import numpy_resnet
import numpy_vit
import pytest
from foreign_files import (
    arrays_of,
    big_vision,
    check_same_weights,
    google,
    hugging_face,
    keras_hub,
    timm,
    write_hdf5,
    write_npz,
    write_safetensors,
)
from long_cases import long_after
from published_files import as_void, inlined, prefixed, stacked
from tiny_model import NO_QKV_BIASES, numpy

from keras_vit.resnet import ResNet
from keras_vit.weights.loading import assign, fresh_copy, load_checkpoint

pytestmark = pytest.mark.backend

EXACT = {"gelu": "exact"}
HUGGING_FACE = {"gelu": "exact", "norm_epsilon": 1e-12}
BIG_VISION = {"prefix_positions": False}
MAP = {"pooling": "map", "class_token": False}
ONE = {"depth": 1}
HYBRID = {"image_size": (32, 64), "resnet_blocks": (1, 2), "patch_size": 2}


def check_loaded(model, source, report, family):
    """Every weight came from the file, bit by bit."""
    assert report.family == family
    assert sorted(report.used) == sorted(weight.path for weight in model.weights)
    assert report.unused == report.missing == report.dropped == []
    check_same_weights(model, source)


FILES = [
    (google, {}),
    (google, {"pooling": "avg", "class_token": False, **ONE}),
    (big_vision, {**MAP, **ONE}),
    (big_vision, BIG_VISION),
    (timm, EXACT),
    (timm, {**EXACT, **ONE, "register_tokens": 4, "prefix_positions": False}),
    (timm, {**EXACT, "layer_scale": 0.1, "qk_norm": True}),
    (hugging_face, HUGGING_FACE),
    (keras_hub, {**EXACT, **ONE, "representation_size": 9}),
]
LONG_FILES = [
    (google, {"representation_size": 9, **ONE}),
    (google, {"classes": None, **ONE}),
    (big_vision, {"pooling": "avg", "class_token": False, **ONE}),
    (big_vision, {"position_embedding": "sincos2d", "width": 20, **MAP, **ONE}),
    (timm, {**EXACT, **MAP, **ONE}),
    (timm, {**EXACT, **ONE, **MAP, "pooling": "avg", "fc_norm": True}),
    (timm, {**EXACT, **ONE, "pooling": "avg", "fc_norm": True}),
    (timm, {**EXACT, **ONE, "register_tokens": 4}),
    (timm, {**EXACT, "layer_scale": 0.1, "prefix_positions": False}),  # DeiT III
    (timm, {**EXACT, "layer_scale": 0.1, "swiglu": True}),
    (
        hugging_face,
        {**HUGGING_FACE, **ONE, "classes": None, "representation_size": 15},
    ),
    (keras_hub, EXACT),
    (keras_hub, {**EXACT, **NO_QKV_BIASES, "output_bias": False}),
]


@pytest.mark.parametrize(
    ("writer", "kwargs"), long_after(len(FILES), FILES + LONG_FILES)
)
def test_a_file_gives_its_weights_and_its_logits(
    writer, kwargs, tiny_vit, images, tmp_path
):
    source, model = tiny_vit(**kwargs), tiny_vit(seed=12, **kwargs)
    report = load_checkpoint(model, writer(source, tmp_path))
    check_loaded(model, source, report, writer.__name__)
    assert report.resampled == report.adapted == {}
    numpy_vit.check_outputs(model, images(), source, atol=2e-5)


def test_hybrids_are_loaded(tiny_vit, tmp_path):
    source, model = tiny_vit(**HYBRID), tiny_vit(seed=12, **HYBRID)
    report = load_checkpoint(model, google(source, tmp_path))
    check_loaded(model, source, report, "google")
    pixels = np.random.default_rng(0).uniform(-1, 1, (2, 32, 64, 3))
    numpy_vit.check_outputs(model, pixels, source, atol=1e-4)


def test_resnets_of_bit_are_loaded(tmp_path):
    def build(seed):
        keras.utils.set_random_seed(seed)
        model = ResNet(image_size=(32, 48), blocks=(1, 2), classes=7)
        random = np.random.default_rng(seed)
        for weight in model.weights:
            weight.assign(random.normal(scale=0.3, size=weight.shape))
        return model

    source, model = build(1), build(2)
    path = write_npz(tmp_path / "bit.npz", foreign.bit(arrays_of(source)))
    check_loaded(model, source, load_checkpoint(model, path), "bit")
    pixels = np.random.default_rng(0).uniform(-1, 1, (2, 32, 48, 3))
    expected = numpy_resnet.bit(source, pixels)
    np.testing.assert_allclose(numpy(model(pixels)), expected, rtol=0, atol=1e-4)


def renamed(module):
    def rename(arrays):
        arrays[f"Transformer/{module}pos_embedding"] = arrays.pop("pos_embedding")
        return arrays

    return rename


# Other forms of a family's files: the family, a model, and what becomes of its arrays.
SCAN = functools.partial(stacked, combine=np.stack)
FORMS = {
    "training": ("google", {}, functools.partial(prefixed, "opt/target/")),
    "parameters": ("google", {}, functools.partial(prefixed, "params/")),
    "image tower": ("big_vision", MAP, functools.partial(prefixed, "params/img/")),
    "blocks of a scan": ("google", {"depth": 3}, SCAN),
    "pooling without a module": ("big_vision", MAP, inlined),
    "positions before 2022": ("big_vision", {}, renamed("")),
    "positions in a module": ("big_vision", {}, renamed("posembed_input/")),
    "big_vision's scan": ("big_vision", {"depth": 3, **BIG_VISION}, SCAN),
}
MOMENTS = {"opt/state/param_states/head/bias/grad_ema": np.ones(7)}
TEXT_TOWER = {"params/t": np.ones(1), "params/txt/encoder_norm/bias": np.ones(15)}
BESIDE = {"training": MOMENTS, "parameters": MOMENTS, "image tower": TEXT_TOWER}


@pytest.mark.parametrize("form", long_after(7, FORMS))
def test_other_forms_of_a_familys_files_are_loaded(form, tiny_vit, tmp_path):
    family, kwargs, change = FORMS[form]
    source, model = tiny_vit(**kwargs), tiny_vit(seed=12, **kwargs)
    usual, beside = getattr(foreign, family)(arrays_of(source), 5), BESIDE.get(form, {})
    arrays = change(dict(usual))
    assert arrays.keys() != usual.keys()
    path = write_npz(tmp_path / "a.npz", {**beside, **arrays})
    report = load_checkpoint(model, path)
    check_loaded(model, source, report, family)
    assert report.outside == sorted(beside)
    assert ("not part of the model: " in str(report)) == bool(beside)


@pytest.mark.parametrize(
    ("writer", "dtype"),
    [
        *[(google, name) for name in ("float16", "void16", "float64")],
        *[(timm, name) for name in ("float16", "bfloat16", "float64")],
    ],
)
def test_other_floats_become_float32(writer, dtype, tiny_vit, tmp_path, monkeypatch):
    kwargs = {"gelu": {google: "tanh", timm: "exact"}[writer]}
    source, model = tiny_vit(**kwargs), tiny_vit(seed=12, **kwargs)
    convert = {
        "void16": as_void,
        "bfloat16": lambda array: array.astype(ml_dtypes.bfloat16),
    }.get(dtype, lambda array: array.astype(dtype))
    name = writer.__name__
    original = getattr(foreign, name)
    monkeypatch.setattr(
        foreign, name, lambda *a: {k: convert(v) for k, v in original(*a).items()}
    )
    report = load_checkpoint(model, writer(source, tmp_path))
    type_name = "bfloat16" if dtype == "void16" else dtype
    numbers = ml_dtypes.bfloat16 if type_name == "bfloat16" else type_name
    expected = arrays_of(source)
    for path, weight in arrays_of(model).items():
        rounded = expected[path].astype(numbers).astype("float32")
        assert weight.tobytes() == rounded.tobytes()
    assert set(report.adapted.values()) == {f"from {type_name}"}
    assert len(report.adapted) == len(model.weights)


def test_a_model_in_half_precision_keeps_float32_weights(tiny_vit, tmp_path):
    source, model = tiny_vit(), tiny_vit(seed=12, dtype="mixed_bfloat16")
    report = load_checkpoint(model, google(source, tmp_path))
    check_loaded(model, source, report, "google")


def test_the_weight_names_of_transformers_5_are_known(tiny_vit, tmp_path):
    source, model = tiny_vit(**HUGGING_FACE), tiny_vit(seed=12, **HUGGING_FACE)
    path = hugging_face(source, tmp_path, release=5)
    report = load_checkpoint(model, path)
    check_loaded(model, source, report, "hugging_face")
    assert report.used["encoder_block_1/attention/key/bias"] == (
        "vit.layers.1.attention.k_proj.bias"
    )


def test_a_sharded_checkpoint_is_loaded(tiny_vit, tmp_path):
    source, model = tiny_vit(**HUGGING_FACE), tiny_vit(seed=12, **HUGGING_FACE)
    hugging_face(source, tmp_path)
    arrays = foreign.hugging_face(arrays_of(source))
    (tmp_path / "model.safetensors").unlink()
    places = {}
    for number in (1, 2):
        part = dict(list(arrays.items())[number - 1 :: 2])
        name = f"model-0000{number}-of-00002.safetensors"
        write_safetensors(tmp_path / name, part)
        places |= dict.fromkeys(part, name)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    for path in (tmp_path, index):
        check_loaded(model, source, load_checkpoint(model, path), "hugging_face")


def test_a_data_parallel_state_dict_is_loaded(tiny_vit, tmp_path):
    source, model = tiny_vit(**EXACT), tiny_vit(seed=12, **EXACT)
    arrays = prefixed("module.", foreign.timm(arrays_of(source)))
    path = write_safetensors(tmp_path / "model.safetensors", arrays)
    check_loaded(model, source, load_checkpoint(model, path), "timm")


def test_a_keras_hub_checkpoint_in_one_file_is_loaded(tiny_vit, tmp_path):
    source, model = tiny_vit(**EXACT), tiny_vit(seed=12, **EXACT)
    backbone, head = foreign.keras_hub(arrays_of(source), 5)
    arrays = {**prefixed("layers/vi_t_backbone/", backbone), **head}
    path = write_hdf5(tmp_path / "classifier.weights.h5", arrays)
    report = load_checkpoint(model, path)
    check_loaded(model, source, report, "keras_hub")
    assert report.outside == ["optimizer/vars/0", "optimizer/vars/1"]


def test_the_report_names_the_family_the_file_and_its_arrays(tiny_vit, tmp_path):
    source, model = tiny_vit(), tiny_vit(seed=12)
    path = google(source, tmp_path)
    report = load_checkpoint(model, path)
    assert str(report) == (
        f"Google ViT (.npz of the paper, AugReg, SAM): {path}\n"
        f"  {len(model.weights)} weights loaded"
    )
    assert report.used["head/kernel"] == "head/kernel"
    assert report.used["encoder_block_1/norm2/gamma"] == (
        "Transformer/encoderblock_1/LayerNorm_2/scale"
    )


@pytest.mark.parametrize("writer", [google, timm])
def test_a_weight_does_not_change_with_the_file(writer, tiny_vit, tmp_path):
    """The file is mapped; a backend that kept a view of it would show other numbers."""
    kwargs = {"width": 640, **ONE, "gelu": "tanh" if writer is google else "exact"}
    source, model = tiny_vit(**kwargs), tiny_vit(seed=12, **kwargs)
    path = writer(source, tmp_path)
    report = load_checkpoint(model, path)
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    check_loaded(model, source, report, writer.__name__)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (3,), (700, 901), (5, 70, 901), (0, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_assigning_an_array_of_any_shape_order_and_type(order, shape, dtype):
    array = np.random.default_rng(0).normal(size=shape).astype("float32", order=order)
    weight = keras.Variable(np.zeros(shape), dtype=dtype)
    assign(weight, fresh_copy(array, dtype))
    expected = array.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    np.testing.assert_array_equal(numpy(weight).astype("float32"), expected)
    weight.assign(keras.ops.add(weight, 1))  # it belongs to the weight
    np.testing.assert_allclose(numpy(weight), expected.astype(float) + 1, atol=0.05)
