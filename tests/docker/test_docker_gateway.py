"""docker/gateway: what passes it, before the local server and over TLS."""

import base64
import json
import re
import socket

import grpc
import httpx2
import pytest
from docker_files import PHOTO, free_port, run_page_commands, succeeds
from docker_gateway import Gateway, answer
from polling import wait_for
from tensorflow_serving.apis import (
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from serving.client import MessageTooLarge, Unauthenticated, Unavailable

pytestmark = pytest.mark.slow

MIB = 2**20


def test_the_documented_requests_pass_the_gateway(gateway, tmp_path):
    folder = gateway.folder
    status, predictions = run_page_commands(
        "8443", gateway.port, folder, TOKEN=gateway.token
    )
    assert json.loads(status)["model_version_status"][0]["state"] == "AVAILABLE"
    assert json.loads(predictions)["predictions"][0]["scores"]


def test_both_clients_go_through_the_gateway(gateway):
    for client in gateway.clients():
        assert client.status()[0].state == "AVAILABLE"
        assert len(client.classify([PHOTO])[0].labels) == 5


@pytest.mark.parametrize("path", ["/v1/models/vit", "/v1/models/vit:predict", "/"])
@pytest.mark.parametrize(
    "token", ["wrong", "Bearer", '" ; default x;', "in capitals", "the digest"]
)
def test_an_unknown_token_is_refused(gateway, path, token):
    if token == "in capitals":
        token = gateway.token.upper()
    elif token == "the digest":
        tokens = gateway.folder / "docker" / "secrets" / "tokens"
        token, name = tokens.read_text().splitlines()[0].split()
        assert (len(token), name) == (64, "alice;")
    with gateway.http(token) as client:
        for answer in (client.get(path), client.post(path, content=b"{}")):
            assert answer.status_code == 401
            assert "token" in answer.json()["error"]


def test_the_scheme_of_a_token_is_compared_without_case(gateway):
    header = {"Authorization": f"bEARER {gateway.token}"}
    with gateway.http() as client:
        assert client.get("/v1/models/vit", headers=header).status_code == 200


def test_a_token_is_asked_for_before_a_body_is_read(gateway):
    with gateway.connect_tls() as connection:
        connection.sendall(
            b"POST /v1/models/vit:predict HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 20000000\r\nExpect: 100-continue\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")


def test_both_clients_report_a_wrong_token(gateway):
    for client in gateway.clients("wrong"):
        with pytest.raises(Unauthenticated):
            client.classify([PHOTO])


def test_plain_http_is_refused(gateway):
    answer = httpx2.get(f"http://localhost:{gateway.port}/v1/models/vit")
    assert (answer.status_code, "TLS" in answer.json()["error"]) == (400, True)


def test_a_large_request_is_413(gateway):
    body = b'{"instances": ["' + bytes(25 * MIB)
    with gateway.http() as client:
        assert client.post("/v1/models/vit:predict", content=body).status_code == 413
        chunks = (body[i : i + MIB] for i in range(0, len(body), MIB))
        assert client.post("/v1/models/vit:predict", content=chunks).status_code == 413


def test_a_request_of_24_mib_passes_whichever_way_it_comes(gateway, tmp_path):
    body = b'{"signature_name": "none", "instances": ["'
    body += b"A" * (24 * MIB - len(body) - 3) + b'"]}'
    url = "/v1/models/vit:predict"
    chunks = (body[i : i + MIB] for i in range(0, len(body), MIB))
    with gateway.http() as client:
        for content in (body, chunks):
            error = client.post(url, content=content).json()["error"]
            assert error.startswith("Serving signature name:")
    assert "Serving signature name:" in http2(gateway, tmp_path, body)


def test_a_large_request_without_its_length_is_413_over_http2(gateway, tmp_path):
    assert http2(gateway, tmp_path, bytes(25 * MIB)).endswith(" 413")


def http2(gateway, tmp_path, body):
    """What curl prints of a request without Content-Length, and the status."""
    (tmp_path / "body").write_bytes(body)
    return succeeds(
        *("curl", "--silent", "--http2", "--cacert", gateway.certificate),
        *("-H", f"Authorization: Bearer {gateway.token}", "-X", "POST"),
        *("--write-out", " %{http_code}", "--upload-file", "-"),
        f"https://localhost:{gateway.port}/v1/models/vit:predict",
        stdin=(tmp_path / "body").open(),
    )


def test_a_request_in_tiny_chunks_is_413_once_its_frames_exceed_the_buffer(gateway):
    with gateway.post(b"Transfer-Encoding: chunked\r\n") as connection:
        connection.sendall(b"1\r\n[\r\n" * (5 * MIB) + b"0\r\n\r\n")
        status, headers, body = answer(connection)
    assert (status, headers["Content-Type"]) == (413, "application/json")
    assert "24 MiB" in json.loads(body)["error"]


def test_both_clients_report_a_request_that_is_too_large(gateway):
    for client in gateway.clients():
        with pytest.raises(MessageTooLarge):
            client.predict({"image_bytes": [bytes(25 * MIB)]})


DEEP = {
    "lists": '{"instances": ' + "[" * 65 + "]" * 65 + "}",
    "objects": '{"a": ' * 65 + "1" + "}" * 65,
    "unclosed": "[" * 100_000,
    "after an escaped quote": '{"signature_name": "\\"", "instances": ' + "[" * 65,
    "after a backslash": '{"signature_name": "\\\\", "instances": ' + "[" * 65,
    "after many backslashes": '["' + "\\\\" * 100_000 + '",' + "[" * 64,
    "after many escaped quotes": '["' + '\\"' * 100_000 + '",' + "[" * 64,
    "across slices": "[" * 64 + "1," * 49_975 + "[],".join("[" * 9),
    "after a byte order mark": "\ufeff" + "[" * 65,
    "in UTF-16": "\0".join("[" * 65),
}


@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP.keys())
def test_deep_json_never_reaches_the_server(gateway, body):
    with gateway.http() as client:
        answer = client.post("/v1/models/vit:predict", content=body)
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": "JSON nested deeper than 64 levels"},
    )


PASSING = [
    *(
        f'{{"signature_name": "{text}", "instances": [[1]]}}'
        for text in ("[" * 99, '\\"' + "[" * 99, "{" * 99 + '\\\\\\"' + "[" * 99)
    ),
    f'{{"signature_name": "none", "instances": [{"[{}]," * 99}[1]]}}',
]


@pytest.mark.parametrize("body", PASSING)
def test_wide_json_and_brackets_in_a_string_do_not_count_as_nesting(gateway, body):
    with gateway.http() as client:
        answer = client.post("/v1/models/vit:predict", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Serving signature name:")


def test_a_request_in_chunks_is_guarded_and_answered(gateway):
    chunks = [
        b'{"instances": [{"b64": "',
        base64.b64encode(PHOTO.read_bytes()),
        b'"}]}',
    ]
    with gateway.http() as client:
        good = client.post("/v1/models/vit:predict", content=iter(chunks))
        deep = client.post("/v1/models/vit:predict", content=iter([b"["] * 65))
    assert len(good.json()["predictions"]) == 1
    assert (deep.status_code, "deeper" in deep.text) == (400, True)


MALFORMED = {
    "two lengths": (b"Content-Length: 2\r\nContent-Length: 3", 400),
    "length and chunks": (b"Content-Length: 2\r\nTransfer-Encoding: chunked", 400),
    "negative length": (b"Content-Length: -2", 400),
    "signed length": (b"Content-Length: +2", 400),
    "endless length": (b"Content-Length: " + b"9" * 20, 400),
    "unknown transfer": (b"Transfer-Encoding: gzip, chunked", 501),
    "two tokens": (b"Authorization: Bearer x", 400),
    "two hosts": (b"Host: x", 400),
    "long header": (b"X: " + b"x" * 9000, 400),
    "long headers": (b"\r\n".join([b"X: " + b"x" * 4000] * 5), 400),
    "NUL": (b"X: a\0b", 400),
    "folded header": (b"X: a\r\n b", 400),
    "compressed": (b"Content-Length: 2\r\nContent-Encoding: deflate", 415),
    "compressed twice": (b"Content-Encoding: 0\r\nContent-Encoding: gzip", 415),
}


@pytest.mark.parametrize(("headers", "status"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_refused_in_json(gateway, headers, status):
    with gateway.post(headers + b"\r\n") as connection:
        refused, fields, body = answer(connection)
    assert (refused, fields["Content-Type"]) == (status, "application/json")
    assert json.loads(body)["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/../../monitoring/prometheus/metrics",
        "/v1/models/..%2f..%2fmonitoring/prometheus/metrics",
        "/monitoring/prometheus/metrics/../../../v1/models/vit",
        "/monitoring/prometheus/metrics?/../v1/models/vit",
        "//v1/models/vit",
        "/v1/models/./vit",
        "/v1/models/v%69t",
        "/v1/models/vit?x",
        "/V1/MODELS/vit",
        "/malformed",
    ],
)
def test_a_path_passes_only_as_the_server_would_read_it(gateway, path):
    with gateway.connect_tls() as connection:
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {gateway.token}\r\n\r\n".encode()
        )
        status, fields, _ = answer(connection)
    assert (status, fields["Content-Type"]) == (404, "application/json")


def test_only_inference_may_have_a_body(gateway):
    with gateway.http() as client:
        answer = client.request("GET", "/v1/models/vit", content=bytes(2000))
    assert (answer.status_code, "24 MiB" in answer.json()["error"]) == (413, True)


def test_only_a_body_and_its_type_reach_the_server(gateway_server, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        recorder = gateway_server._replace(rest_port=port)
        with Gateway(tmp_path, recorder).running() as gateway:
            headers = (
                b"Content-Length: 2\r\nContent-Type: text/x\r\nX-Forwarded-For: 1\r\n"
            )
            with gateway.post(headers + b"Upgrade: h2c\r\n") as client:
                client.sendall(b"{}")
                with server.accept()[0] as connection:
                    wait_for(
                        lambda: connection.recv(4096, socket.MSG_PEEK)[-2:] == b"{}"
                    )
                    request = connection.recv(4096)
    head, _, body = request.partition(b"\r\n\r\n")
    names = {line.partition(b":")[0].lower() for line in head.splitlines()[1:]}
    assert names == {b"host", b"content-type", b"content-length"}
    assert body == b"{}"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/monitoring/prometheus/metrics", 404),
        ("GET", "/v1/models/../../monitoring/prometheus/metrics", 404),
        ("GET", "/", 404),
        ("DELETE", "/v1/models/vit", 405),
        ("POST", "/v1/models/vit", 405),
        ("GET", "/v1/models/vit:predict", 405),
        ("OPTIONS", "/v1/models/vit:predict", 405),
        ("TRACE", "/v1/models/vit", 405),
        ("GET", "/v1/models/nope", 404),
        ("GET", "/v1/models/vit/metadata", 200),
    ],
)
def test_only_inference_requests_pass(gateway, method, path, status):
    with gateway.http() as client:
        assert client.request(method, path).status_code == status


@pytest.fixture
def channel(gateway):
    trust = grpc.ssl_channel_credentials(gateway.certificate.read_bytes())
    token = grpc.access_token_call_credentials(gateway.token)
    credentials = grpc.composite_channel_credentials(trust, token)
    with grpc.secure_channel(f"localhost:{gateway.port}", credentials) as channel:
        yield channel


def test_the_gateway_refuses_configuration_reloads(channel):
    stub = model_service_pb2_grpc.ModelServiceStub(channel)
    request = model_management_pb2.ReloadConfigRequest()
    with pytest.raises(grpc.RpcError) as refused:
        stub.HandleReloadConfigRequest(request, timeout=20)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_compressed_messages_are_refused(channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    request = predict_pb2.PredictRequest()
    request.inputs["image_bytes"].string_val.append(bytes(30 * MIB))
    with pytest.raises(grpc.RpcError) as refused:
        stub.Predict(request, timeout=20, compression=grpc.Compression.Gzip)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "Compressed" in refused.value.details()


def test_grpc_needs_http2(gateway):
    with gateway.http() as client:
        answer = client.post("/tensorflow.serving.PredictionService/Predict")
    assert (answer.status_code, "HTTP/2" in answer.json()["error"]) == (400, True)


def test_the_log_names_the_client_and_omits_its_token(gateway):
    with gateway.http() as client:
        client.get("/v1/models/named")
    wait_for(lambda: "/v1/models/named" in gateway.log.read_text())
    log = gateway.log.read_text()
    assert re.search(r' alice \[[^]]*\] "GET /v1/models/named', log)
    assert gateway.token not in log


def test_a_stopped_server_is_unavailable(gateway_server, tmp_path):
    nothing = str(free_port())
    gone = gateway_server._replace(rest_port=nothing, grpc_port=nothing)
    with Gateway(tmp_path, gone).running() as gateway:
        for client in gateway.clients(timeout=2):
            with pytest.raises(Unavailable):
                client.status()
