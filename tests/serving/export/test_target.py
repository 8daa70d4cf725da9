"""Exports for CPUs, for GPUs and for both: loops, places, answers."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf
from saved_graphs import LOOPS, graph_of, operations, with_branches_of
from saved_models import SavedModel, examples, pictures, png_files
from tiny_model import small, with_random_weights

import keras_vit
from serving.__main__ import main
from serving.export import publish
from serving.export.backbone import make_backbone
from serving.export.host import HOST
from serving.export.options import ExportOptions
from serving.export.signatures import save

FILES = ("serving_default", "embed", "classify", "attention")
SIGNATURES = (*FILES, "serve_images", "serve_pixels")
SIDES = {257: 32, 577: 48}  # of images that have so many tokens


def vit(tokens, **kwargs):
    shape = {"image_size": SIDES[tokens], "width": 16, "heads": 2, "depth": 2}
    return with_random_weights(small(**shape, **kwargs), 3)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Exports a model; gives the folder."""

    def export(model, **options):
        folder = tmp_path_factory.mktemp("version") / "1"
        save(model, folder, ExportOptions(**options))
        return folder

    return export


@pytest.fixture(scope="module")
def for_any(exported):
    """A model of 257 tokens, its export for any device, and the graph of that."""
    model = vit(257, preprocessing=keras_vit.ImagePreprocessing(32))
    folder = exported(model)
    return model, folder, graph_of(folder)


def loops(graph, signature, device, start="BatchFunction"):
    """The loops of the model itself; images are decoded in loops anywhere."""
    nodes = operations(graph, signature, device, start)
    return sum(node.op in LOOPS for node, _ in nodes)


@pytest.mark.parametrize("signature", ["serving_default", "serve_pixels"])
def test_for_any_device_only_a_cpu_runs_loops(for_any, signature):
    _, _, graph = for_any
    # One in each block but the last, which has the class token as its one query.
    assert loops(graph, signature, "CPU") == 1
    assert loops(graph, signature, "GPU") == 0


@pytest.mark.parametrize(
    ("tokens", "target", "batching", "expected"),
    [
        (257, "cpu", "graph", 1),
        (257, "gpu", "graph", 0),
        pytest.param(577, "any", "none", 0, marks=pytest.mark.slow),
        pytest.param(577, "gpu", "none", 0, marks=pytest.mark.slow),
        pytest.param(577, "cpu", "none", 1, marks=pytest.mark.slow),
    ],
)
def test_what_a_gpu_runs_of_an_export(exported, tokens, target, batching, expected):
    graph = graph_of(exported(vit(tokens), target=target, batching=batching))
    start = "BatchFunction" if batching == "graph" else ""
    assert loops(graph, "serve_pixels", "GPU", start) == expected


def test_a_gpu_runs_one_turn_for_each_picture_of_attention(for_any):
    _, _, graph = for_any
    nodes = [node for node, place in operations(graph, "attention", "GPU") if not place]
    assert sum(node.op in LOOPS for node in nodes) == 1


def test_each_branch_is_the_graph_for_its_device(for_any):
    """To the operation: a GPU's branch is what `target="gpu"` exports."""
    model, _, graph = for_any
    for platform in ("cpu", "gpu"):
        backbone = make_backbone(model, "float32", platform)
        alone = backbone._call.get_concrete_function().graph.as_graph_def()
        nodes = operations(graph, "serve_pixels", platform.upper(), "Case")
        found = [node.op for node, _ in nodes if node.op != "StatefulPartitionedCall"]
        for operation in ("MatMul", "BatchMatMulV2", "Softmax", "Cast", *LOOPS):
            inner = [n for f in alone.library.function for n in f.node_def]
            expected = [node.op for node in (*alone.node, *inner)].count(operation)
            assert found.count(operation) == expected, operation


def test_one_graph_serves_both_where_they_are_the_same(tiny_vit, exported):
    served = SavedModel(exported(tiny_vit()))
    assert not served.nodes("DeviceIndex")


def test_bfloat16_takes_each_device_s_softmax(tiny_vit):
    """A CPU's kernel computes in float32 itself; on a GPU the graph says so."""
    backbone = make_backbone(tiny_vit(), "bfloat16", "any")
    spec = tf.TensorSpec([None, 22, 14, 3], tf.float32)
    call = tf.function(lambda x: backbone(x), input_signature=[spec])
    nodes = call.get_concrete_function().graph.as_graph_def().node
    assert [node.op for node in nodes].count("DeviceIndex") == 1


def answers(folder, model):
    images = pictures(3, 3, model.image_size)
    files = png_files(images)
    served = SavedModel(folder)
    inputs = {
        "serving_default": files,
        "serve_images": images,
        "serve_pixels": ((images - 127.5) / 127.5).astype("float32"),
        "embed": files,
        "classify": examples(files),
        "attention": files,
    }
    found = {name: served.run(name, inputs[name]) for name in inputs}
    served.close()
    return found


def check_equal(found, expected, atol=1e-5):
    for name, outputs in expected.items():
        for output, values in outputs.items():
            if values.dtype == object or output == "class_ids":
                assert found[name][output].tolist() == values.tolist()
            else:
                np.testing.assert_allclose(
                    found[name][output], values, rtol=1e-5, atol=atol
                )


def test_all_targets_answer_the_same(for_any, exported, tmp_path):
    model, folder, _ = for_any
    expected = answers(folder, model)
    for target in ("cpu", "gpu"):
        check_equal(answers(exported(model, target=target), model), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"batching": "graph"},
        pytest.param({"batching": "none"}, marks=pytest.mark.slow),
        pytest.param({"precision": "bfloat16"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_branch_of_a_gpu_answers_the_same(exported, options):
    """It is run here on a CPU, which is told to be a GPU."""
    model = vit(257)
    folder = exported(model, **options)
    expected = answers(folder, model)
    with_branches_of(folder, "GPU")
    tolerance = 2e-2 if "precision" in options else 1e-5
    check_equal(answers(folder, model), expected, tolerance)


@pytest.mark.parametrize("signature", FILES)
def test_files_are_decoded_and_resized_on_the_host(for_any, signature):
    _, _, graph = for_any
    steps = {"DecodeJpeg", "DecodePng", "DecodeImage", "DecodeRaw", "ResizeBilinear"}
    places = {}
    for node, place in operations(graph, signature, skipped=("BatchFunction",)):
        places.setdefault(node.op, set()).add(place)
    assert steps <= {*places}
    steps |= {"EncodePng"} & {*places}
    assert {place for step in steps for place in places[step]} == {HOST}


@pytest.mark.parametrize("signature", SIGNATURES)
@pytest.mark.parametrize(
    "batching", ["graph", pytest.param("none", marks=pytest.mark.slow)]
)
def test_all_but_the_backbone_is_on_the_host(for_any, exported, signature, batching):
    model, _, graph = for_any
    if batching == "none":
        graph = graph_of(exported(model, batching=batching))
    # Of uint8 images, on the device that they travelled to.
    normalize = {"Cast", "Sub", "RealDiv", "Const"}
    rollouts = {"While", "Shape", "StridedSlice", "StatefulPartitionedCall"}
    calls = {"BatchFunction", "Case", "DeviceIndex", "Identity", "NoOp"}
    elsewhere = {
        node.op
        for node, place in operations(graph, signature, skipped=calls | {"While"})
        if not re.fullmatch("/device:CPU:[0*]", place)
    }
    lists = {op for op in elsewhere if op.startswith("TensorList")}
    allowed = calls if batching == "graph" else calls | normalize
    if signature == "attention":
        allowed = calls | normalize | rollouts | lists
    assert elsewhere <= allowed


@pytest.mark.parametrize("device", ["CPU", "GPU"])
@pytest.mark.parametrize("signature", ["serving_default", "serve_pixels"])
def test_nothing_of_the_backbone_is_placed(for_any, signature, device):
    _, _, graph = for_any
    nodes = [*operations(graph, signature, device, "BatchFunction")]
    assert "MatMul" in {node.op for node, _ in nodes}
    assert {place for _, place in nodes} == {""}


def test_uint8_images_enter_the_queue(for_any):
    _, _, graph = for_any
    for signature in ("serving_default", "serve_images", "embed", "classify"):
        [batch] = (
            node
            for node, _ in operations(graph, signature)
            if node.op == "BatchFunction"
        )
        assert [*batch.attr["Tin"].list.type] == [tf.uint8.as_datatype_enum]


def test_a_loaded_model_answers_the_same(for_any):
    model, folder, _ = for_any
    images = pictures(3, 3, model.image_size)
    loaded = tf.saved_model.load(str(folder)).signatures["serve_images"]
    expected = answers(folder, model)["serve_images"]
    found = loaded(images=tf.constant(images))
    np.testing.assert_allclose(found["scores"], expected["scores"], atol=1e-6)


@pytest.fixture
def keras_file(tiny_vit, tmp_path):
    path = tmp_path / "m.keras"
    tiny_vit().save(path)
    return path


def test_the_manifest_states_the_target(keras_file, tmp_path, monkeypatch, capsys):
    agreement = {"images": 8, "max_difference": 0.0, "top1": 1.0}
    monkeypatch.setattr(publish, "verified", lambda *_: agreement)
    words = ["export", str(keras_file), "--to", str(tmp_path / "m")]
    assert main([*words, "--target", "gpu", "--batching", "none"]) == 0
    file = tmp_path / "m" / "1" / "assets.extra" / "manifest.json"
    assert json.loads(file.read_text())["options"]["target"] == "gpu"
    capsys.readouterr()
    assert main(["versions", str(tmp_path / "m")]) == 0
    heading, *_, row = capsys.readouterr().out.strip().splitlines()
    assert "target" in heading
    assert " gpu " in row


def test_a_wrong_target_is_refused(keras_file, tmp_path, capsys):
    words = ["export", str(keras_file), "--to", str(tmp_path / "m")]
    assert main([*words, "--target", "tpu"]) == 2
    error = capsys.readouterr().err
    assert (
        "--target must be one of 'any', 'cpu', 'gpu'. Received: target='tpu'" in error
    )
    assert not (tmp_path / "m").exists()
