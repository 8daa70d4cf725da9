"""File, export, REST and gRPC give the scores of the model in memory."""

import json
import pathlib
import re
import shutil
import subprocess

import keras
import numpy as np
import pytest
import sklearn.datasets
import tensorflow as tf
from tiny_recipe import TINY_RECIPE, changed
from without_pictures import leave_out_pictures

import keras_vit
from keras_vit import decoding
from serving.__main__ import main
from serving.client import GrpcClient, RestClient
from serving.export import quantization
from serving.export.options import ExportOptions
from serving.export.publish import publish
from serving.local import LocalServer
from training.data.splits import load_splits
from training.fitting.fit import fit

PHOTOGRAPHS = sorted(
    (pathlib.Path(sklearn.datasets.__file__).parent / "images").glob("*.jpg")
)
NAMES = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu"]


@pytest.fixture(scope="module")
def model(tiny_vit):
    return tiny_vit(
        preprocessing=keras_vit.ImagePreprocessing((22, 14), crop_fraction=0.8),
        class_names=NAMES,
        representation_size=11,
        depth=1,
    )


def scores_of(model):
    """The in-memory model's probabilities [2, 7] for the photographs' bytes."""
    images = [
        decoding.decode_and_resize(tf.constant(path.read_bytes()), model.preprocessing)
        for path in PHOTOGRAPHS
    ]
    return tf.nn.softmax(model(np.stack(images))).numpy()


@pytest.fixture(scope="module")
def expected(model):
    return scores_of(model)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("end_to_end")
    model.save(folder / "best.keras")
    reloaded = keras.models.load_model(folder / "best.keras")
    options = ExportOptions(top_k=7)
    publish(reloaded, folder / "insects", options, check_images=PHOTOGRAPHS)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with LocalServer(
        {"insects": folder / "insects"}, rest_port=0, grpc_port=0
    ) as running:
        yield running


def by_class(class_ids, scores):
    """Scores [2, 7] in the order of the classes."""
    ordered = np.empty((len(PHOTOGRAPHS), 7))
    np.put_along_axis(ordered, np.asarray(class_ids), np.asarray(scores), axis=1)
    return ordered


@pytest.mark.slow
def test_the_reloaded_file_gives_the_same_scores(folder, expected):
    scores = scores_of(keras.models.load_model(folder / "best.keras"))
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_saved_model_gives_the_same_scores(folder, expected):
    signature = tf.saved_model.load(str(folder / "insects" / "1")).signatures
    answer = signature["serving_default"](
        image_bytes=tf.constant([path.read_bytes() for path in PHOTOGRAPHS])
    )
    scores = by_class(answer["class_ids"], answer["scores"])
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["REST", "gRPC"])
def test_the_server_gives_the_same_scores(server, expected, transport):
    client = (
        RestClient(server.rest_url, "insects")
        if transport == "REST"
        else GrpcClient(server.grpc_address, "insects")
    )
    with client:
        answers = client.classify(PHOTOGRAPHS)
    scores = by_class([a.class_ids for a in answers], [a.scores for a in answers])
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)
    best = [NAMES[i] for i in expected.argmax(1)]
    assert [answer.label for answer in answers] == best


@pytest.mark.slow
def test_every_curl_line_of_the_endpoint_page_gives_the_same_scores(
    server, expected, tmp_path
):
    if shutil.which("curl") is None:
        pytest.skip("needs curl: apt-get install curl")
    picture = tmp_path / "runs/demo/digit-7.png"
    picture.parent.mkdir(parents=True)
    shutil.copy(PHOTOGRAPHS[0], picture)
    page = pathlib.Path(__file__).parent.parent / "docs" / "endpoint.md"
    whole = re.sub(r"(?<=\|)\n\s*(?=curl)", " ", page.read_text("utf-8"))
    lines = [line.strip() for line in whole.splitlines() if "curl -" in line]
    assert lines
    for line in lines:
        here = line.replace("http://127.0.0.1:8501", server.rest_url)
        here = re.sub(r"/models/\w+:", "/models/insects:", here)
        answer = json.loads(
            subprocess.check_output(["bash", "-c", here], cwd=tmp_path, text=True)
        )
        [prediction] = answer["predictions"]
        scores = np.empty(7)
        scores[prediction["class_ids"]] = prediction["scores"]
        np.testing.assert_allclose(scores, expected[0], rtol=0, atol=1e-5)


RECIPE = changed(
    TINY_RECIPE,
    epochs=20,
    batch_size=32,
    model={"width": 36, "mlp_dim": 72, "patch_size": 2, "position_stddev": 1.0},
    data={"validation": 0.1},
    optimizer={"learning_rate": 3e-3},
)


@pytest.mark.slow
def test_a_run_is_published_in_int8_with_its_own_images(tmp_path, monkeypatch, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    leave_out_pictures(monkeypatch.setattr)
    fit(RECIPE, tmp_path / "run")
    monkeypatch.setattr(quantization, "faster", lambda *_: 2.0)
    words = ["--to", str(tmp_path / "m"), "--format", "onnx", "--quantize", "int8"]
    assert main(["export", str(tmp_path / "run"), *words]) == 0
    assert f"of 144 images (the validation images of {tmp_path / 'run'})" in (
        capsys.readouterr().out
    )
    version = tmp_path / "m/1"
    manifest = json.loads((version / "assets.extra/manifest.json").read_text())
    assert manifest["quantization"]["calibration_images"] == 512
    assert manifest["agreement"]["top1"] >= 0.99
    # Its accuracy on images that it was neither calibrated nor compared on.
    test = load_splits(RECIPE.data, channels=1).test
    pixels = np.stack([test.read(index).numpy() for index in range(len(test))])
    session = onnxruntime.InferenceSession(version / "model.onnx")
    [scores] = session.run(None, {"images": pixels.astype("float32")})
    right = (scores.argmax(1) == test.labels).mean()
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert right > 0.8
    assert right == pytest.approx(report["accuracy"], abs=0.02)
