"""The local server over small SavedModels: REST and gRPC, good and bad requests."""

import base64
import json

import grpc
import numpy as np
import pytest
from server_requests import local_server, predict_request, request
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    inference_pb2,
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
)
from tensorflow_serving.apis.classification_pb2 import ClassificationRequest
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusRequest


@pytest.fixture(scope="module")
def server(base_path, monitoring):
    with local_server(
        {"double": base_path},
        rest_api_timeout_in_ms=1000,
        monitoring_config_file=monitoring,
        enable_grpc_healthcheck_service=True,
    ) as running:
        yield running


@pytest.fixture
def post(server):
    def send(document, verb="predict", model="double", **headers):
        body = document if isinstance(document, bytes) else json.dumps(document)
        return request(server, "POST", f"/v1/models/{model}:{verb}", body, headers)

    return send


@pytest.fixture
def get(server):
    return lambda path: request(server, "GET", path)


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.grpc_address) as opened:
        yield opened


@pytest.fixture
def call(channel):
    """Call Predict with arrays."""
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def send(signature="", name="double", timeout=20, **inputs):
        asked = predict_request(name, signature, **inputs)
        return stub.Predict(asked, timeout=timeout)

    return send


def code_of(caught):
    return caught.value.code().name


def test_rest_predicts_in_both_formats(post):
    assert post({"instances": [1.0, 2.5]}) == (200, {"predictions": [2.0, 5.0]})
    status, answer = post({"instances": [[1.0, 2.5]]})
    text = "Shape of tensor x [1,2] is not compatible with expected shape [?]."
    assert (status, answer) == (400, {"error": text})
    assert post({"inputs": {"x": [1.0, 2.5]}}) == (200, {"outputs": [2.0, 5.0]})


def test_bytes_go_in_and_out_in_base64(post):
    data = base64.b64encode(bytes(range(256))).decode()
    status, answer = post({"signature_name": "echo", "instances": [{"b64": data}]})
    assert status == 200
    assert answer["predictions"] == [{"s_bytes": {"b64": data}, "length": 256}]


def test_grpc_and_rest_give_the_same_numbers(post, call):
    images = np.random.default_rng(5).integers(0, 256, (3, 2, 3), dtype=np.uint8)
    document = {"signature_name": "mean", "instances": images.tolist()}
    _, answer = post(document)
    outputs = call("mean", images=images).outputs
    expected = images.mean((1, 2), dtype=np.float64)
    np.testing.assert_allclose(answer["predictions"], expected, rtol=1e-6)
    np.testing.assert_allclose(outputs["mean"].float_val, expected, rtol=1e-6)


def test_grpc_answers_name_version_and_signature(call):
    spec = call(x=np.float32([1])).model_spec
    assert (spec.name, spec.version.value) == ("double", 3)
    assert spec.signature_name == "serving_default"


def test_classify_and_regress_over_rest_and_grpc(post, channel):
    document = {"signature_name": "classify", "examples": [{"x": 0.25}]}
    assert post(document, "classify") == (
        200,
        {"results": [[["low", 0.75], ["high", 0.25]]]},
    )
    document = {"signature_name": "regress", "examples": [{"x": 1.5}]}
    assert post(document, "regress") == (200, {"results": [3.0]})
    asked = ClassificationRequest()
    asked.model_spec.name, asked.model_spec.signature_name = "double", "classify"
    example = asked.input.example_list.examples.add()
    example.features.feature["x"].float_list.value.append(0.25)
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    classes = stub.Classify(asked).result.classifications[0].classes
    assert [(c.label, c.score) for c in classes] == [("low", 0.75), ("high", 0.25)]


def multi_inference(channel, *tasks):
    asked = inference_pb2.MultiInferenceRequest()
    for name, method in tasks:
        task = asked.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = name, method
    example = asked.input.example_list.examples.add()
    example.features.feature["x"].float_list.value.append(1.5)
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    return stub.MultiInference(asked).results


def test_multi_inference_gives_every_signature_the_same_examples(channel):
    """Each has an input tensor of its own, as TensorFlow 2 exports them."""
    tasks = [("double", "regress"), ("double", "classify")]
    for order in (tasks, tasks[::-1]):
        results = multi_inference(channel, *order)
        assert [r.model_spec.signature_name for r in results] == [n for _, n in order]
        by_name = {r.model_spec.signature_name: r for r in results}
        assert by_name["regress"].regression_result.regressions[0].value == 3.0
        [row] = by_name["classify"].classification_result.classifications
        assert [one.score for one in row.classes] == [-0.5, 1.5]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "Found ModelSpec with an empty model name."),
        ("other", "All ModelSpecs in a MultiInferenceRequest must access the same"),
    ],
)
def test_multi_inference_refuses_tasks_without_a_common_model(channel, name, text):
    with pytest.raises(grpc.RpcError) as caught:
        multi_inference(channel, ("double", "regress"), (name, "classify"))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith(text)


def test_status_and_metadata(get, channel):
    status, answer = get("/v1/models/double")
    assert status == 200
    assert answer["model_version_status"] == [
        {
            "version": "3",
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }
    ]
    status, answer = get("/v1/models/double/versions/3/metadata")
    rest = answer["metadata"]["signature_def"]["signature_def"]
    assert answer["model_spec"]["version"] == "3"
    assert rest["mean"]["inputs"]["images"]["tensor_shape"]["dim"][1]["size"] == "2"
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    asked = get_model_metadata_pb2.GetModelMetadataRequest(
        metadata_field=["signature_def"]
    )
    asked.model_spec.name = "double"
    signatures = get_model_metadata_pb2.SignatureDefMap()
    stub.GetModelMetadata(asked).metadata["signature_def"].Unpack(signatures)
    assert set(signatures.signature_def) == set(rest)


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/v1/models/nope", 404, "Could not find any versions of model nope"),
        ("/v1/models/double/versions/9", 404, "version 9 of model double"),
        ("/v1/models/nope/versions/9", 404, "Could not find version 9 of model nope"),
        ("/v1/models/nope/metadata", 404, "for request: Latest(nope)"),
        ("/v1/models/double/labels/x/metadata", 400, "version label: x"),
        ("/v1/models", 400, "Missing model name in request."),
        ("/v1/models/double/", 400, "Malformed request: GET /v1/models/double/"),
        ("/v1/models/double:predict", 400, "Malformed request: GET /v1/models/"),
        ("/v1/models/a%2Fb", 404, "Could not find any versions of model a/b"),
        ("/v1/models/double?x=1", 404, "any versions of model double?x=1"),
    ],
)
def test_paths_that_are_refused(get, path, status, text):
    got, answer = get(path)
    assert got == status
    assert text in answer["error"]


def test_outside_of_v1_the_answer_is_an_html_404(get):
    status, page = get("/statuspage")
    assert status == 404
    assert page.startswith("<HTML>")


@pytest.mark.parametrize(
    ("document", "status", "text"),
    [
        (
            {"signature_name": "below_100", "instances": [100.0]},
            400,
            "x must be below 100",
        ),
        ({"signature_name": "nope", "instances": [1.0]}, 400, '"nope" not found'),
        ({"signature_name": "mean", "inputs": []}, 400, "[0] is not compatible"),
        (
            {"signature_name": "pause", "inputs": 10**9},
            504,
            "Timed out waiting for notification",
        ),
        (b'{"instances": ' + b"[" * 600 + b"]" * 600 + b"}", 400, "tensor parsing"),
    ],
)
def test_requests_that_are_refused(post, document, status, text):
    got, answer = post(document)
    assert got == status
    assert text in answer["error"]


def test_unknown_models_and_labels_are_reported(post):
    assert post({"instances": [1]}, model="nope") == (
        404,
        {"error": "Servable not found for request: Latest(nope)"},
    )
    assert post({"instances": [1]}, model="double/versions/9")[0] == 404
    assert post({"instances": [1]}, model="double/labels/x")[0] == 400


@pytest.mark.parametrize(
    ("signature", "inputs", "text"),
    [
        ("", {"x": np.float64([1])}, "float but double"),
        ("below_100", {"x": np.float32([100])}, "x must be below 100"),
        ("mean", {"images": np.zeros((0, 2, 3), np.uint8)}, "empty batch"),
    ],
)
def test_grpc_requests_that_are_refused(call, signature, inputs, text):
    with pytest.raises(grpc.RpcError) as caught:
        call(signature, **inputs)
    assert code_of(caught) == "INVALID_ARGUMENT"
    assert text in caught.value.details()


def test_grpc_reports_a_missing_model_spec_or_model(channel):
    stub = model_service_pb2_grpc.ModelServiceStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetModelStatus(GetModelStatusRequest())
    assert caught.value.details() == "Missing ModelSpec"
    asked = GetModelStatusRequest()
    asked.model_spec.name = "nope"
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetModelStatus(asked)
    assert code_of(caught) == "NOT_FOUND"


def test_health_knows_short_names_only(channel):
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"\n\x11PredictionService") == b"\x08\x01"
    with pytest.raises(grpc.RpcError) as caught:
        check(b"\n\x04nope")
    assert code_of(caught) == "NOT_FOUND"
