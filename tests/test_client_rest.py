"""RestClient: what it sends, what it makes of HTTP, and what it does not import."""

import base64
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx2
import numpy as np
import pytest
from client_fakes import FakeServer

from serving.client import (
    DeadlineExceeded,
    NotFound,
    RestClient,
    ServingError,
    Unavailable,
)


@pytest.fixture
def fake():
    return FakeServer()


@pytest.fixture
def connect():
    """Builds a client whose requests go to a function."""

    def build(handler, url="http://server", model="tiny_vit", **kwargs):
        transport = httpx2.MockTransport(handler)
        return RestClient(url, model, transport=transport, **kwargs)

    return build


@pytest.fixture
def dripping_url():
    """A server that sends its answer a byte at a time, for three seconds."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):  # the client hangs up
                for _ in range(60):
                    self.wfile.write(b" ")
                    time.sleep(0.05)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_images_travel_as_base64_in_the_column_format(connect, fake):
    raw = bytes(range(256))
    connect(fake.rest).classify([raw, b""])
    [request] = fake.requests
    assert str(request.url) == "http://server/v1/models/tiny_vit:predict"
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.content) == {
        "signature_name": "serving_default",
        "inputs": {
            "image_bytes": [
                {"b64": base64.b64encode(raw).decode()},
                {"b64": ""},
            ]
        },
    }


def test_nan_and_infinity_are_sent_as_words(connect, fake):
    client = connect(fake.rest)
    with pytest.raises(ServingError):  # the fake's answer is that of classify
        client.predict({"x": np.array([np.nan, np.inf, -np.inf])}, "nan_out")
    assert b'{"x": [NaN, Infinity, -Infinity]}' in fake.requests[-1].content


@pytest.mark.parametrize(
    ("which", "path"),
    [
        ({}, "/v1/models/tiny_vit"),
        ({"version": 12}, "/v1/models/tiny_vit/versions/12"),
        ({"label": "a/b"}, "/v1/models/tiny_vit/labels/a%2Fb"),
        ({"model": "größe 1"}, "/v1/models/gr%C3%B6%C3%9Fe%201"),
        ({"url": "https://gate/way/"}, "/way/v1/models/tiny_vit"),
    ],
)
def test_paths_name_model_version_and_label(connect, fake, which, path):
    connect(fake.rest, **which).status()
    assert fake.requests[0].url.raw_path.decode() == path


@pytest.mark.parametrize("url", ["127.0.0.1:8501", "ftp://server", "http://", ""])
def test_urls_that_are_none_are_refused(url):
    with pytest.raises(ValueError, match=r"`url` must look like http://127\.0\.0\.1"):
        RestClient(url, "tiny_vit")


def test_a_failed_connection_is_tried_three_times(connect, monkeypatch):
    monkeypatch.setattr("serving.client.base.time.sleep", lambda _: None)
    calls = []

    def refuse(request):
        calls.append(request)
        raise httpx2.ConnectError("Connection refused")

    with pytest.raises(Unavailable, match="http://server: Connection refused"):
        connect(refuse).status()
    assert len(calls) == 3


def test_a_port_where_nobody_listens_is_unavailable():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with RestClient(url, "tiny_vit") as client, pytest.raises(Unavailable):
        client.status()


def test_a_silent_server_is_given_up_after_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        with (
            RestClient(url, "tiny_vit", timeout=0.3) as client,
            pytest.raises(DeadlineExceeded, match=r"no answer from .* within 0\.3 s"),
        ):
            client.status()
        assert 0.25 < time.monotonic() - start < 2


def test_an_answer_that_drips_is_given_up_after_the_deadline(dripping_url):
    start = time.monotonic()
    with (
        RestClient(dripping_url, "tiny_vit", timeout=0.3) as client,
        pytest.raises(DeadlineExceeded),
    ):
        client.status()
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (httpx2.Response(404, text="<H1>Not Found</H1>"), NotFound),
        (httpx2.Response(400, text=""), ServingError),
        (httpx2.Response(200, text="hello"), ServingError),
        (httpx2.Response(200, json=[1]), ServingError),
        (httpx2.Response(200, json={"ok": True}), ServingError),
        (httpx2.Response(302, headers={"location": "http://other"}), ServingError),
    ],
)
def test_other_servers_are_recognised(connect, answer, wanted):
    with pytest.raises(wanted, match="not in TensorFlow Serving's form"):
        connect(lambda _: answer).status()


def modules_after(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_rest_imports_no_tensorflow():
    modules = modules_after(
        "from serving.client import RestClient; RestClient('http://server', 'm')"
    )
    assert "httpx2" in modules
    assert not modules & {"tensorflow", "keras", "keras_vit", "grpc", "training"}


def test_importing_the_client_takes_no_longer_than_thrice_its_http_library():
    def seconds(statement):
        code = f"import time; t = time.perf_counter(); {statement}; "
        code += "print(time.perf_counter() - t)"
        return min(
            float(subprocess.check_output([sys.executable, "-c", code]))
            for _ in range(3)
        )

    limit = 3 * seconds("import httpx2")
    assert seconds("from serving.client import RestClient") <= limit
