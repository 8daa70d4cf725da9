"""The local server under arbitrary requests: clear errors, and never a crash.

KERAS_VIT_FUZZ_REQUESTS says how many documents hypothesis sends; a longer run is

    KERAS_VIT_FUZZ_REQUESTS=5000 python -m pytest -k local_server_robustness
"""

import http.client
import json
import os
import socket

import grpc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from protocol_model import save_protocol_model
from server_process import server_process

REQUESTS = int(os.environ.get("KERAS_VIT_FUZZ_REQUESTS", "240"))
MODEL = "probe"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    base_path = save_protocol_model(tmp_path_factory.mktemp(MODEL), 1)
    log = tmp_path_factory.mktemp("log") / "server.log"
    flags = (f"--model_name={MODEL}", f"--model_base_path={base_path}")
    with server_process(log, *flags) as running:
        yield running._replace(rest=running.rest.removeprefix("http://"))
        assert running.process.poll() is None


def send(server, method, path, body=None, headers=None):
    """Status, content type and body of the answer."""
    connection = http.client.HTTPConnection(server.rest, timeout=60)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, answer.headers["Content-Type"], data


def assert_answers(server):
    assert server.process.poll() is None
    assert send(server, "GET", f"/v1/models/{MODEL}")[0] == 200


NAMES = st.sampled_from(
    [
        *("instances", "inputs", "examples", "context", "signature_name"),
        *("x", "b64", "number", "text", "row"),
    ]
)
SURROGATES = st.text(st.characters(categories=["Cs"]), min_size=1, max_size=2)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | SURROGATES
    | st.sampled_from(["YQ==", "classify", "regress", "echo_string", "echo_int8"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3)
    ),
    max_leaves=12,
)


def nested(depth, leaf):
    for _ in range(depth):
        leaf = [leaf]
    return leaf


DEEP = st.builds(nested, st.integers(1, 70) | st.integers(900, 990), SCALARS)
DOCUMENTS = st.dictionaries(NAMES | SURROGATES, VALUES | DEEP, max_size=3)
UNTIMED = settings(
    max_examples=REQUESTS,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def assert_is_an_answer(status, text=""):
    """Neither a crash, nor a limit of a server that is otherwise idle.

    501 is TensorFlow Serving's answer where JSON cannot represent the input's type.
    """
    unrepresentable = status == 501 and "Conversion of JSON Value" in text
    assert status in (200, 503, 504, *range(400, 500)) or unrepresentable, text


@example({"instances": [[]]}, "predict")
@example({"instances": nested(65, 1.0)}, "predict")
@example({"inputs": nested(65, "a"), "signature_name": "echo_string"}, "predict")
@example({"signature_name": "\ud800"}, "predict")
@example({"\udc80": 1, "instances": [{"\ud800": 1}]}, "predict")
@example({"instances": ["\ud800"], "signature_name": "echo_string"}, "predict")
@example({"examples": [{"\udc00": 1}]}, "classify")
@UNTIMED
@given(DOCUMENTS, st.sampled_from(["predict", "classify", "regress"]))
def test_any_document_is_answered(server, document, verb):
    body = json.dumps(document).encode()
    status, kind, data = send(server, "POST", f"/v1/models/{MODEL}:{verb}", body)
    assert_is_an_answer(status, data.decode("utf-8", "replace"))
    assert kind == "application/json"
    answer = json.loads(data.decode("utf-8", "replace"))
    assert (status == 200) == ("error" not in answer)


@UNTIMED
@given(st.data())
def test_any_damaged_body_is_answered(server, data):
    body = (
        b'{"signature_name": "echo_string", "instances": [{"b64": "YQ=="}, "\xc3\xa9"]}'
    )
    start = data.draw(st.integers(0, len(body)))
    piece = data.draw(st.binary(max_size=4) | st.sampled_from([b"[", b"1e999", b'"']))
    body = body[:start] + piece + body[start + data.draw(st.integers(0, 9)) :]
    status, kind, _ = send(server, "POST", f"/v1/models/{MODEL}:predict", body)
    assert_is_an_answer(status)
    assert kind == "application/json"


SEGMENTS = st.sampled_from(
    [
        *("v1", "models", "probe", "versions", "labels", "metadata", "monitoring"),
        *("1", "0" * 5000 + "1", "9" * 19, "9" * 5000, "-1", "stable", "page"),
        *("", ".", "..", "%2e%2e", "%ff", "%00", "%2F", "%ed%a0%80", ":", "probe:"),
        *("probe:predict", "1:predict", "PROBE:PREDICT", "models.json", "x" * 3000),
    ]
)
TARGETS = st.lists(SEGMENTS, min_size=1, max_size=7).map("/".join)
METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
HEADERS = st.dictionaries(
    st.sampled_from(["Content-Encoding", "Origin", "Host", "Content-Type", "Accept"]),
    st.sampled_from(
        [
            *("", "gzip", "null", "http://127.0.0.1", "https://evil.example"),
            *("evil.example", "localhost", "[::1]:1", "localhost:x", "[", "@", "\xff"),
        ]
    ),
)


@example("POST", "v1/models/probe/versions/" + "0" * 5000 + "1:predict", {}, b"{}")
@example("GET", "v1/models/probe/versions/" + "0" * 5000, {}, b"")
@example("GET", "", {"Host": "localhost:x"}, b"")
@example("GET", "page/models.json", {"Host": "["}, b"")
@UNTIMED
@given(METHODS, TARGETS, HEADERS, st.sampled_from([b"", b"{}", b"\x1f\x8b", b"[" * 99]))
def test_any_request_line_and_header_are_answered(server, method, path, headers, body):
    status, _, data = send(server, method, f"/{path}", body, headers)
    assert_is_an_answer(status, data.decode("utf-8", "replace"))


def test_a_content_length_of_many_digits_is_answered(server):
    host, _, port = server.rest.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as link:
        length = b"0" * 5000 + b"2"
        link.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length)
        link.sendall(b"\r\n\r\n{}")
        status = int(link.recv(65536).split()[1])
    assert_is_an_answer(status)


@UNTIMED
@given(st.binary(max_size=60))
def test_any_grpc_message_is_answered(server, data):
    with grpc.insecure_channel(server.grpc) as channel:
        path = "/tensorflow.serving.PredictionService/Predict"
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(path)(data, timeout=60)
    assert caught.value.code().name in ("INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND")


GARBAGE = {
    "zeros": b"\0\0\0\0",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no version": b"GET /v1/models/probe\r\n\r\n",
    "short body": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_on_the_wire_ends_its_own_connection_only(server, data):
    host, _, port = server.rest.partition(":")
    with socket.create_connection((host, int(port)), timeout=2) as link:
        received = b""
        try:
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            while piece := link.recv(65536):
                received += piece
        except OSError:  # the server has closed, or says no more
            pass
    assert b" 500 " not in received.partition(b"\r\n")[0]
    assert_answers(server)
