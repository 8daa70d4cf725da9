"""Requests that the corpus lacks: routes, several inputs, examples, gRPC."""

import base64
import gzip
import json

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import json_format
from protocol_model import save_protocol_model
from server_requests import local_server, prediction_stub, request
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)

PREFIX, INVALID = "/v1/models/probe", "INVALID_ARGUMENT"
REQUESTS = {
    "Predict": predict_pb2.PredictRequest,
    "Classify": classification_pb2.ClassificationRequest,
    "Regress": regression_pb2.RegressionRequest,
    "MultiInference": inference_pb2.MultiInferenceRequest,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    base_path = save_protocol_model(tmp_path_factory.mktemp("probe"), 12)
    with local_server({"probe": base_path}) as running:
        yield running


@pytest.fixture
def post(server):
    def send(body, verb="predict", path=PREFIX, **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        return request(server, "POST", f"{path}:{verb}", body, headers)

    return send


@pytest.fixture
def call(server):
    """Code, details and the answer of a PredictionService method."""

    def send(method, message):
        asked = json_format.ParseDict(message, REQUESTS[method]())
        with prediction_stub(server) as stub:
            try:
                return "OK", "", getattr(stub, method)(asked, timeout=20)
            except grpc.RpcError as error:
                return error.code().name, error.details(), None

    return send


# ---- routes ------------------------------------------------------------------------

TOO_LARGE = "9223372036854775808"


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/v1/models/versions/12", 400, "Missing model name in request."),
        ("GET", "/v1/models/labels/x/metadata", 400, "Missing model name in request."),
        ("GET", "/v1/models/metadata", 404, "any versions of model metadata"),
        ("GET", "/v1/models/probe/metadata/", 400, "Malformed request: GET "),
        ("GET", f"/v1/models/versions/{TOO_LARGE}", 400, None),
        ("GET", f"/v1/models/probe/versions/{TOO_LARGE}/metadata", 400, None),
        ("GET", "/v1/models/probe/versions/9223372036854775807", 404, "version 9223"),
        ("GET", "/v1/models/probe/versions/٣", 400, "Malformed request"),
        ("POST", f"/v1/models/probe/versions/{TOO_LARGE}:PREDICT", 400, None),
        ("POST", f"/v1/models/probe/versions/{TOO_LARGE}:foo", 400, "Malformed reque"),
        ("POST", "/v1/models/probe:Regress", 400, "Malformed request: POST "),
        ("POST", "/v1/models/probe%3Apredict", 400, "Malformed request: POST "),
        (
            "POST",
            "/v1/models/probe:predict?x=1",
            400,
            "Malformed request: POST /v1/models/probe:predict?x=1",
        ),
        ("DELETE", f"/v1/models/probe/versions/{TOO_LARGE}", 400, "Malformed request"),
        ("GET", "/v1/models/pr%6Fbe", 200, "AVAILABLE"),
    ],
)
def test_routes_have_tensorflow_servings_status(server, method, path, status, text):
    path = path.replace("٣", "%D9%A3")
    got, answer = request(server, method, path, b"{}" if method == "POST" else None)
    assert got == status
    if text is None:
        assert answer == ""
    else:
        assert text in json.dumps(answer)


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate, gzip", "notgzip"])
def test_a_body_is_inflated_where_gzip_is_in_the_header(post, coding):
    body = gzip.compress(b'{"inputs": 5}')
    headers = {"Content-Encoding": coding}
    assert post(body, **headers) == (200, {"outputs": 3.0})
    assert post(body, **{"content-ENCODING": coding}) == (200, {"outputs": 3.0})
    for broken in (
        body[:-4],
        body + b"x",
        body[:20] + b"xxxx",
        b'{"inputs": 5}',
        b"",
    ):
        empty = {"error": "JSON Parse error: The document is empty"}
        assert post(broken, **headers) == (400, empty)


def test_a_column_and_rows_of_several_inputs(post):
    inputs = {
        "number": [1, -2],
        "text": ["é", {"b64": base64.b64encode(b"\xff").decode()}],
        "row": [[1, 2.5], [3, 4]],
    }
    outputs = {
        "number": [2, -4],
        "text_bytes": [{"b64": "w6k="}, {"b64": "/w=="}],
        "total": [3.5, 7.0],
    }
    signature = {"signature_name": "several"}
    assert post({**signature, "inputs": inputs}) == (200, {"outputs": outputs})
    rows, answers = (
        [{name: values[i] for name, values in columns.items()} for i in range(2)]
        for columns in (inputs, outputs)
    )
    assert post({**signature, "instances": rows}) == (200, {"predictions": answers})


def test_outputs_that_json_cannot_represent(post):
    for form, value in (("instances", [1.0]), ("inputs", [1.0])):
        document = {"signature_name": "half_out", form: value}
        text = "Failed to write JSON value for tensor type: half"
        assert post(document) == (400, {"error": text})
    empty = {"signature_name": "half_out", "inputs": []}
    assert post(empty) == (200, {"outputs": []})
    empty = {"signature_name": "echo_half", "inputs": []}
    assert post(empty) == (200, {"outputs": []})


# ---- classify and regress ----------------------------------------------------------


# What is said of signatures, by verb.
UNSUITABLE = {
    "classify": {
        "double_scores": "Expected scores Tensor of DT_FLOAT. Got: DT_DOUBLE",
        "number_classes": "Expected classes Tensor of DT_STRING. Got: DT_FLOAT",
        "one_score": "Expected scores output batch size of 2. Got: 1",
        "flat_scores": "Expected Tensor shape: [batch_size num_classes] b",
        "regress": "to contain at least one of",
        "several": "Expected one input Tensor.",
        "": "No classification inputs found in SignatureDef: ",
    },
    "regress": {
        "double_outputs": "Expected output Tensor of DT_FLOAT. Got: DT_DOUBLE",
        "classify": "Expected one output Tensor.",
        "nope": "No signature was found with the name: nope",
    },
}


@pytest.mark.parametrize(
    ("verb", "signature", "text"),
    [(verb, *row) for verb, texts in UNSUITABLE.items() for row in texts.items()],
)
def test_signatures_that_are_not_for_examples(post, call, verb, signature, text):
    document = {"examples": [{"x": 1.5}, {"x": 2.5}]}
    status, answer = post({"signature_name": signature, **document}, verb)
    assert status == 400
    assert text in answer["error"]
    feature = {"x": {"floatList": {"value": [1.5]}}}
    example = {"features": {"feature": feature}}
    message = {
        "modelSpec": {"name": "probe", "signatureName": signature},
        "input": {"exampleList": {"examples": [example, example]}},
    }
    code, details, _ = call(verb.capitalize(), message)
    assert code == INVALID
    assert text in details


# ---- gRPC --------------------------------------------------------------------------


def tensor(*values):
    return json_format.MessageToDict(tf.make_tensor_proto(np.float32(values)))


def test_an_optional_input_may_be_left_out(call):
    assert call("Predict", predict_message("optional", "x"))[:2] == ("OK", "")


def predict_message(signature, *inputs):
    return {
        "modelSpec": {"name": "probe", "signatureName": signature},
        "inputs": {alias: tensor(1.0) for alias in inputs},
    }


@pytest.mark.parametrize(
    ("signature", "inputs", "text"),
    [
        ("optional", "xz", "Inputs contains invalid name. Us"),
        ("optional", "xyz", "input size does not match"),
        ("optional", "", "Signature input alias: x(feed name: "),
        (
            "several",
            "x",
            "input size does not match signature: 1!=3 len({x}) != len({number,row,te",
        ),
        ("nope", "x", 'Serving signature key "nope" not found'),
        (
            "__saved_model_init_op",
            "",
            "fetch data for 'NoOp', which produces no output.  To run to a node but",
        ),
    ],
)
def test_inputs_must_match_the_signatures_names(call, signature, inputs, text):
    code, details, _ = call("Predict", predict_message(signature, *inputs))
    assert code == ("FAILED_PRECONDITION" if signature == "nope" else INVALID)
    assert text in details


@pytest.mark.parametrize(
    "shape", [[2**31], [2**40], [2**62, 4], [-1], [2**20, 2**20, 0, -1], [1] * 255]
)
def test_a_small_message_does_not_become_a_huge_tensor(call, shape):
    proto = {
        "dtype": "DT_FLOAT",
        "tensorShape": {"dim": [{"size": size} for size in shape]},
        "floatVal": [1.0],
    }
    message = {"modelSpec": {"name": "probe"}, "inputs": {"x": proto}}
    assert call("Predict", message)[:2] == (INVALID, "tensor parsing error: x")


def test_multi_inference_checks_its_tasks_before_its_examples(call):
    tasks = [
        {
            "modelSpec": {"name": "probe", "signatureName": name},
            "methodName": f"tensorflow/serving/{name}",
        }
        for name in ("classify", "regress")
    ]
    code, details, _ = call("MultiInference", {"tasks": tasks})
    assert (code, details) == (INVALID, "Input is empty.")
    code, details, _ = call("MultiInference", {"tasks": [tasks[0], tasks[0]]})
    assert details == "Duplicate evaluation of signature: classify"
