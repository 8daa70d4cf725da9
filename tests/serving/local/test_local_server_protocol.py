"""Neighbours of the recorded exchanges: other names, types, spellings and orders."""

import base64
import gzip
import http.client
import json

import grpc
import numpy as np
import pytest
import tensorflow as tf
from fuzz_messages import METHODS
from google.protobuf import json_format
from protocol_model import save_protocol_model
from test_local_server import request

from serving.local import LocalServer

PREFIX = "/v1/models/probe"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    base_path = save_protocol_model(tmp_path_factory.mktemp("probe"), 12)
    with LocalServer({"probe": base_path}, rest_port=0, grpc_port=0) as running:
        running.base_path = base_path
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
    """Code, details and the answer as JSON."""

    def send(method, message):
        path = next(path for path in METHODS if path.endswith(f"/{method}"))
        kinds = METHODS[path]
        data = json_format.ParseDict(message, kinds[0]()).SerializeToString()
        with grpc.insecure_channel(server.grpc_address) as channel:
            try:
                answer = channel.unary_unary(path)(data, timeout=20)
            except grpc.RpcError as error:
                return error.code().name, error.details(), None
        return "OK", "", json_format.MessageToDict(kinds[1].FromString(answer))

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
        ("DELETE", f"/v1/models/probe/versions/{TOO_LARGE}", 400, "Malformed request"),
        ("GET", "/v1/models/pr%6Fbe", 200, "AVAILABLE"),
        ("GET", "/v1/models/probe%00", 404, "Could not find any versions of model pro"),
        ("GET", "/v1/models/probe#x", 404, "any versions of model probe#x"),
        ("GET", "http://h:80/v1/models/probe", 200, "AVAILABLE"),
        ("GET", "//user@[::1]/v1/models/probe", 200, "AVAILABLE"),
        ("GET", "http://h/v1/models/probe/x", 400, "GET /v1/models/probe/x"),
    ],
)
def test_routes(server, method, path, status, text):
    path = path.replace("٣", "%D9%A3")
    got, answer = request(server, method, path, b"{}" if method == "POST" else None)
    assert got == status
    if text is None:
        assert answer == ""
    else:
        assert text in json.dumps(answer)


NO_URI = ["/a[b]", '/"x"', "/a|b", "/a%", "/a?x=%2", "/a?{}", "/a#b#c"]


@pytest.mark.parametrize(
    "target",
    [f"/v1/models{path}" for path in NO_URI]
    + ["http://h:65536/v1/models", "http://h:x/v1/models", "//[h]/v1/models", "a:b:c|"],
)
def test_what_no_uri_holds_is_refused_by_the_http_library(server, target):
    status, answer = request(server, "GET", target)
    assert (status, answer[:6]) == (400, "<HTML>")


@pytest.mark.parametrize("method", ["FOO", "get", "PROPFIND", "TRACE", "CONNECT"])
def test_methods_that_the_http_library_does_not_know(server, method):
    status, answer = request(server, method, PREFIX)
    assert (status, answer[:6]) == (501, "<HTML>")


# ---- JSON --------------------------------------------------------------------------


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [900, 1100, 20_000])
def test_deep_nesting_that_is_not_used_is_read_and_ignored(post, opening, depth):
    closing = "]" if opening == "[" else "}"
    nested = (opening * depth + "1" + closing * depth).encode()
    body = b'{"unused": %s, "instances": [5]}' % nested
    assert post(body) == (200, {"predictions": [3.0]})
    body = b'{"signature_name": %s, "instances": [5]}' % nested
    status, answer = post(body)
    assert status == 400
    assert "'signature_name' key must be a string value." in answer["error"]


@pytest.mark.parametrize("depth", [65, 255, 3000])
@pytest.mark.parametrize("form", ["instances", "inputs"])
def test_a_tensor_of_too_many_dimensions(post, depth, form):
    body = b'{"%s": %s1%s}' % (form.encode(), b"[" * depth, b"]" * depth)
    assert post(body) == (400, {"error": "tensor parsing error: x"})


def test_deep_and_ragged(post):
    deep = b"[" * 3000 + b"1" + b"]" * 3000
    status, answer = post(b'{"inputs": [%s, 2]}' % deep)
    assert status == 400
    assert "JSON Value: 2 found at incorrect level: 2" in answer["error"]


def test_what_follows_the_document_is_not_looked_at(post):
    for rest in (b"]", b'"\\ud800"', b"\xff", b"[" * 5000, b"1e999"):
        assert post(b'{"instances": [5]}' + rest)[0] == 200


def test_half_of_a_surrogate_pair_is_three_bytes_or_an_error(server, post):
    body = b'{"signature_name": "echo_string", "inputs": "\\udc00"}'
    connection = http.client.HTTPConnection(server.rest_url.removeprefix("http://"))
    connection.request("POST", f"{PREFIX}:predict", body)
    assert connection.getresponse().read() == b'{"outputs": "\xed\xb0\x80"}'
    connection.close()
    for wrong in (b"\\ud800", b"\\ud800\\u0041", b"\\udbff\\ud800", b"\\ud8"):
        status, answer = post(b'{"inputs": "%s"}' % wrong)
        assert status == 400
        assert answer["error"].startswith("JSON Parse error: ")


LIMITS = {
    "int8": (-(2**31), 2**31 - 1),
    "int16": (-(2**31), 2**31 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint8": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}


@pytest.mark.parametrize("name", LIMITS)
def test_integers_up_to_the_limits_of_the_parser(post, name):
    low, high = LIMITS[name]
    signature = {"signature_name": f"echo_{name}"}
    wrapped = [int(np.array(value).astype(name)) for value in (low, high)]
    status, answer = post({**signature, "instances": [low, high]})
    assert (status, answer) == (200, {"predictions": wrapped})
    for value in (low - 1, high + 1):
        for form in ("instances", "inputs"):
            status, answer = post({**signature, form: [value]})
            assert status == 400
            assert f"is not of expected type: {name}" in answer["error"]


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("int8", "1.0", "Number"),
        ("uint64", "-1", "Number"),
        ("int64", "1e2", "Number"),
        ("uint32", "true", "True"),
        ("bool", "1", "Number"),
        ("bool", "null", "Null"),
        ("string", "1", "Number"),
        ("string", "false", "False"),
        ("float64", '"1"', "String"),
        ("float64", "false", "False"),
        ("float64", '{"b64": "YQ=="}', "Object"),
    ],
)
def test_values_of_another_type(post, name, text, kind):
    body = f'{{"signature_name": "echo_{name}", "inputs": [{text}]}}'
    status, answer = post(body.encode())
    expected = name.replace("float64", "double")
    assert status == 400
    assert f" Type: {kind} is not of expected type: {expected}" in answer["error"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("-0", 0.0),
        ("0.1e1", 1.0),
        ("1E+2", 100.0),
        ("123456789012345678901234567890", 1.2345678901234568e29),
        ("18446744073709551615", 1.8446744073709552e19),
        ("1e308", 1e308),
        ("2.2250738585072014e-308", 2.2250738585072014e-308),
        ("1e-400", 0.0),
        ("0.000", 0.0),
        # Between the largest number and 1e309.
        ("2e308", np.inf),
        ("-1.8e308", -np.inf),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("1" + "0" * 308, 1e308),
        ("123" + "0" * 300 + "e-300", 123.0),
        ("-Infinity", -np.inf),
    ],
)
def test_spellings_of_numbers(post, text, value):
    body = f'{{"signature_name": "echo_float64", "inputs": {text}}}'
    assert post(body.encode()) == (200, {"outputs": value})


@pytest.mark.parametrize(
    "text",
    [
        *("+1", ".5", "1.", "01", "1e", "0x1", "1_0", "Nan", "Infinit", "--1", "1e309"),
        *("1e99999", "0e400", "-2" + "0" * 308, "1" + "0" * 309 + "e-300"),
    ],
)
def test_what_is_no_number(post, text):
    status, answer = post(f'{{"inputs": {text}}}'.encode())
    assert status == 400
    assert answer["error"].startswith("JSON Parse error: ")


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("1e16", "10000000000000000.0"),
        ("-9223372036854775809", "-9223372036854776000.0"),
        ("1e21", "1e21"),
        ("1.5e-5", "0.000015"),
        ("1e-7", "1e-7"),
        ("0.0", "0.0"),
        (r'"\u001f\\u001f\n"', r'"\u001F\\u001f\n"'),
    ],
)
def test_quoted_values(post, text, quoted):
    """As RapidJSON writes them."""
    status, answer = post(
        f'{{"signature_name": "echo_bool", "inputs": {text}}}'.encode()
    )
    assert status == 400
    assert answer["error"].startswith(f"JSON Value: {quoted} Type: ")


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate, gzip", "notgzip"])
def test_a_body_is_inflated_where_gzip_is_in_the_header(post, coding):
    body = gzip.compress(b'{"inputs": 5}')
    headers = {"Content-Encoding": coding}
    assert post(body, **headers) == (200, {"outputs": 3.0})
    assert post(body, **{"content-ENCODING": coding}) == (200, {"outputs": 3.0})
    for broken in (body[:-4], body[:20] + b"xxxx", b'{"inputs": 5}', b""):
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


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"instances": [{"number": 1, "text": "a"}]}, "to: number,row,text"),
        ({"instances": [1]}, "instances is a plain list, but expecting list of obj"),
        ({"inputs": {"b64": "YQ=="}}, "inputs is a plain value/list, but expecting"),
        ({"inputs": {"number": [1], "row": [[1]]}}, "Missing named input: text in"),
        (
            {
                "instances": [
                    {"number": 1, "text": "a", "row": [1]},
                    {"number": 1, "text": "a", "row": [1, 2]},
                ]
            },
            "Failed to process element: 1 key: row of 'instances' list. Error: "
            "INVALID_ARGUMENT: Expecting tensor size: 1 but got: 2",
        ),
        (
            {"instances": [{"number": 1, "text": "a", "row": [1]}, 5]},
            "Expecting object but got list at item 1 of input list",
        ),
    ],
)
def test_several_inputs_that_are_refused(post, document, text):
    status, answer = post({"signature_name": "several", **document})
    assert status == 400
    assert text in answer["error"]


def test_outputs_that_json_does_not_get(post):
    for form, value in (("instances", [1.0]), ("inputs", [1.0])):
        document = {"signature_name": "half_out", form: value}
        text = "Failed to write JSON value for tensor type: half"
        assert post(document) == (400, {"error": text})
    empty = {"signature_name": "half_out", "inputs": []}
    assert post(empty) == (200, {"outputs": []})
    empty = {"signature_name": "echo_half", "inputs": []}
    assert post(empty) == (200, {"outputs": []})


def test_rows_need_a_common_first_dimension(post):
    ragged = {"signature_name": "ragged", "instances": [1.0, 2.0, 3.0]}
    status, answer = post(ragged)
    assert status == 400
    assert "has inconsistent batch size: " in answer["error"]
    assert post({**ragged, "instances": [4.0]})[0] == 200
    scalar = {"signature_name": "scalar", "instances": [1.0]}
    told = {"error": "Tensor name: y has no shape information "}
    assert post(scalar) == (400, told)


# ---- classify and regress ----------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "signature", "text"),
    [
        ("classify", "double_scores", "Expected scores Tensor of DT_FLOAT. Got: DT_DO"),
        (
            "classify",
            "number_classes",
            "Expected classes Tensor of DT_STRING. Got: DT_F",
        ),
        ("classify", "one_score", "Expected scores output batch size of 2. Got: 1"),
        (
            "classify",
            "flat_scores",
            "Expected Tensor shape: [batch_size num_classes] b",
        ),
        ("classify", "regress", "to contain at least one of"),
        ("classify", "several", "Expected one input Tensor."),
        ("classify", "", "No classification inputs found in SignatureDef: "),
        (
            "regress",
            "double_outputs",
            "Expected output Tensor of DT_FLOAT.  Got: DT_DOU",
        ),
        ("regress", "classify", "Expected one output Tensor."),
        ("regress", "nope", "No signature was found with the name: nope"),
    ],
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
    assert code == "INVALID_ARGUMENT"
    assert text in details


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"context": 5, "examples": 5}, "must be JSON object but got JSON Number"),
        ({"context": {"x": None}}, "Feature: x has element with unexpected JSON type"),
        ({"context": {}}, "key 'examples' is expected and was not found"),
        ({"examples": "x"}, "Expecting 'examples' value to be an list/array"),
        ({"examples": [{"x": [[1.5]]}]}, "with unexpected JSON type: Array"),
        ({"examples": [{"x": [True, 1.5]}]}, "in feature: x expecting type: int64"),
        ({"examples": [{"x": ["a", False]}]}, "in feature: x expecting type: bytes"),
        ({"examples": [{"x": {"b64": "*"}}]}, "Unable to base64 decode"),
        ({"examples": [{"x": 2**63}]}, "has uint64_t element. Only int64_t is"),
    ],
)
def test_examples_that_are_refused(post, document, text):
    for verb in ("classify", "regress"):
        status, answer = post({"signature_name": verb, **document}, verb)
        assert status == 400
        assert text in answer["error"]


# ---- gRPC --------------------------------------------------------------------------


def tensor(*values):
    return json_format.MessageToDict(tf.make_tensor_proto(np.float32(values)))


@pytest.mark.parametrize(
    ("signature", "inputs", "code", "text"),
    [
        ("optional", ("x",), "OK", ""),
        (
            "optional",
            ("x", "z"),
            "INVALID_ARGUMENT",
            "Inputs contains invalid name. Us",
        ),
        ("optional", ("x", "y", "z"), "INVALID_ARGUMENT", "input size does not match"),
        ("optional", (), "INVALID_ARGUMENT", "Signature input alias: x(feed name: "),
        ("several", ("x",), "INVALID_ARGUMENT", "1!=3 len({x}) != len({number,row,te"),
        ("nope", ("x",), "FAILED_PRECONDITION", 'Serving signature key "nope" not f'),
        (
            "__saved_model_init_op",
            (),
            "INVALID_ARGUMENT",
            "fetch data for 'NoOp', which produces no output.  To run to a node but",
        ),
    ],
)
def test_inputs_by_name(call, signature, inputs, code, text):
    message = {
        "modelSpec": {"name": "probe", "signatureName": signature},
        "inputs": {alias: tensor(1.0) for alias in inputs},
    }
    got, details, _ = call("Predict", message)
    assert got == code
    assert text in details


def test_checks_come_in_the_servers_order(call):
    """The signature, the tensors, the outputs."""
    message = {
        "modelSpec": {"name": "probe", "signatureName": "nope"},
        "inputs": {"x": {"dtype": "DT_FLOAT", "tensorContent": "YQ=="}},
        "outputFilter": ["z", "z"],
    }
    assert call("Predict", message)[0] == "FAILED_PRECONDITION"
    message["modelSpec"]["signatureName"] = ""
    assert call("Predict", message)[1] == "tensor parsing error: x"
    message["inputs"]["x"] = tensor(1.0)
    assert (
        "output tensor alias not found in signature: z" in call("Predict", message)[1]
    )
    message["outputFilter"] = ["y", "y"]
    assert call("Predict", message)[1] == "duplicate output tensor alias: y"
    message["outputFilter"] = ["y"]
    assert call("Predict", message)[0] == "OK"


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
    assert call("Predict", message)[:2] == (
        "INVALID_ARGUMENT",
        "tensor parsing error: x",
    )


def test_bytes_that_are_no_message(server):
    with grpc.insecure_channel(server.grpc_address) as channel:
        for path in METHODS:
            if "Health" in path:
                continue
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(path)(b"\xff\xff\xff", timeout=20)
            assert caught.value.code() is grpc.StatusCode.INTERNAL


def test_a_reload_tells_how_much_counters_grew(server, call):
    """One is that of loads, which a second model adds to; the other is unknown."""
    base_path = server.base_path
    models = [
        {"name": name, "basePath": str(base_path), "modelPlatform": "tensorflow"}
        for name in ("probe", "again")
    ]
    loads = "/tensorflow/cc/saved_model/load_attempt_count"
    message = {
        "config": {"modelConfigList": {"config": models}},
        "metricNames": [loads, "/no/such/counter"],
    }
    code, _, answer = call("HandleReloadConfigRequest", message)
    assert code == "OK"
    assert sorted(answer["metric"], key=str) == [
        {"name": "/no/such/counter", "int64ValueIncrease": "0"},
        {"name": loads, "int64ValueIncrease": "1"},
    ]


def test_multi_inference_checks_its_tasks_before_its_examples(call):
    tasks = [
        {
            "modelSpec": {"name": "probe", "signatureName": name},
            "methodName": f"tensorflow/serving/{name}",
        }
        for name in ("classify", "regress")
    ]
    code, details, _ = call("MultiInference", {"tasks": tasks})
    assert (code, details) == ("INVALID_ARGUMENT", "Input is empty.")
    code, details, _ = call("MultiInference", {"tasks": [tasks[0], tasks[0]]})
    assert details == "Duplicate evaluation of signature: classify"
