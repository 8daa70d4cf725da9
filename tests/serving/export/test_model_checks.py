"""Every reason of `check_model` alone, and two at once."""

import keras
import pytest
from tiny_model import build_vit, small_classifier

import keras_vit
from keras_vit.common.command_line import CommandError
from serving.export import formats, onnx_file, publish
from serving.export.model_checks import check_model
from serving.export.options import ExportOptions as Options

RAW = {"preprocessing": keras_vit.ImagePreprocessing((22, 14))}
MIXED = {"dtype": "mixed_bfloat16"}
LITERT = {"export_format": "litert"}
TOO_LARGE = (
    "this model cannot be written as onnx: an ONNX file holds at most 0.0 GB. "
    "Received: weights of 0.0 GB"
)


def of_unknown_range():
    return small_classifier(keras.layers.Flatten())


def quantized():
    model = build_vit(depth=1, pooling="avg", class_token=False)
    model.quantize("int8")
    return model


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize(
    ("reason", "model", "given"),
    [
        ("the file holds a Sequential of Keras", keras.Sequential, {}),
        ("the model must have a classifier", {"classes": None}, {}),
        ("`class_names` must be a text file", {}, {"class_names": "ant"}),
        ("`class_names` must have 7 names", {}, {"class_names": "ant,bee"}),
        ("the model does not state which pixels its backbone", of_unknown_range, {}),
        ("`pixels` must be one of", {}, {"pixels": "cmyk"}),
        ("`pixels` must be 'raw'", RAW, {"pixels": "normalized"}),
        pytest.param(
            *("A model must not be quantized", quantized, {}), marks=pytest.mark.slow
        ),
        ("the model must read images of 1 or 3 channels", {"channels": 4}, {}),
        ("--check_images is needed", {}, {"options": Options(max_image_bytes=9)}),
        ("--check_images is needed", {}, {"options": Options(max_image_pixels=9)}),
        ("--quantize needs --format onnx", {}, {"int8": True}),
        ("--format litert writes the", {}, {"options": Options(top_k=2), **LITERT}),
        ("--format litert needs a model in float32", MIXED, LITERT),
        ("--format fake needs packages", {}, {"export_format": "fake"}),
        (TOO_LARGE, {}, {"export_format": "onnx"}),
    ],
)
def test_each_reason_is_named_alone(tiny_vit, monkeypatch, reason, model, given):
    for name, packages in {"litert": (), "onnx": (), "fake": ("none",)}.items():
        form = formats.FORMATS["onnx"]._replace(packages=packages)
        monkeypatch.setitem(formats.FORMATS, name, form)
    monkeypatch.setattr(onnx_file, "LARGEST", 10_000)
    built = tiny_vit(**model) if isinstance(model, dict) else model()
    with pytest.raises(CommandError) as error:
        check_model(built, **{"options": Options(), **given})
    assert str(error.value).startswith(reason)


def test_two_reasons_are_both_named(tiny_vit, tmp_path, monkeypatch):
    model, path = tiny_vit(classes=None), tmp_path / "best.keras"
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(CommandError) as error:
        publish.publish(model, tmp_path / "m", source=path)
    first, second = str(error.value).split("; (2) ")
    assert first.startswith(f"{path}: 2 reasons: (1) needs KERAS_BACKEND=tensorflow;")
    assert second == "the model must have a classifier. Received: classes=None"
    assert not (tmp_path / "m").exists()
