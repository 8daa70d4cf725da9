"""DINOv2's checkpoints, with and without registers and a SwiGLU."""

import json
import logging

import foreign_weights as foreign
import numpy as np
import numpy_vit
import pytest
from foreign_files import (
    arguments_of,
    arrays_of,
    check_same_options,
    check_same_weights,
    check_unmoved,
    hugging_face_dinov2,
    timm,
    write_safetensors,
)
from long_cases import long_after

import keras_vit
from keras_vit.weights import CheckpointError, WeightsFileError

pytestmark = pytest.mark.backend

# The class rounds the hidden layer of a SwiGLU to multiples of 8.
DINOV2 = {"classes": None, "layer_scale": 0.1, "gelu": "exact", "mlp_dim": 24}
REGISTERS = {**DINOV2, "register_tokens": 4, "prefix_positions": False}
from_preset = keras_vit.VisionTransformer.from_preset


@pytest.mark.parametrize(
    ("kwargs", "release"),
    long_after(
        3,
        [
            (DINOV2, 4),
            (DINOV2, 5),
            ({**REGISTERS, "swiglu": True}, 4),
            (REGISTERS, 4),
            (REGISTERS, 5),
        ],
    ),
)
def test_a_file_gives_its_weights_and_its_features(
    kwargs, release, tiny_vit, images, tmp_path
):
    source, model = tiny_vit(**kwargs), tiny_vit(seed=12, **kwargs)
    report = keras_vit.load_checkpoint(
        model, hugging_face_dinov2(source, tmp_path, release)
    )
    assert report.family == "hugging_face_dinov2"
    assert report.outside == ["embeddings.mask_token"]
    assert report.unused == report.missing == report.dropped == []
    check_same_weights(model, source)
    numpy_vit.check_outputs(model, images(), source, atol=2e-5)


def test_a_registers_position_is_zero_where_the_model_has_one(
    tiny_vit, images, tmp_path
):
    source = tiny_vit(**REGISTERS)
    model = tiny_vit(seed=12, **{**REGISTERS, "prefix_positions": True})
    keras_vit.load_checkpoint(model, hugging_face_dinov2(source, tmp_path))
    positions = arrays_of(model)["position_embedding/embedding"]
    assert positions[:, 0].any()
    assert not positions[:, 1:5].any()
    numpy_vit.check_outputs(model, images(), source, atol=2e-5)


@pytest.mark.parametrize("kwargs", [DINOV2, {**REGISTERS, "swiglu": True}])
def test_the_model_is_built_from_the_file(kwargs, tiny_vit, tmp_path):
    source = tiny_vit(**kwargs)
    path = hugging_face_dinov2(
        source, tmp_path, image_size=[22, 14], layer_norm_eps=1e-6, hidden_act="gelu"
    )
    model = from_preset(path)
    check_same_options(model, source)
    check_same_weights(model, source)


def with_classifier(model, folder):
    """DINOv2's classifier reads class token and mean of the patches, 2 D numbers."""
    path = hugging_face_dinov2(model, folder, image_size=[22, 14])
    arrays = foreign.hugging_face_dinov2(arrays_of(model))
    arrays = {f"dinov2.{name}": array for name, array in arrays.items()}
    arrays["classifier.weight"] = np.ones((7, 2 * model.width), "float32")
    arrays["classifier.bias"] = np.ones(7, "float32")
    return write_safetensors(path, arrays)


@pytest.mark.parametrize("classes", [None, 5])
def test_a_classifier_of_two_vectors_is_left_out_with_a_warning(
    classes, tiny_vit, tmp_path, caplog
):
    source = tiny_vit(**DINOV2)
    with caplog.at_level(logging.WARNING, "keras_vit"):
        model = from_preset(with_classifier(source, tmp_path), classes=classes)
    assert model.classes == classes
    assert "dropped: classifier.weight, classifier.bias" in caplog.text
    heads = [w.path for w in model.weights if w.path.startswith("head/")]
    check_same_weights(model, source, *heads)


def test_a_classifier_of_two_vectors_is_not_loaded_unasked(tiny_vit, tmp_path):
    model = tiny_vit(seed=12, **DINOV2)
    before = arrays_of(model)
    path = with_classifier(tiny_vit(**DINOV2), tmp_path)
    with pytest.raises(CheckpointError, match="class token and mean of the patches"):
        keras_vit.load_checkpoint(model, path)
    check_unmoved(model, before)
    report = keras_vit.load_checkpoint(model, path, classifier="drop")
    assert report.dropped == ["classifier.weight", "classifier.bias"]


@pytest.mark.parametrize("kind", ["dinov3_vit", "vit"])
def test_another_model_of_the_same_names_is_refused(kind, tiny_vit, tmp_path):
    path = hugging_face_dinov2(tiny_vit(**DINOV2), tmp_path, model_type=kind)
    match = f"the config names, '{kind}'.*arrays of a Hugging Face DINOv2"
    with pytest.raises(WeightsFileError, match=match):
        from_preset(path)


def test_a_swiglus_file_does_not_fit_a_gelus_model(tiny_vit, tmp_path):
    path = hugging_face_dinov2(tiny_vit(**DINOV2, swiglu=True), tmp_path)
    with pytest.raises(CheckpointError, match="with swiglu=True instead of False"):
        keras_vit.load_checkpoint(tiny_vit(**DINOV2), path)


def test_a_swiglu_has_no_kind_of_gelu_to_agree_on(tiny_vit, tmp_path):
    source = tiny_vit(**DINOV2, swiglu=True)
    model = tiny_vit(seed=12, **{**DINOV2, "gelu": "tanh"}, swiglu=True)
    keras_vit.load_checkpoint(model, hugging_face_dinov2(source, tmp_path))
    check_same_weights(model, source)


@pytest.mark.parametrize(
    ("swiglu", "activation", "known"),
    [(True, "silu", True), (True, "gelu", False), (False, "relu", False)],
)
def test_timms_activation_must_be_that_of_the_mlp(
    swiglu, activation, known, tiny_vit, tmp_path
):
    source = tiny_vit(**DINOV2, swiglu=swiglu)
    options = {"act_layer": activation}
    path = timm(source, tmp_path, model_args=options)
    if known:
        assert arguments_of(path)["swiglu"]
    else:
        with pytest.raises(WeightsFileError, match=f"one of .*Rec.*'{activation}'"):
            arguments_of(path)


def test_the_processors_statistics_are_read(tiny_vit, tmp_path):
    """The preprocessor_config.json of facebook/dinov2-base, by transformers' code."""
    path = hugging_face_dinov2(tiny_vit(**DINOV2), tmp_path, image_size=[22, 14])
    processor = {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 256},
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "resample": 3,
        "rescale_factor": 1 / 255,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    layer = from_preset(path).preprocessing
    assert layer.mean == pytest.approx((123.675, 116.28, 103.53))
    assert layer.std == pytest.approx((58.395, 57.12, 57.375))
    assert (layer.interpolation, layer.resize) == ("bicubic", "small")
    assert layer.crop_fraction == 0.875
