"""The local server with --enable_batching refuses what TensorFlow Serving refuses."""

import json
import logging

import pytest
import tensorflow as tf
from google.protobuf import text_format
from server_requests import local_server, request

from keras_vit.common.file_names import BATCHING_PARAMETERS
from serving import batching_parameters
from serving.local.status_errors import StartError

LAST = "Last entry in allowed_batch_sizes must match max_batch_size; last entry was "
SPLIT = "enable_large_batch_splitting { value: true } "
LARGER = (
    "When enable_large_batch_splitting is true, input_batch_size_limit must be greater "
    "than or equal to max_execution_batch_size."
)

# Parameters, and what a model server of 2.20 says at them; None: it loads the model.
CHECKED = [
    ("", None),
    ("max_batch_size { value: 8 } allowed_batch_sizes: [1, 2, 4, 8]", None),
    ("allowed_batch_sizes: [1, 1000]", None),
    ("allowed_batch_sizes: [1, 8]", LAST + "8; expected 1000"),
    (
        "max_batch_size { value: 64 } allowed_batch_sizes: [1, 2, 4, 8]",
        LAST + "8; expected 64",
    ),
    (
        SPLIT + "max_batch_size { value: 64 } max_execution_batch_size { value: 8 } "
        "allowed_batch_sizes: [1, 2, 4, 8]",
        LAST + "8; expected 64",
    ),
    (
        SPLIT + "max_batch_size { value: 64 } max_execution_batch_size { value: 8 } "
        "allowed_batch_sizes: [1, 2, 4, 8, 64]",
        None,
    ),
    # Nothing asks for a growing order.
    ("max_batch_size { value: 2 } allowed_batch_sizes: [4, 1, 2]", None),
    ("max_batch_size { value: 0 }", "input_batch_size_limit must be positive; was 0"),
    ("batch_timeout_micros { value: 0 }", None),
    (
        "batch_timeout_micros { value: -1 }",
        "batch_timeout_micros must be non-negative; was -1",
    ),
    ("max_enqueued_batches { value: 0 }", None),
    (
        SPLIT + "max_batch_size { value: 4 } max_enqueued_batches { value: 0 }",
        "max_enqueued_batches must be positive; was 0",
    ),
    ("max_batch_size { value: 4 } max_execution_batch_size { value: 8 }", None),
    (SPLIT + "max_batch_size { value: 4 }", None),
    (
        SPLIT + "max_batch_size { value: 4 } max_execution_batch_size { value: 8 }",
        LARGER + "148",
    ),
    (SPLIT, "max_execution_batch_size must be positive; was 0"),
    ('thread_pool_name { value: "x" } pad_variable_length_inputs: true', None),
    ("num_batch_threads { value: 0 }", "num_batch_threads must be positive; was 0"),
    ("max_batch_size: 8", "Invalid protobuf file: '"),
    ("no_such_field { value: 8 }", "Invalid protobuf file: '"),
]


@pytest.fixture
def written(tmp_path):
    def write(text, path="batching.config"):
        (tmp_path / path).write_text(text)
        return tmp_path / path

    return write


@pytest.mark.parametrize(("text", "error"), CHECKED)
def test_the_rules_of_the_parameters(written, text, error):
    def check():
        parameters = batching_parameters.read(written(text))
        batching_parameters.check_threads(parameters)
        return batching_parameters.queue_of(parameters)

    if error is None:
        assert isinstance(check(), batching_parameters.Queue)
    else:
        with pytest.raises(ValueError) as caught:
            check()
        assert str(caught.value).startswith(error)


def test_the_message_is_read_and_written(written):
    text = (
        "max_batch_size {\n  value: 6\n}\nallowed_batch_sizes: 1\n"
        "allowed_batch_sizes: 6\n"
    )
    message = batching_parameters.read(written(text))
    assert text_format.MessageToString(message) == text


@pytest.fixture(scope="module")
def base_path(tmp_path_factory):
    """Signatures with one input, two, a scalar output and one row too many."""
    folder = tmp_path_factory.mktemp("m")
    row = tf.TensorSpec(None, tf.float32, "x")

    @tf.function(input_signature=[row])
    def double(x):
        return {"y": 2 * x}

    @tf.function(input_signature=[row, tf.TensorSpec(None, tf.float32, "z")])
    def both(x, z):
        return {"y": x, "z": tf.identity(z)}

    @tf.function(input_signature=[row])
    def total(x):
        return {"y": tf.reduce_sum(x)}

    @tf.function(input_signature=[row])
    def longer(x):
        return {"y": tf.concat([x, x], 0)}

    signatures = {
        "serving_default": double,
        "both": both,
        "total": total,
        "longer": longer,
    }
    tf.saved_model.save(tf.Module(), str(folder / "1"), signatures=signatures)
    return folder


def serve(base_path, **flags):
    return local_server({"m": base_path}, **flags)


def predict(server, signature, inputs):
    """Status, and the outputs or the error's text."""
    document = {"signature_name": signature, "inputs": inputs}
    body = json.dumps(document)
    status, answer = request(server, "POST", "/v1/models/m:predict", body)
    return status, answer["outputs" if status == 200 else "error"]


@pytest.fixture(scope="module")
def batching(base_path, tmp_path_factory):
    """A server that would batch up to four rows."""
    path = tmp_path_factory.mktemp("config") / "batching.config"
    path.write_text("max_batch_size { value: 4 } allowed_batch_sizes: [2, 4]")
    flags = {"enable_batching": True, "batching_parameters_file": str(path)}
    with serve(base_path, **flags) as server:
        yield server


def test_requests_that_fit_into_a_batch_are_answered(batching):
    assert predict(batching, "", [1, 2, 3, 4]) == (200, [2, 4, 6, 8])
    two = {"x": [1], "z": [2]}
    assert predict(batching, "both", two) == (200, {"y": [1], "z": [2]})


# Recorded from TensorFlow Serving 2.20, but for the empty batch: that is not answered.
@pytest.mark.parametrize(
    ("signature", "inputs", "text"),
    [
        ("", [0] * 5, "Task size 5 is larger than maximum input batch size 4"),
        ("", 1, "Batching Run() input tensors must have at least one dimension"),
        (
            "both",
            {"x": [1, 2], "z": [1]},
            "Batching Run() input tensors must have equal 0th-dimension size",
        ),
        (
            "longer",
            [1],
            "Batched output tensor's 0th dimension does not equal the sum of the 0th "
            "dimension sizes of the input tensors",
        ),
        ("total", [1], "Batched output tensor has 0 dimensions"),
        (
            "",
            [],
            "With --enable_batching, TensorFlow Serving never answers an empty batch",
        ),
    ],
)
def test_requests_that_no_batch_can_take_are_refused(batching, signature, inputs, text):
    assert predict(batching, signature, inputs) == (400, text)


@pytest.mark.parametrize("inputs", [[0] * 1001, 1, []])
def test_without_batching_any_batch_size_is_answered(plain, inputs):
    assert predict(plain, "total", inputs)[0] == 200


@pytest.fixture(scope="module")
def plain(base_path):
    """A server without batching."""
    with serve(base_path) as server:
        yield server


def test_a_server_does_not_start_with_invalid_or_missing_parameters(base_path, written):
    path = str(written("allowed_batch_sizes: [1, 8]"))
    for file, message in (
        (path, f"{path}.*{LAST}8; expected 1000"),
        ("/nope/b.config", "cannot read /nope/b.config: No such file"),
    ):
        flags = {"enable_batching": True, "batching_parameters_file": file}
        with pytest.raises(StartError, match=message):
            serve(base_path, **flags).__enter__()


def test_a_server_says_that_it_runs_no_batches(base_path, caplog):
    with (
        caplog.at_level(logging.INFO, "serving.local"),
        serve(base_path, enable_batching=True),
    ):
        pass
    [line] = [r.message for r in caplog.records if "batching" in r.message]
    assert line.endswith("but each request runs alone here")


@pytest.fixture
def own_file(base_path):
    """Writes the parameters of the model itself."""
    path = base_path / "1" / BATCHING_PARAMETERS
    yield path.write_text
    path.unlink(missing_ok=True)


PER_MODEL = {"enable_batching": True, "enable_per_model_batching_parameters": True}


def test_a_models_own_file_counts_only_with_the_flag(base_path, own_file, written):
    own_file("allowed_batch_sizes: 8")
    common = {"enable_batching": True, "batching_parameters_file": str(written(""))}
    for flags in ({}, common, {"enable_per_model_batching_parameters": True}):
        with serve(base_path, **flags):
            pass
    with pytest.raises(StartError, match=LAST + "8; expected 1000"):
        serve(base_path, **PER_MODEL).__enter__()


def test_with_files_of_the_models_the_common_one_gives_the_threads(base_path, written):
    """A model without a file is not batched; the common queue is not looked at."""
    path = str(written("max_batch_size { value: 0 }"))
    with serve(base_path, **PER_MODEL, batching_parameters_file=path) as server:
        assert predict(server, "total", [2]) == (200, 2)
    written("num_batch_threads { value: 0 }")
    with pytest.raises(StartError, match="num_batch_threads must be positive; was 0"):
        serve(base_path, **PER_MODEL, batching_parameters_file=path).__enter__()
