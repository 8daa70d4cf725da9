"""`keras-vit page` before hostile websites, requests and servers."""

import asyncio
import contextlib
import socket
import threading

import pytest
from app_thread import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.testclient import TestClient

from serving.__main__ import main
from serving.page import proxy
from serving.page.proxy import page_app, page_parser

OWN = "http://127.0.0.1:8080"


class Upstream:
    """A server that notes the requests for it and answers all alike."""

    def __init__(self):
        self.requests = []
        self.answer = lambda: Response(b"{}", media_type="text/html")

    async def __call__(self, scope, receive, send):
        request = Request(scope, receive)
        body = await request.body()
        path = scope["raw_path"].decode()
        query = scope["query_string"].decode()
        self.requests.append((request.method, path, query, request.headers, body))
        await self.answer()(scope, receive, send)


@pytest.fixture(scope="module")
def running():
    upstream = Upstream()
    with serve(upstream) as url:
        yield upstream, url


@pytest.fixture
def upstream(running):
    running[0].__init__()
    return running[0]


@pytest.fixture
def page(running, upstream):
    with open_page(running[1], "m") as client:
        yield client


@contextlib.contextmanager
def open_page(rest, model, *flags):
    header = ["--header", "Authorization: Bearer secret"]
    arguments = ["--rest", rest, "--model", model, *header, *flags]
    with TestClient(page_app(page_parser().parse_args(arguments)), OWN) as client:
        yield client


def test_the_page_s_requests_reach_the_server_with_the_token(page, upstream):
    assert page.get("/v1/models/m").status_code == 200
    assert page.get("/v1/models/m/labels/stable/metadata").status_code == 200
    body = b'{"instances": []}'
    assert page.post("/v1/models/m/versions/3:predict", content=body).json() == {}
    assert [(method, path) for method, path, *_ in upstream.requests] == [
        ("GET", "/v1/models/m"),
        ("GET", "/v1/models/m/labels/stable/metadata"),
        ("POST", "/v1/models/m/versions/3:predict"),
    ]
    assert upstream.requests[2][4] == body
    assert {request[3]["authorization"] for request in upstream.requests} == {
        "Bearer secret"
    }


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:3000"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/page/models.json", "/v1/models/m"])
def test_other_sites_reach_nothing(page, upstream, path, headers):
    assert page.get(path, headers=headers).status_code == 403
    assert page.post(f"{path}:predict", headers=headers).status_code == 403
    assert upstream.requests == []


def test_another_name_of_the_page_can_be_allowed(running, upstream):
    headers = {"Host": "box.example:8080", "Origin": "http://box.example:8080"}
    with open_page(running[1], "m", "--allowed_host", "box.example") as page:
        assert page.post("/v1/models/m:predict", headers=headers).status_code == 200
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/../monitoring/prometheus/metrics"),
        ("GET", "/v1/%2e%2e/monitoring/prometheus/metrics"),
        ("GET", "/v1/models/m/../../../monitoring/prometheus/metrics"),
        ("GET", "/v1/models/m/labels/..%2f..%2f..%2f..%2fmonitoring"),
        ("GET", "/v1/models/m/labels/..%5c..%5cmonitoring"),
        ("GET", "/v1/models/m/labels/%2e%2e"),
        ("GET", "/v1/models/m/labels/."),
        ("GET", "/v1/models/m//metadata"),
        ("GET", "/v1/models/m?x=1"),
        ("GET", "/v1/models/other"),
        ("GET", "/v1/models/M"),
        ("GET", "/v1/models/mm"),
        ("GET", "/v1/models"),
        ("POST", "/v1/models/other:predict"),
        ("POST", "/v1/models/m:classify"),
        ("POST", "/v1/models/m:predict/x"),
        ("POST", "/v1/models/m"),
        ("GET", "/v1/models/m:predict"),
        ("GET", "/monitoring/prometheus/metrics"),
    ],
)
def test_other_paths_are_not_forwarded(page, upstream, method, path):
    assert page.request(method, path).status_code == 404
    assert upstream.requests == []


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_other_methods_are_not_forwarded(page, upstream, method):
    assert page.request(method, "/v1/models/m").status_code == 405
    assert upstream.requests == []


def test_a_model_with_an_unusual_name_is_asked_for_as_it_is_quoted(running, upstream):
    with open_page(running[1], "a/b (1)?") as page:
        assert page.get("/v1/models/a%2Fb%20(1)%3F/metadata").status_code == 200
    assert upstream.requests[0][1] == "/v1/models/a%2Fb%20%281%29%3F/metadata"


def test_no_header_of_the_browser_reaches_the_server(page, upstream):
    headers = {
        "Authorization": "Bearer other",
        "Cookie": "a=b",
        "Content-Encoding": "gzip",
        "X-Forwarded-For": "1.2.3.4",
        "Transfer-Encoding": "chunked",
    }
    page.post("/v1/models/m:predict", headers=headers, content=b"{}")
    received = upstream.requests[0][3]
    assert received["authorization"] == "Bearer secret"
    assert not {"cookie", "content-encoding", "x-forwarded-for"} & {*received}


def test_answers_are_json_on_the_page_s_origin_whatever_the_server_says(page, upstream):
    headers = {
        "Set-Cookie": "a=b",
        "Location": "http://evil.example",
        "Access-Control-Allow-Origin": "*",
    }
    for status in (200, 302, 404, 500):
        upstream.answer = lambda status=status: Response(
            b"<script>", status, headers, media_type="text/html"
        )
        answer = page.get("/v1/models/m", follow_redirects=False)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not {*map(str.lower, headers)} & {*answer.headers}


@pytest.mark.parametrize(
    ("limit", "status", "reason"),
    [("_LARGEST", 413, "larger than 1000 bytes"), ("_TOTAL", 503, "in memory")],
)
def test_large_requests_and_answers_are_refused(
    running, upstream, monkeypatch, limit, status, reason
):
    """Alone, and all of them together."""
    monkeypatch.setattr(proxy, limit, 1000)
    with open_page(running[1], "m") as page:
        answer = page.post("/v1/models/m:predict", content=b"x" * 1001)
        assert answer.status_code == status
        assert upstream.requests == []
        upstream.answer = lambda: Response(b"x" * 1001)
        assert_is_no_answer(page, reason)
        upstream.answer = lambda: Response(b"{}")
        assert page.get("/v1/models/m").status_code == 200


def assert_is_no_answer(page, reason):
    answer = page.get("/v1/models/m")
    assert answer.status_code == 502
    assert reason in answer.json()["error"]


def test_a_server_that_drips_is_given_up(running, upstream, monkeypatch):
    monkeypatch.setattr(proxy, "_SECONDS", 0.5)

    async def drip():
        for _ in range(200):
            yield b" "
            await asyncio.sleep(0.1)

    upstream.answer = lambda: StreamingResponse(drip())
    with open_page(running[1], "m") as page:
        assert_is_no_answer(page, "within 0.5 seconds")


@pytest.mark.parametrize("coding", ["gzip", "gzip, gzip", "br", "x"])
def test_a_compressed_answer_is_refused_unread(page, upstream, coding):
    upstream.answer = lambda: Response(b"x", headers={"Content-Encoding": coding})
    assert_is_no_answer(page, f"Content-Encoding {coding}")


def test_a_status_that_http_lacks_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            link, _ = listening.accept()
            with link:
                link.recv(65536)
                link.sendall(b"HTTP/1.1 999 Odd\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=answer)
        thread.start()
        with open_page("http://{}:{}".format(*listening.getsockname()), "m") as page:
            assert_is_no_answer(page, "status 999")
        thread.join()


def test_cookies_of_one_answer_are_not_in_the_next_request(page, upstream):
    upstream.answer = lambda: Response(b"{}", headers={"Set-Cookie": "a=b; Path=/"})
    for _ in range(2):
        page.get("/v1/models/m")
    assert [request[3].get("cookie") for request in upstream.requests] == [None, None]


def test_a_body_of_get_is_not_forwarded(page, upstream):
    page.request("GET", "/v1/models/m", content=b"GET /v1/models/other HTTP/1.1")
    assert upstream.requests[0][4] == b""
    assert "content-length" not in upstream.requests[0][3]


def test_a_path_with_another_slash_is_not_redirected(page):
    answer = page.get("/page/models.json/", follow_redirects=False)
    assert answer.status_code == 404


def test_a_password_in_the_address_is_refused(capsys):
    words = ["page", "--rest", "http://user:secret@127.0.0.1:9", "--model", "m"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "--header" in error
    assert "secret" not in error


def test_the_page_cannot_be_framed_or_ask_other_sites(page):
    policy = page.get("/").headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "default-src 'none'" in policy


@pytest.mark.parametrize("name", ["*", "http://box", "box:8080", ""])
def test_an_allowed_host_must_be_a_name(name, capsys):
    words = ["page", "--rest", "http://127.0.0.1:9", "--model", "m"]
    assert main([*words, f"--allowed_host={name}"]) == 2
    assert "must be a host name without a port" in capsys.readouterr().err
