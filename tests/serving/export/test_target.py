"""Exports for CPUs, for GPUs and for both: loops, places, answers."""

import functools
import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from few_formats import few_formats
from saved_graphs import LOOPS, graph_of, operations, with_branches_of
from saved_models import SavedModel, examples, pictures, png_files
from tiny_model import small, with_random_weights

import keras_vit
from serving.__main__ import main
from serving.export import signatures
from serving.export.backbone import make_backbone
from serving.export.host import HOST
from serving.export.options import ExportOptions

FILES = ("serving_default", "embed", "classify", "attention")
SIGNATURES = (*FILES, "serve_images", "serve_pixels")
# Of one target: the others differ from these before the backbone alone.
FEW = ("serve_images", "attention", "serve_pixels")
SIDES = {257: 32, 577: 48}  # of images that have so many tokens


@functools.cache
def vit(tokens, **kwargs):
    side = SIDES[tokens]
    preprocessing = keras_vit.ImagePreprocessing(side)
    shape = {"image_size": side, "width": 16, "heads": 2}
    model = small(**shape, preprocessing=preprocessing, **kwargs)
    return with_random_weights(model, 3)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Exports a model of so many tokens, once for the same options.

    All tokens of its one block are queries, as the classifier reads their mean.
    """

    @functools.cache
    def export(tokens, names=SIGNATURES, **options):
        folder = tmp_path_factory.mktemp("version") / "1"
        with few_formats(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(signatures, "signature_names", lambda _: list(names))
            model = vit(tokens, depth=1, pooling="avg")
            signatures.save(model, folder, ExportOptions(**options))
        return folder

    return export


@pytest.fixture(scope="module")
def for_any(tmp_path_factory):
    """The graph of an export of 257 tokens, for any device and all formats."""
    folder = tmp_path_factory.mktemp("version") / "1"
    signatures.save(vit(257), folder, ExportOptions())
    return graph_of(folder)


@pytest.fixture(scope="module")
def expected(exported):
    """The answers of that export."""
    return answers(exported(257))


def loops(graph, signature, device, start="BatchFunction"):
    """The loops of the model itself; images are decoded in loops anywhere."""
    nodes = operations(graph, signature, device, start)
    return sum(node.op in LOOPS for node, _ in nodes)


@pytest.mark.parametrize("signature", ["serving_default", "serve_pixels"])
def test_for_any_device_only_a_cpu_runs_loops(for_any, signature):
    # One in each block but the last, which has the class token as its one query.
    assert loops(for_any, signature, "CPU") == 1
    assert loops(for_any, signature, "GPU") == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "target", "batching", "count"),
    [
        (257, "cpu", "graph", 1),
        (257, "gpu", "graph", 0),
        pytest.param(577, "any", "none", 0, marks=pytest.mark.slow),
        pytest.param(577, "gpu", "none", 0, marks=pytest.mark.slow),
        pytest.param(577, "cpu", "none", 1, marks=pytest.mark.slow),
    ],
)
def test_what_a_gpu_runs_of_an_export(exported, tokens, target, batching, count):
    graph = graph_of(exported(tokens, FEW, target=target, batching=batching))
    start = "BatchFunction" if batching == "graph" else ""
    assert loops(graph, "serve_pixels", "GPU", start) == count


def test_a_gpu_runs_one_turn_for_each_picture_of_attention(for_any):
    placed = operations(for_any, "attention", "GPU")
    nodes = [node for node, place in placed if not place]
    assert sum(node.op in LOOPS for node in nodes) == 1


def test_each_branch_is_the_graph_for_its_device(for_any):
    """To the operation: a GPU's branch is what `target="gpu"` exports."""
    for platform in ("cpu", "gpu"):
        backbone = make_backbone(vit(257), "float32", platform)
        alone = backbone._call.get_concrete_function().graph.as_graph_def()
        nodes = operations(for_any, "serve_pixels", platform.upper(), "Case")
        found = [node.op for node, _ in nodes if node.op != "StatefulPartitionedCall"]
        for operation in ("MatMul", "BatchMatMulV2", "Softmax", "Cast", *LOOPS):
            inner = [n for f in alone.library.function for n in f.node_def]
            expected = [node.op for node in (*alone.node, *inner)].count(operation)
            assert found.count(operation) == expected, operation


def device_choices(model, precision):
    """Count the operations that ask for the device, of scores and of rollouts."""
    backbone = make_backbone(model, precision, "any")
    spec = tf.TensorSpec([None, 22, 14, 3], tf.float32)
    graphs = [
        tf.function(call, input_signature=[spec]).get_concrete_function().graph
        for call in (lambda x: backbone(x), lambda x: backbone.rollout(x))
    ]
    nodes = [[node.op for node in graph.as_graph_def().node] for graph in graphs]
    return [each.count("DeviceIndex") for each in nodes]


def test_one_graph_serves_both_where_they_are_the_same(tiny_vit):
    assert device_choices(tiny_vit(depth=1), "float32") == [0, 0]


def test_bfloat16_takes_each_device_s_softmax(tiny_vit):
    """A CPU's kernel computes in float32 itself; on a GPU the graph says so."""
    assert device_choices(tiny_vit(depth=1), "bfloat16")[0] == 1


def answers(folder):
    images = pictures(3, 3, (32, 32))
    files = png_files(images)
    inputs = {
        "serving_default": files,
        "serve_images": images,
        "serve_pixels": ((images - 127.5) / 127.5).astype("float32"),
        "embed": files,
        "classify": examples(files),
        "attention": files,
    }
    served = SavedModel(folder)
    found = {name: served.run(name, inputs[name]) for name in served.signatures}
    served.close()
    return found


def check_equal(found, expected, atol=1e-5):
    for name in found:
        for output, values in expected[name].items():
            if values.dtype == object or output == "class_ids":
                assert found[name][output].tolist() == values.tolist()
            else:
                np.testing.assert_allclose(
                    found[name][output], values, rtol=1e-5, atol=atol
                )


@pytest.mark.parametrize(
    "names", [FEW, pytest.param(SIGNATURES, marks=pytest.mark.slow)], ids=len
)
@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_all_targets_answer_the_same(exported, expected, target, names):
    found = answers(exported(257, names, target=target, batching="graph"))
    assert set(found) == set(names)
    check_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"batching": "none"}, marks=pytest.mark.slow),
        pytest.param({"precision": "bfloat16"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_branch_of_a_gpu_answers_the_same(exported, expected, options, tmp_path):
    """It is run here on a CPU, which is told to be a GPU."""
    folder = shutil.copytree(exported(257, **options), tmp_path / "1")
    expected = answers(folder) if options else expected
    with_branches_of(folder, "GPU")
    tolerance = 2e-2 if "precision" in options else 1e-5
    check_equal(answers(folder), expected, tolerance)


@pytest.mark.parametrize("signature", FILES)
def test_files_are_decoded_and_resized_on_the_host(for_any, signature):
    steps = {"DecodeJpeg", "DecodePng", "DecodeImage", "DecodeRaw", "ResizeBilinear"}
    places = {}
    for node, place in operations(for_any, signature, skipped=("BatchFunction",)):
        places.setdefault(node.op, set()).add(place)
    assert steps <= {*places}
    steps |= {"EncodePng"} & {*places}
    assert {place for step in steps for place in places[step]} == {HOST}


@pytest.mark.parametrize("signature", SIGNATURES)
@pytest.mark.parametrize(
    "batching", ["graph", pytest.param("none", marks=pytest.mark.slow)]
)
def test_all_but_the_backbone_is_on_the_host(for_any, exported, signature, batching):
    none = batching == "none"
    graph = graph_of(exported(257, batching=batching)) if none else for_any
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
    nodes = [*operations(for_any, signature, device, "BatchFunction")]
    assert "MatMul" in {node.op for node, _ in nodes}
    assert {place for _, place in nodes} == {""}


def test_uint8_images_enter_the_queue(for_any):
    for signature in ("serving_default", "serve_images", "embed", "classify"):
        [batch] = (
            node
            for node, _ in operations(for_any, signature)
            if node.op == "BatchFunction"
        )
        assert [*batch.attr["Tin"].list.type] == [tf.uint8.as_datatype_enum]


def test_a_loaded_model_answers_the_same(exported, expected):
    loaded = tf.saved_model.load(str(exported(257))).signatures["serve_images"]
    found = loaded(images=tf.constant(pictures(3, 3, (32, 32))))["scores"]
    np.testing.assert_allclose(found, expected["serve_images"]["scores"], atol=1e-6)


@pytest.fixture
def keras_file(tiny_vit, tmp_path):
    path = tmp_path / "m.keras"
    tiny_vit(depth=1).save(path)
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("unverified")
def test_the_manifest_states_the_target(keras_file, tmp_path, only, capsys):
    only("serve_pixels")
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
