"""HTTP transport: large, slow, chunked, pipelined and malformed requests."""

import contextlib
import json
import logging
import re
import socket
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import pytest
from server_requests import local_server, request

from serving.local import rest_api

BODY = b'{"instances": [1.0, 2.5]}'
ANSWER = b'{"predictions": [2.0, 5.0]}'
PATH = b"/v1/models/double:predict"


@pytest.fixture(scope="module")
def server(base_path, monitoring):
    with local_server(
        {"double": base_path},
        rest_api_enable_cors_support=True,
        monitoring_config_file=monitoring,
    ) as running:
        yield running


@pytest.fixture
def connect(server):
    """Opens a connection, over which these bytes are sent."""
    address = urllib.parse.urlsplit(server.rest_url)
    with contextlib.ExitStack() as opened:

        def connect(sent=b""):
            link = socket.create_connection((address.hostname, address.port), 20)
            link.sendall(sent)
            return opened.enter_context(link)

        yield connect


def head(*lines, method=b"POST", target=PATH, version=b"1.1"):
    start = b"%s %s HTTP/%s" % (method, target, version)
    return b"\r\n".join([start, b"Host: localhost", *lines, b"", b""])


def with_length(body=BODY, *lines):
    return head(b"Content-Length: %d" % len(body), *lines) + body


def read(connection):
    """Status, header lines in lower case, and body of the next answer."""

    def receive(size):
        received = connection.recv(size)
        assert received, "the connection ended"
        return received

    data = b""
    while b"\r\n\r\n" not in data:
        data += receive(1)
    start, *lines = data.decode().strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    body = b""
    while len(body) < int(headers.get("content-length", 0)):
        body += receive(int(headers["content-length"]) - len(body))
    return int(start.split()[1]), headers, body


def test_pipelined_requests_are_answered_in_order(connect):
    bodies = [b'{"instances": [%d]}' % number for number in range(20)]
    connection = connect(b"".join(map(with_length, bodies)))
    answers = [json.loads(read(connection)[2])["predictions"] for _ in bodies]
    assert answers == [[2.0 * number] for number in range(20)]


def test_chunked_bodies(connect):
    connection = connect(head(b"Transfer-Encoding: chunked"))
    for start in range(0, len(BODY), 7):
        piece = BODY[start : start + 7]
        connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
    connection.sendall(b"0\r\n\r\n")
    assert read(connection)[2] == ANSWER


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(connect):
    length = b"Content-Length: %d" % (rest_api.BODY_LIMIT + 1)
    status, headers, body = read(connect(head(length, b"Expect: 100-continue")))
    assert status == 413
    assert headers["content-type"] == "application/json"
    assert "larger than 67108864 bytes" in json.loads(body)["error"]


def test_a_chunked_body_that_is_too_large_is_refused_and_not_kept(connect):
    connection = connect(head(b"Transfer-Encoding: chunked"))
    half = rest_api.BODY_LIMIT // 2
    piece = b"%x\r\n%s\r\n" % (half + 1, b" " * (half + 1))
    connection.sendall(piece * 2)
    status, headers, _ = read(connection)
    assert status == 413
    assert headers["access-control-allow-origin"] == "*"
    connection.sendall(piece * 5 + b"0\r\n\r\n")  # read and thrown away
    connection.sendall(with_length())
    assert read(connection)[2] == ANSWER


def test_the_metrics_path_with_a_query_is_another_path(server):
    path = "/monitoring/prometheus/metrics"
    assert request(server, "GET", path)[0] == 200
    message = f"Unexpected path: {path}?x=1. Should be {path}"
    assert request(server, "GET", f"{path}?x=1") == (400, message)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        (b"GET", b"/v1/models/double", 200),
        (b"GET", b"/v1/models/nope", 404),
        (b"POST", PATH, 400),
        (b"OPTIONS", PATH, 400),
    ],
)
def test_with_the_flag_every_answer_allows_other_origins(connect, method, path, status):
    got, headers, _ = read(connect(head(method=method, target=path)))
    assert got == status
    assert headers["access-control-allow-origin"] == "*"
    assert headers["access-control-allow-methods"] == "post, get"
    assert headers["access-control-allow-headers"] == "content-type"


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        head(b"Content-Length: abc"),
        head(b"Content-Length: -1"),
        head(b"Transfer-Encoding: chunked") + b"zz\r\n",
        head(b"X-Long: " + b"x" * 100_000),
        head(target=b"/v1/models/\xff"),
    ],
)
def test_invalid_http_is_a_400_and_the_server_keeps_running(connect, sent):
    assert read(connect(sent))[0] == 400
    assert read(connect(with_length()))[2] == ANSWER


def test_slow_clients_do_not_block_others(connect):
    message = with_length()
    in_head, in_body = message.index(b"Content-Length") + 9, len(message) - 5
    cuts = [cut for cut in (in_head, in_body) for _ in range(20)]
    slow = [(connect(message[:cut]), cut) for cut in cuts]
    assert read(connect(with_length()))[2] == ANSWER
    for connection, cut in slow:
        connection.sendall(message[cut:])
    assert {read(connection)[2] for connection, _ in slow} == {ANSWER}


def test_clients_that_go_away_leave_nothing_behind(connect, caplog):
    with caplog.at_level(logging.DEBUG):
        for cut in (30, len(with_length()) - 5, len(with_length())):
            for _ in range(10):
                connection = connect(with_length()[:cut])
                # Closed by a reset, as a killed client's connection is.
                linger = b"\1\0\0\0\0\0\0\0"
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                connection.close()
        assert read(connect(with_length()))[2] == ANSWER
    assert "Traceback" not in caplog.text
    assert "Exception" not in caplog.text


def test_requests_that_no_thread_took_in_time_are_counted(base_path, monitoring):
    """A slow request holds the only thread, four wait for it."""
    with (
        local_server(
            {"double": base_path},
            monitoring_config_file=monitoring,
            rest_api_num_threads=1,
            rest_api_timeout_in_ms=1000,
        ) as server,
        ThreadPoolExecutor(5) as threads,
    ):
        slow = json.dumps({"signature_name": "pause", "inputs": 10**9})
        ask = ("POST", "/v1/models/double:predict", slow)
        late = [threads.submit(request, server, *ask) for _ in range(5)]
        assert [future.result()[0] for future in late] == [504] * 5
        page = request(server, "GET", "/monitoring/prometheus/metrics")[1]
    counted = r'request_count\{model_name="double",status="DEADLINE_EXCEEDED"\} (\d+)'
    assert re.findall(counted, page) == ["5"]
