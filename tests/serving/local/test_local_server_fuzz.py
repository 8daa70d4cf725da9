"""The local server under random requests: right answers, clear errors, never a crash.

KERAS_VIT_FUZZ_REQUESTS says how many REST requests are sent (a quarter as many gRPC
calls); the full run is

    KERAS_VIT_FUZZ_REQUESTS=20000 python -m pytest -s -k local_server_fuzz
"""

import base64
import http.client
import json
import os
import random
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from fuzz_messages import METHODS, strange_call, valid_call
from fuzz_requests import (
    LABELS,
    MODEL,
    Request,
    damaged,
    quote_non_ascii,
    refused,
    strange_path,
    valid,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from protocol_model import save_protocol_model
from tensorflow_serving.apis.model_management_pb2 import ReloadConfigRequest
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig
from test_local_server_conformance import CORPUS, started

REQUESTS = int(os.environ.get("KERAS_VIT_FUZZ_REQUESTS", "2400"))
THREADS = 4
GROWTH = 100  # MB; what the allocators of the threads may keep
WRONG = {200, 400, 404, 501}
CODES = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    base_path = tmp_path_factory.mktemp(MODEL)
    for version in (1, 2):
        save_protocol_model(base_path, version)
    config = ModelServerConfig()
    model = config.model_config_list.config.add(
        name=MODEL, base_path=str(base_path), model_platform="tensorflow"
    )
    model.model_version_policy.all.SetInParent()
    model.version_labels.update(LABELS)
    folder = tmp_path_factory.mktemp("config")
    (folder / "models.config").write_text(str(config))
    (folder / "monitoring.config").write_text("prometheus_config { enable: true }")
    with started(
        f"--model_config_file={folder / 'models.config'}",
        f"--monitoring_config_file={folder / 'monitoring.config'}",
        "--allow_version_labels_for_unavailable_models",
        "--enable_grpc_healthcheck_service",
    ) as running:
        running.rest = running.rest.removeprefix("http://")
        running.config = config
        yield running


def memory(server):
    """Resident memory of the server in MB."""
    status = Path(f"/proc/{server.process.pid}/status")
    if not status.exists():
        pytest.skip("needs /proc")
    (line,) = (row for row in status.read_text().splitlines() if row[:6] == "VmRSS:")
    return int(line.split()[1]) / 1024


class Connection:
    """A connection that is kept, and opened again where the server has closed it."""

    def __init__(self, address):
        self.connection = http.client.HTTPConnection(address, timeout=60)

    def send(self, request):
        """Status, headers and body."""
        for again in (False, True):
            try:
                self.connection.request(
                    request.method, request.path, request.body, request.headers
                )
                answer = self.connection.getresponse()
                return answer.status, answer.headers, answer.read()
            except (http.client.HTTPException, ConnectionError):
                self.connection.close()
                if again:
                    raise


def look_at(request, status, headers, body):
    """Whatever was asked, the answer is well formed and no failure of the server."""
    told = (request, status, body[:300])
    if request.check:
        request.check(status, json.loads(body))
        return
    assert status in WRONG, told
    if headers["Content-Type"] == "application/json" and body:
        answer = json.loads(body.decode("utf-8", "replace"))
        assert (status == 200) == ("error" not in answer), told
        if status == 501:
            assert "Conversion of JSON Value" in answer["error"], told


def recorded():
    """The recorded REST requests, where there are some, for this model."""
    file = CORPUS / "rest.jsonl"
    exchanges = map(json.loads, file.open()) if file.exists() else ()
    for one in exchanges:
        body = one.get("body", "").encode() or base64.b64decode(one.get("body_b64", ""))
        path = one["path"].replace("half_plus_two", MODEL)
        headers = one.get("headers", {})
        # In chunks http.client sends iterables only.
        if "Transfer-Encoding" not in headers and b'"slow"' not in body:
            yield Request("", one["method"], path, headers, body, None)


def all_requests(seed, count):
    rng = random.Random(seed)
    corpus = list(recorded())
    for _ in range(count):
        kind = rng.random()
        if kind < 0.4:
            yield valid(rng)
        elif kind < 0.45:
            yield refused(rng)
        elif kind < 0.6:
            yield strange_path(rng)
        else:
            source = rng.choice(corpus) if corpus and kind < 0.8 else valid(rng)
            request = damaged(rng, source)
            yield request._replace(path=quote_non_ascii(request.path))


CHOICES = ("newest", "version", "label")
KINDS = {
    f"{operation} {choice}"
    for operation in ("predict", "classify", "regress", "status", "metadata")
    for choice in CHOICES
} | {
    f"any {method}"
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE")
}


def test_rest(server):
    seen = Counter()
    before = []

    def run(seed):
        connection = Connection(server.rest)
        for number, request in enumerate(all_requests(seed, REQUESTS // THREADS)):
            status, headers, body = connection.send(request)
            look_at(request, status, headers, body)
            seen[request.kind] += 1
            seen[status] += 1
            seen["valid"] += request.check is not None
            if seed == 0 and number == REQUESTS // THREADS // 4:
                before.append(memory(server))

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(run, range(THREADS)))
    print(f"\nREST: {dict(seen)}; {before[0]:.0f} -> {memory(server):.0f} MB")
    assert seen.keys() >= KINDS | WRONG
    assert seen["valid"] >= REQUESTS / 3
    assert memory(server) < before[0] + GROWTH
    assert server.process.poll() is None


def ask(channel, call):
    """Code, details and answer."""
    try:
        data = channel.unary_unary(call.path)(call.request, timeout=60)
    except grpc.RpcError as error:
        return error.code().name, error.details(), b""
    return "OK", "", data


def test_grpc(server):
    seen = Counter()
    channel = grpc.insecure_channel(server.grpc)

    def run(seed):
        rng = random.Random(seed)
        for _ in range(REQUESTS // 4 // THREADS):
            call = valid_call(rng) if rng.random() < 0.5 else strange_call(rng)
            code, details, data = ask(channel, call)
            unread = code == "INTERNAL" and not details
            assert unread or code in CODES, (call, code, details)
            if code == "OK":
                answer = METHODS[call.path][1].FromString(data)
            if call.check:
                assert code == "OK", (call, code, details)
                call.check(answer)
            seen[code] += 1
            seen[call.path] += 1
            seen["valid"] += call.check is not None

    before = memory(server)
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(run, range(THREADS)))
    print(f"\ngRPC: {dict(seen)}; {before:.0f} -> {memory(server):.0f} MB")
    reload = ReloadConfigRequest(config=server.config).SerializeToString()
    path = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
    channel.unary_unary(path)(reload, timeout=60)
    channel.close()
    assert seen.keys() >= METHODS.keys() | CODES
    assert seen["valid"] >= REQUESTS / 4 / 3
    assert memory(server) < before + GROWTH
    assert server.process.poll() is None


NAMES = st.sampled_from(
    [
        *("instances", "inputs", "examples", "context", "signature_name"),
        *("x", "b64", "number", "text", "row"),
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["YQ==", "classify", "regress", "echo_string", "echo_int8"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3)
    ),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)


@example({"instances": [[]]}, "predict")
@example(
    {"signature_name": "echo_string", "instances": [{"b64": "", "x": 1}]}, "predict"
)
@settings(
    max_examples=REQUESTS // 10,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(DOCUMENTS, st.sampled_from(["predict", "classify", "regress"]))
def test_any_document(server, document, verb):
    path = f"/v1/models/{MODEL}:{verb}"
    body = json.dumps(document).encode()
    request = Request("document", "POST", path, {}, body, None)
    connection = Connection(server.rest)
    look_at(request, *connection.send(request))
    connection.connection.close()


GARBAGE = [
    b"\0\0\0\0",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /v1/models/probe\r\n\r\n",
    b"\r\n\r\n\r\n",
    b"GET /v1/models/probe HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    b"GET /v1/models/probe HTTP/1.1\r\nA: " + b"b" * 300_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /v1/models/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/models/probe:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{",
    b"POST /v1/models/probe:predict HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/models/probe:predict HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    b"POST /v1/models/probe:predict HTTP/1.1\r\nHost: x\r\n"
    b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v1/models/probe:predict HTTP/1.1\r\nHost: x\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    b"POST /v1/models/probe:predict HTTP/1.1\r\nHost: x\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
    b"POST /v1/models/probe:predict HTTP/1.1\r\nHost: x\r\n"
    b"Transfer-Encoding: gzip\r\n\r\n{}",
    b"POST /v1/models/probe:predict HTTP/1.1\r\nHost: x\r\n"
    b"Expect: 100-continue\r\n\r\n",
]


def talk(server, data, ends=True):
    """What comes back for raw bytes until the server closes or says no more."""
    host, _, port = server.rest.partition(":")
    with socket.create_connection((host, int(port)), timeout=2) as link:
        received = b""
        try:
            link.sendall(data)
            if ends:
                link.shutdown(socket.SHUT_WR)
            while piece := link.recv(65536):
                received += piece
        except OSError:  # the server has closed, or says no more
            pass
        return received


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_on_the_wire_ends_its_own_connection_only(server, data):
    received = talk(server, data)
    assert b" 500 " not in received.partition(b"\r\n")[0]
    assert server.process.poll() is None
    good = Request("", "GET", f"/v1/models/{MODEL}", {}, None, None)
    assert Connection(server.rest).send(good)[0] == 200


def test_requests_in_one_packet_are_answered_in_order(server):
    one = b"GET /v1/models/probe/versions/%d HTTP/1.1\r\nHost: x\r\n\r\n"
    received = talk(server, one % 1 + one % 7 + one % 2, ends=False)
    places = [received.index(text) for text in (b'"1"', b"version 7", b'"2"')]
    assert places == sorted(places)
    assert received.count(b"HTTP/1.1 200") == 2


def test_half_sent_requests_hold_nobody_up(server):
    host, _, port = server.rest.partition(":")
    links = [socket.create_connection((host, int(port))) for _ in range(50)]
    for link in links:
        link.sendall(b"POST /v1/models/probe:predict HTTP/1.1\r\nContent-Le")
    good = Request("", "GET", f"/v1/models/{MODEL}", {}, None, None)
    assert Connection(server.rest).send(good)[0] == 200
    for link in links:
        link.close()
