"""Warm-up records: one for each signature and batch size, all of them answered."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

import keras_vit
from serving import manifest, verify, warmup
from serving.agreement import Disagreement
from serving.client import RestClient
from serving.local import LocalServer
from serving.local.errors import StartError
from serving.options import ExportOptions
from serving.signatures import save

SPECS = {
    "serving_default": {"image_bytes": {"dtype": "string", "shape": [None]}},
    "serve_images": {"images": {"dtype": "uint8", "shape": [None, 22, 14, 3]}},
    "serve_pixels": {"pixel_values": {"dtype": "float32", "shape": [None, 22, 14, 3]}},
    "classify": {"inputs": {"dtype": "string", "shape": [None]}},
}
SIGNATURES = {name: {"inputs": inputs} for name, inputs in SPECS.items()}


def logs(folder):
    """The records as TensorFlow's own reader and TensorFlow Serving's message give."""
    records = tf.data.TFRecordDataset(str(folder / warmup.PATH)).as_numpy_iterator()
    return [prediction_log_pb2.PredictionLog.FromString(record) for record in records]


def test_there_is_a_record_for_each_signature_and_batch_size(tmp_path):
    assert warmup.write(tmp_path, SIGNATURES, [1, 2, 4, 6]) == 16
    found = set()
    for log in logs(tmp_path):
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
        found.add((request.model_spec.signature_name, size))
    assert found == {(name, size) for name in SPECS for size in (1, 2, 4, 6)}


def test_the_file_is_small_whatever_the_images_size(tmp_path):
    large = {"images": {"dtype": "float32", "shape": [None, 512, 512, 3]}}
    warmup.write(tmp_path, {"serve_images": {"inputs": large}}, [1, 2, 4, 8, 16, 32])
    assert (tmp_path / warmup.PATH).stat().st_size < 2000
    [*_, last] = logs(tmp_path)
    tensor = last.predict_log.request.inputs["images"]
    assert tf.make_ndarray(tensor).shape == (32, 512, 512, 3)


def test_there_are_no_more_records_than_a_server_takes(tmp_path):
    assert warmup.write(tmp_path, SIGNATURES, range(1, 400)) == 1000


@pytest.fixture(scope="module")
def exported(tiny_vit, tmp_path_factory):
    """A version with its warm-up records, as `publish` writes it."""
    folder = tmp_path_factory.mktemp("models") / "m" / "1"
    folder.mkdir(parents=True)
    model = tiny_vit(preprocessing=keras_vit.ImagePreprocessing((22, 14)))
    save(model, folder, ExportOptions(max_batch_size=2, max_images=3))
    warmup.write(folder, manifest.signature_specs(folder), [1, 2])
    return folder


def test_a_server_answers_every_record_before_it_serves(exported):
    """Its own reader, and the whole of its code for requests."""
    server = LocalServer({"m": exported.parent}, rest_port=0, grpc_port=0)
    with server, RestClient(server.rest_url, "m") as client:
        assert client.metadata().version == 1
    assert len(logs(exported)) == 2 * len(manifest.signature_specs(exported))


def test_every_record_is_run_as_it_is_verified(exported):
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


def test_a_record_that_fails_is_found_before_a_server_refuses_the_version(exported):
    good = (exported / warmup.PATH).read_bytes()
    warmup.write(exported, manifest.signature_specs(exported), [4])  # max_images: 3
    with pytest.raises(Disagreement, match="a warm-up record of"):
        verify._run_warmup(verify._Served(exported))
    server = LocalServer({"m": exported.parent}, rest_port=0, grpc_port=0)
    with pytest.raises(StartError):
        server.__enter__()
    (exported / warmup.PATH).write_bytes(good)


def test_what_is_read_is_what_was_written(tmp_path):
    warmup.write(tmp_path, SIGNATURES, [3])
    read = dict(warmup.read(tmp_path))
    assert list(read) == list(SPECS)
    np.testing.assert_array_equal(
        read["serve_images"]["images"], np.zeros((3, 22, 14, 3), "uint8")
    )
    pixels = tf.io.decode_png(read["serving_default"]["image_bytes"][2])
    assert pixels.shape == (8, 8, 1)
