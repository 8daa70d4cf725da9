"""The local server's warm-up: which files are read, and what each record runs."""

import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from keras_vit.common.file_names import WARMUP_REQUESTS
from serving.local.status_errors import StatusError
from serving.local.warmup import MAX_RECORDS, warm_up


def log(kind, name="m"):
    """A record with a request of a kind."""
    record = prediction_log_pb2.PredictionLog()
    request = getattr(record, f"{kind}_log").request
    if kind == "multi_inference":
        request.tasks.add().model_spec.name = name
    else:
        request.model_spec.name = name
    return record.SerializeToString()


@pytest.fixture
def folder(tmp_path):
    """Writes a version's warm-up file from records, or from bytes."""

    def write(content):
        path = tmp_path / WARMUP_REQUESTS
        path.parent.mkdir()
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            with tf.io.TFRecordWriter(str(path)) as writer:
                for record in content:
                    writer.write(record)
        return str(tmp_path)

    return write


def ran(folder, iterations=0):
    """The requests that warming up runs, in their order."""
    requests = []
    count = warm_up(folder, requests.append, iterations)
    return count, [type(request).__name__ for request in requests]


def test_without_a_file_and_with_an_empty_one_nothing_runs(tmp_path, folder):
    assert ran(str(tmp_path)) == (0, [])
    assert ran(folder(b"")) == (0, [])


def test_every_kind_of_record_runs(folder):
    kinds = ("predict", "classify", "regress", "multi_inference")
    assert ran(folder([log(kind) for kind in kinds])) == (
        4,
        [
            "PredictRequest",
            "ClassificationRequest",
            "RegressionRequest",
            "MultiInferenceRequest",
        ],
    )


def test_a_record_without_a_log_runs_nothing_and_one_of_a_stream_all(folder):
    stream = prediction_log_pb2.PredictionLog()
    for name in ("a", "b"):
        request = predict_pb2.PredictRequest()
        request.model_spec.name = name
        stream.predict_streamed_log.request.append(request)
    count, kinds = ran(folder([b"", stream.SerializeToString()]))
    assert (count, kinds) == (2, ["PredictRequest"] * 2)


@pytest.mark.parametrize(("iterations", "times"), [(-1, 1), (0, 1), (1, 1), (3, 3)])
def test_each_runs_as_often_as_the_flag_says(folder, iterations, times):
    assert ran(folder([log("predict")]), iterations)[1] == ["PredictRequest"] * times


def session_run():
    record = prediction_log_pb2.PredictionLog()
    record.session_run_log.request.model_spec.name = "m"
    return record.SerializeToString()


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [
        (
            b"x" * 40,
            "DATA_LOSS",
            r"^corrupted record at 0 \(Is this even a TFRecord file\?\)\. "
            r"Please verify your warmup data is in TFRecord format\.$",
        ),
        ([b"\xff\xff"], "INVALID_ARGUMENT", "^Failed to parse warmup record: "),
        ([session_run()], "UNIMPLEMENTED", "^Unsupported log_type for warmup: session"),
        (
            [b""] * (MAX_RECORDS + 1),
            "INVALID_ARGUMENT",
            r"^Number of warmup records exceeds the maximum \(1000\) at ",
        ),
    ],
)
def test_invalid_warmup_files_fail_the_load(folder, content, code, text):
    with pytest.raises(StatusError, match=text) as caught:
        ran(folder(content))
    assert caught.value.code == code


def test_the_maximum_number_of_records(folder):
    assert ran(folder([log("predict")] * MAX_RECORDS))[0] == MAX_RECORDS
