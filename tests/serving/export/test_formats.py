"""ONNX and LiteRT as Keras writes them: checked by their own runtimes, or refused."""

import json
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.common.command_line import CommandError
from keras_vit.layers import dot_product_attention as attention
from serving.__main__ import main
from serving.export import formats, publish
from serving.export.options import ExportOptions


@pytest.fixture
def model(tiny_vit):
    """A new model for each test: Keras treats a called model differently."""
    return tiny_vit(depth=1, preprocessing=keras_vit.ImagePreprocessing((22, 14)))


def needs(*modules):
    for module in modules:
        pytest.importorskip(module)


def test_litert_is_published_and_answers_as_keras(model, tmp_path):
    needs("ai_edge_litert")
    published = publish.publish(model, tmp_path / "m", export_format="litert")
    assert (published.path / "model.tflite").is_file()
    images = np.random.default_rng(0).integers(0, 256, (3, 22, 14, 3)).astype("float32")
    # TensorFlow's own interpreter, not the one that the export was checked with.
    interpreter = tf.lite.Interpreter(str(published.path / "model.tflite"))
    [name] = interpreter.get_signature_list()["serving_default"]["inputs"]
    run = interpreter.get_signature_runner("serving_default")
    [answer] = run(**{name: images}).values()
    np.testing.assert_allclose(answer, model(images).numpy(), atol=1e-5)
    manifest = json.loads((published.path / "assets.extra/manifest.json").read_text())
    assert manifest["export_format"] == "litert"
    assert manifest["agreement"]["max_difference"] < 1e-5
    assert manifest["labels"]["count"] == 7
    assert manifest["model"]["inputs"] == "pixels from 0 to 255"


@pytest.mark.parametrize(
    ("raw", "activation", "pixels", "output"),
    [
        (True, None, "pixels from 0 to 255", "logits"),
        pytest.param(
            *(False, "softmax", "pixels in [-1, 1]", "probabilities"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_onnx_states_its_contract_and_answers_as_keras(
    tiny_vit, tmp_path, raw, activation, pixels, output
):
    needs("tf2onnx", "onnxruntime")
    import onnx
    import onnxruntime

    names = [*"abcdefg"]
    preprocessing = keras_vit.ImagePreprocessing((22, 14)) if raw else None
    model = tiny_vit(
        depth=1,
        preprocessing=preprocessing,
        classifier_activation=activation,
        class_names=names,
    )
    published = publish.publish(model, tmp_path / "m", export_format="onnx")
    written = onnx.load(published.path / "model.onnx")
    onnx.checker.check_model(written)
    assert written.doc_string == f"reads {pixels}"
    assert pixels in written.graph.input[0].doc_string
    session = onnxruntime.InferenceSession(published.path / "model.onnx")
    [images], [scores] = session.get_inputs(), session.get_outputs()
    assert (images.name, images.shape) == ("images", ["batch", 22, 14, 3])
    assert (scores.name, scores.shape) == (output, ["batch", 7])
    properties = session.get_modelmeta().custom_metadata_map
    assert properties["pixels"] == pixels
    assert json.loads(properties["class_names"]) == names
    low, high = (0, 255) if raw else (-1, 1)
    random = np.random.default_rng(0)
    given = random.uniform(low, high, (2, 22, 14, 3)).astype("float32")
    [answer] = session.run([output], {"images": given})
    np.testing.assert_allclose(answer, model(given).numpy(), atol=1e-5)


@pytest.mark.slow
def test_the_command_says_that_pixels_must_be_normalized(tiny_vit, tmp_path, capsys):
    needs("ai_edge_litert")
    tiny_vit(depth=1).save(tmp_path / "m.keras")
    words = [str(tmp_path / "m.keras"), "--to", str(tmp_path / "m")]
    assert main(["export", *words, "--format", "litert"]) == 0
    assert "\nmodel.tflite reads pixels in [-1, 1]\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", list(formats.FORMATS))
def test_a_missing_package_is_named(model, tmp_path, monkeypatch, name):
    for module in formats.FORMATS[name].packages:
        monkeypatch.setitem(sys.modules, module, None)
    packages = ", ".join(formats.FORMATS[name].packages)
    wanted = rf'{packages}: pip install "keras-vit-serving\[formats\]"'
    with pytest.raises(CommandError, match=wanted):
        publish.publish(model, tmp_path / "m", export_format=name)
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnx", "litert"])
def test_attention_over_many_tokens_has_no_loop(tiny_vit, tmp_path, monkeypatch, name):
    needs(*formats.FORMATS[name].packages)
    monkeypatch.setattr(attention, "BLOCKS_ABOVE", {"cpu": 1, "gpu": 2**22})
    published = publish.publish(tiny_vit(depth=1), tmp_path / "m", export_format=name)
    written = (published.path / formats.FORMATS[name].file).read_bytes()
    assert b"Loop" not in written
    assert b"while" not in written


@pytest.mark.parametrize(
    "options",
    [{"top_k": 3}, {"batching": "none"}, {"precision": "bfloat16"}, {"target": "gpu"}],
)
def test_options_that_do_not_apply_are_refused(model, tmp_path, options):
    [name] = options
    with pytest.raises(CommandError, match=f"which has no {name}"):
        publish.publish(
            model, tmp_path / "m", ExportOptions(**options), export_format="litert"
        )


@pytest.fixture
def fake_format(monkeypatch):
    """A format whose runtime returns zeros."""

    def writer(model, path, inputs):
        path.touch()

    def runner(path):
        return lambda images: np.zeros((len(images), 7), "float32")

    fake = formats.Format("model.tflite", (), writer, runner)
    monkeypatch.setitem(formats.FORMATS, "litert", fake)


def test_a_file_with_other_outputs_is_not_published(model, tmp_path, fake_format):
    message = r"agree with the Keras model to 1(\.\d+)?e-05"
    with pytest.raises(CommandError, match=message):
        publish.publish(model, tmp_path / "m", export_format="litert")
    assert {path.name for path in (tmp_path / "m").iterdir()} == {".lock"}


def test_a_failed_conversion_is_reported_in_one_line(model, tmp_path, monkeypatch):
    def export(self, path, format, verbose):
        raise RuntimeError("no such operation: Foo\nand much more")

    monkeypatch.setattr(keras.Model, "export", export)
    uninstalled = formats.FORMATS["litert"]._replace(packages=())
    monkeypatch.setitem(formats.FORMATS, "litert", uninstalled)
    with pytest.raises(CommandError) as error:
        publish.publish(model, tmp_path / "m", export_format="litert")
    assert str(error.value) == (
        "this model cannot be written as litert: no such operation: Foo"
    )
