"""int8 in ONNX and LiteRT: agreement with float32, what is quantized, and refusals."""

import functools
import json
import subprocess
import timeit
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.common.command_line import CommandError
from serving.__main__ import main
from serving.export import formats, publish, quantization

onnx = pytest.importorskip("onnx")
pytest.importorskip("tf2onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("ai_edge_litert")


# LiteRT keeps kernels of less than 1024 elements in float32.
SIZE = {"width": 35, "mlp_dim": 47, "depth": 1}


@pytest.fixture(scope="module")
def model(tiny_vit):
    return tiny_vit(preprocessing=keras_vit.ImagePreprocessing((22, 14)), **SIZE)


@pytest.fixture(scope="module")
def images(model):
    """Images that the model is sure of, of several classes."""
    random = np.random.default_rng(0)
    halves = random.integers(0, 256, (600, 2, 1, 3)).repeat(11, 1).repeat(14, 2)
    noisy = halves + random.normal(scale=9, size=halves.shape)
    pixels = noisy.clip(0, 255).astype("uint8")
    bias = model.get_layer("head").bias
    bias.assign(bias - model(pixels).numpy().mean(axis=0))
    best = np.sort(model(pixels), axis=1)
    pixels = pixels[np.argsort(best[:, -2] - best[:, -1])[:64]]
    return quantization.Images(pixels[::2], pixels[1::2], "halves")


@pytest.fixture
def measured(monkeypatch):
    """Speed-ups that int8 is measured to have, by the size of the batch."""
    speedup = {1: 1.5, 8: 2.0}
    monkeypatch.setattr(quantization, "faster", lambda a, b, x: speedup[len(x)])
    return speedup


def export(model, folder, name, images, **kwargs):
    return publish.publish(
        model, folder, export_format=name, int8_images=lambda _: images, **kwargs
    )


@pytest.fixture(
    scope="module", params=["onnx", pytest.param("litert", marks=pytest.mark.slow)]
)
def published(request, model, images, tmp_path_factory):
    """The file of a published version."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantization, "faster", lambda a, b, x: 1 + len(x) / 2)
        folder = tmp_path_factory.mktemp(request.param) / "m"
        version = export(model, folder, request.param, images)
    return version.path / formats.FORMATS[request.param].file


def test_int8_is_published_with_its_agreement_and_speedup(model, images, published):
    folder = published.parent
    assert {path.name for path in folder.iterdir()} == {published.name, "assets.extra"}
    manifest = json.loads((folder / "assets.extra/manifest.json").read_text())
    name = manifest["export_format"]
    assert [*manifest["files"]] == [published.name]
    assert manifest["quantization"] == {
        "type": "int8",
        "scheme": quantization.SCHEMES[name],
        "calibration_images": 32,
        "compared_on": "halves",
        "speedup": {"1": 1.5, "8": 5.0},
    }
    # Against Keras, in the file's own runtime.
    pixels = images.validation.astype("float32")
    answers = tf.nn.softmax(formats.FORMATS[name].runner(published)(pixels)).numpy()
    expected = tf.nn.softmax(model(pixels)).numpy()
    assert len(set(expected.argmax(1))) > 2, "a test of agreement"
    agreement = manifest["agreement"]
    assert agreement["images"] == 32
    same = answers.argmax(1) == expected.argmax(1)
    assert agreement["top1"] == same.mean() >= 0.99
    largest = np.abs(answers - expected).max()
    assert agreement["max_difference"] == pytest.approx(largest, abs=1e-4)
    assert 1e-4 < largest < 0.1, "quantized, but not by much"


def constants(graph):
    return {i.name: onnx.numpy_helper.to_array(i) for i in graph.initializer}


@pytest.mark.parametrize("published", ["onnx"], indirect=True)
def test_versions_says_that_a_version_is_int8(published, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["versions", str(published.parents[1])]) == 0
    assert "onnx int8" in capsys.readouterr().out


@pytest.mark.parametrize("published", ["onnx"], indirect=True)
def test_onnx_quantizes_products_with_weights_and_no_others(published):
    written = onnx.load(published)
    onnx.checker.check_model(written)
    assert written.doc_string == "reads pixels from 0 to 255"
    assert written.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    values = constants(written.graph)
    made_by = {name: node for node in written.graph.node for name in node.output}
    products = [n for n in written.graph.node if n.op_type in quantization.WEIGHTED]
    weights = {}
    for node in products:
        sources = [made_by.get(name) for name in node.input[:2]]
        quantized = [s and s.op_type == "DequantizeLinear" for s in sources]
        of_activations = quantized == [False, False]
        assert of_activations == ("attention/MatMul" in node.name.replace("_1/", "/"))
        if not of_activations:
            assert quantized == [True, True], node.name
            weights[node.name] = sources[1]
    # 4 in attention and 2 in the MLP; patches and classes.
    assert len(weights) == 8
    for dequantize in weights.values():
        weight, scale = (values[name] for name in dequantize.input[:2])
        assert weight.dtype == np.int8
        assert abs(weight).max() <= 64, "products of pairs fit into 16 bits"
        assert scale.size == weight.shape[-1 if weight.ndim == 2 else 0], "per channel"


@pytest.mark.slow
@pytest.mark.parametrize("published", ["litert"], indirect=True)
def test_litert_stores_int8_kernels(model, published):
    details = tf.lite.Interpreter(str(published)).get_tensor_details()
    stored = sum(np.prod(d["shape"]) for d in details if d["dtype"] == np.int8)
    kernels = [w for w in model.weights if w.path.endswith("/kernel")]
    large = [np.prod(w.shape) for w in kernels if np.prod(w.shape) >= 1024]
    assert stored == sum(large)


@pytest.mark.slow
@pytest.mark.usefixtures("measured")
def test_a_model_that_reads_normalized_pixels_is_fed_such(
    model, tiny_vit, images, tmp_path
):
    normalizing = tiny_vit(**SIZE)
    normalizing.set_weights(model.get_weights())
    published = export(normalizing, tmp_path / "m", "onnx", images)
    assert published.manifest["agreement"]["top1"] >= 0.99
    graph = onnx.load(published.path / "model.onnx").graph
    first = next(node for node in graph.node if node.op_type == "QuantizeLinear")
    scale = constants(graph)[first.input[1]]
    assert scale == pytest.approx(2 / 255, rel=0.01), "the range is [-1, 1]"


def assert_nothing_published(folder):
    assert {path.name for path in folder.iterdir()} <= {".lock"}


# The command is refused for a batch of 1.
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_int8_that_is_not_faster_is_refused_where_that_is_required(
    model, images, tmp_path, measured, size
):
    measured[size] = 1.0
    with pytest.raises(CommandError) as error:
        export(model, tmp_path / "m", "onnx", images, require_speedup=True)
    assert "must be faster than float32 with --require_speedup" in str(error.value)
    assert f"1.00 times as fast for a batch of {size}" in str(error.value)
    assert_nothing_published(tmp_path / "m")


@pytest.mark.usefixtures("measured")
def test_int8_with_other_answers_is_refused(model, images, tmp_path):
    """Calibrated on black images, it saturates on any other."""
    black = images._replace(calibration=np.zeros_like(images.calibration))
    with pytest.raises(CommandError, match=r"for 99% of the images\. Received: "):
        export(model, tmp_path / "m", "onnx", black)
    assert_nothing_published(tmp_path / "m")


def test_the_speedup_is_of_the_fastest_of_turns(monkeypatch):
    clock = types.SimpleNamespace(seconds=0.0, turns=[])
    timer = functools.partial(timeit.Timer, timer=lambda: clock.seconds)
    monkeypatch.setattr(timeit, "Timer", timer)

    def runner(name, seconds):
        def run(batch):
            busy = len(clock.turns) % 7 == 0  # with other work
            clock.seconds += seconds * (5 if busy else 1)
            clock.turns.append(name)

        return run

    runs = runner("float32", 0.3), runner("int8", 0.1)
    assert quantization.faster(*runs, np.zeros(1)) == pytest.approx(3)
    assert clock.turns[-4:] == ["float32", "int8"] * 2


@pytest.fixture
def keras_file(model, tmp_path):
    model.save(tmp_path / "best.keras")
    return tmp_path / "best.keras"


@pytest.fixture
def files(images, tmp_path):
    """Image files: enough to calibrate."""
    paths = [tmp_path / f"{index}.png" for index in range(12)]
    for path, image in zip(paths, images.calibration, strict=False):
        keras.utils.save_img(path, image, scale=False)
    return list(map(str, paths))


def run(path, *words):
    folder = path.parent / "m"
    return main(["export", str(path), "--to", str(folder), *map(str, words)])


@pytest.mark.slow
def test_the_command_quantizes_with_image_files(keras_file, files, capsys, measured):
    """Slower, too: what is published does not depend on a clock."""
    measured[1] = 0.5
    words = ["--format", "onnx", "--quantize", "int8"]
    words += ["--calibration_images", *files[:8], "--check_images", *files[8:]]
    assert run(keras_file, *words) == 0
    [first, _] = capsys.readouterr().out.splitlines()
    assert first.endswith(
        "m/1: published; int8 gives the best class of float32 for 100.00% of 4 images "
        "(--check_images), and is on this machine 0.50 times as fast for a batch of 1, "
        "2.00 times as fast for a batch of 8"
    )
    text = (keras_file.parent / "m/1/assets.extra/manifest.json").read_text()
    assert json.loads(text)["quantization"]["calibration_images"] == 8


@pytest.mark.slow
def test_the_command_refuses_slower_int8_where_asked(
    keras_file, files, capsys, measured
):
    measured[1] = 0.5
    words = [*ONNX, "--calibration_images", *files[:8], "--check_images", *files[8:]]
    assert run(keras_file, *words, "--require_speedup") == 1
    assert "Received: 0.50 times as fast" in capsys.readouterr().err
    assert_nothing_published(keras_file.parent / "m")


INT8 = ["--quantize", "int8"]
ONNX = ["--format", "onnx", *INT8]
LITERT = ["--format", "litert", *INT8]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (ONNX, 2, "give them as --calibration_images and --check_images"),
        ([*ONNX, "--check_images", __file__], 2, "give them as --calibration_images"),
        ([*ONNX, "--calibration_images", __file__], 2, "give them as --check_images"),
        (LITERT, 2, "not in the folder of a run, which has recipe.yaml: give them as "),
        (INT8, 2, "--quantize needs --format onnx or litert. Received: savedmodel"),
        (["--calibration_images", "a.png"], 2, "--calibration_images needs --quantize"),
        (["--require_speedup"], 2, "--require_speedup needs --quantize int8"),
        ([*LITERT, "--calibration_images", "a.png"], 2, "needs --format onnx"),
        (
            [*ONNX, "--check_images", __file__, "--calibration_images", "none.png"],
            1,
            "--calibration_images none.png: cannot be read",
        ),
        (
            [*LITERT, "--check_images", __file__],
            1,
            "--check_images " + __file__ + ": not a readable image",
        ),
    ],
)
def test_arguments_without_usable_images_are_refused(
    keras_file, capsys, words, status, message
):
    assert run(keras_file, *words) == status
    assert message in capsys.readouterr().err
    assert not (keras_file.parent / "m").exists()


def test_a_run_whose_images_cannot_be_read_is_refused(keras_file, capsys, monkeypatch):
    (keras_file.parent / "recipe.yaml").touch()

    def fails(command, **_):
        assert command[:4] == list(quantization.RUN_IMAGES)
        error = "a warning\nfolder:photos: no such folder\n"
        return types.SimpleNamespace(returncode=1, stderr=error)

    monkeypatch.setattr(subprocess, "run", fails)
    assert run(keras_file, *ONNX) == 1
    error = capsys.readouterr().err
    assert "images cannot be read: folder:photos: no such folder; --cal" in error
    assert not (keras_file.parent / "m").exists()
