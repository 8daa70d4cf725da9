"""Warm-up records: their signatures and batch sizes; servers answer all of them."""

import numpy as np
import pytest
import tensorflow as tf
from few_formats import few_formats
from server_requests import local_server
from tensorflow_serving.apis import prediction_log_pb2

import keras_vit
from keras_vit.common.file_names import WARMUP_REQUESTS
from serving.client import RestClient
from serving.export import publish, signatures, verify, warmup_records
from serving.export.numeric_agreement import Disagreement
from serving.export.options import ExportOptions
from serving.local.status_errors import StartError
from serving.rollout import manifest

SPECS = {
    "serving_default": {"image_bytes": {"dtype": "string", "shape": [None]}},
    "serve_images": {"images": {"dtype": "uint8", "shape": [None, 22, 14, 3]}},
    "serve_pixels": {"pixel_values": {"dtype": "float32", "shape": [None, 22, 14, 3]}},
    "classify": {"inputs": {"dtype": "string", "shape": [None]}},
}
SIGNATURES = {name: {"inputs": inputs} for name, inputs in SPECS.items()}


def logs(folder):
    """The records as TensorFlow's own reader and TensorFlow Serving's message give."""
    records = tf.data.TFRecordDataset(str(folder / WARMUP_REQUESTS)).as_numpy_iterator()
    return [prediction_log_pb2.PredictionLog.FromString(record) for record in records]


def write(folder, signatures, sizes, kind="full"):
    warmup_records.write(
        folder, warmup_records.requests(signatures, sizes, kind), signatures
    )


def found_in(folder):
    """The signature and the number of images of each record; shapes are checked."""
    found = []
    for log in logs(folder):
        if log.HasField("classify_log"):
            request = log.classify_log.request
            size = len(request.input.example_list.examples)
        else:
            request = log.predict_log.request
            [(name, tensor)] = request.inputs.items()
            array = tf.make_ndarray(tensor)
            spec = SPECS[request.model_spec.signature_name][name]
            assert array.shape[1:] == tuple(spec["shape"][1:])
            if spec["dtype"] != "string":
                assert array.dtype == spec["dtype"]
            size = len(array)
        found.append((request.model_spec.signature_name, size))
    return found


LARGEST = [("serving_default", 6), *((name, 1) for name in [*SPECS][1:])]
FULL = [(name, size) for name in SPECS for size in (1, 2, 4, 6)]


@pytest.mark.parametrize(
    ("kind", "expected"), [(ExportOptions().warmup, LARGEST), ("full", FULL)]
)
def test_records_are_of_the_largest_batch_or_of_every_size(tmp_path, kind, expected):
    write(tmp_path, SIGNATURES, [1, 2, 4, 6], kind)
    assert sorted(found_in(tmp_path)) == sorted(expected)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("largest", 2), ("full", 2 * 3)])
@pytest.mark.usefixtures("unverified")
def test_a_published_version_has_the_requested_records(
    tiny_vit, tmp_path, only, kind, count
):
    """No batch is larger than `max_images`."""
    options = ExportOptions(warmup=kind, max_batch_size=8, max_images=4)
    only("serving_default", "serve_images")
    with few_formats():
        published = publish.publish(tiny_vit(depth=1), tmp_path / "m", options)
    records = logs(published.path)
    assert len(records) == count
    sizes = [
        len(inputs[next(iter(inputs))])
        for _, inputs in warmup_records.read(published.path)
    ]
    assert max(sizes) == 4
    assert published.manifest["options"]["warmup"] == kind


def test_the_file_is_small_for_large_images(tmp_path):
    large = {"images": {"dtype": "float32", "shape": [None, 512, 512, 3]}}
    write(tmp_path, {"serve_images": {"inputs": large}}, [1, 2, 4, 8, 16, 32])
    assert (tmp_path / WARMUP_REQUESTS).stat().st_size < 2000
    [*_, last] = logs(tmp_path)
    tensor = last.predict_log.request.inputs["images"]
    assert tf.make_ndarray(tensor).shape == (32, 512, 512, 3)


def test_there_are_at_most_1000_records(tmp_path):
    write(tmp_path, SIGNATURES, range(1, 400))
    assert len(logs(tmp_path)) == 1000


@pytest.fixture(scope="module")
def exported(tiny_vit, tmp_path_factory):
    """A version with its warm-up records, as `publish` writes it."""
    folder = tmp_path_factory.mktemp("models") / "m" / "1"
    folder.mkdir(parents=True)
    model = tiny_vit(depth=1, preprocessing=keras_vit.ImagePreprocessing((22, 14)))
    with pytest.MonkeyPatch.context() as patch, few_formats():
        patch.setattr(signatures, "signature_names", lambda _: ["embed", "classify"])
        signatures.save(model, folder, ExportOptions(max_batch_size=2, max_images=3))
    write(folder, manifest.signature_specs(folder), [1, 2])
    return folder


@pytest.mark.slow
def test_a_server_loads_a_version_with_its_records(exported):
    server = local_server({"m": exported.parent})
    with server, RestClient(server.rest_url, "m") as client:
        assert client.metadata().version == 1
    assert len(logs(exported)) == 2 * len(manifest.signature_specs(exported))


@pytest.mark.slow
def test_verification_runs_every_record(exported):
    ran = []

    class Recording(verify._Served):
        def run(self, name, inputs):
            ran.append((name, len(next(iter(inputs.values())))))
            return super().run(name, inputs)

    served = Recording(exported)
    verify._run_warmup(served)
    assert sorted(ran) == sorted(
        (name, n) for name in served.signatures for n in (1, 2)
    )


def test_verification_and_servers_refuse_a_failing_record(exported):
    good = (exported / WARMUP_REQUESTS).read_bytes()
    write(exported, manifest.signature_specs(exported), [4])  # max_images: 3
    with pytest.raises(Disagreement, match="a warm-up record of"):
        verify._run_warmup(verify._Served(exported))
    server = local_server({"m": exported.parent})
    with pytest.raises(StartError):
        server.__enter__()
    (exported / WARMUP_REQUESTS).write_bytes(good)


def test_records_are_read_as_written(tmp_path):
    write(tmp_path, SIGNATURES, [3])
    read = dict(warmup_records.read(tmp_path))
    assert list(read) == list(SPECS)
    np.testing.assert_array_equal(
        read["serve_images"]["images"], np.zeros((3, 22, 14, 3), "uint8")
    )
    pixels = tf.io.decode_png(read["serving_default"]["image_bytes"][2])
    assert pixels.shape == (8, 8, 1)
