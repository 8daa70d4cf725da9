"""RestClient: its requests, and answers of servers and gateways."""

import base64
import contextlib
import gzip
import json
import time

import httpx2
import numpy as np
import pytest
from client_fakes import (
    ATTENTION_JSON,
    CLASSIFY_JSON,
    EMBEDDED,
    METADATA,
    STATUS,
    Outputs,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.client import (
    DeadlineExceeded,
    MessageTooLarge,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    RestClient,
    ServingError,
    Unauthenticated,
    Unavailable,
)


@pytest.fixture
def connect():
    """Builds a client whose requests go to a function."""

    def build(handler, url="http://server", model="tiny_vit", **kwargs):
        transport = httpx2.MockTransport(handler)
        return RestClient(url, model, transport=transport, **kwargs)

    return build


def test_images_are_sent_as_base64_in_the_column_format(connect, fake):
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


LONG = f"http://{'a' * 64}.example"


@pytest.mark.parametrize("url", ["127.0.0.1:8501", "ftp://server", "http://", "", LONG])
def test_invalid_urls_are_refused(url):
    with pytest.raises(ValueError, match=r"`url` must look like http://127\.0\.0\.1"):
        RestClient(url, "tiny_vit")


def test_a_failed_connection_is_retried_until_the_deadline(connect):
    calls = []

    def refuse(request):
        calls.append(request)
        raise httpx2.ConnectError("Connection refused")

    with pytest.raises(Unavailable, match="http://server: Connection refused"):
        connect(refuse, timeout=0.5).status()
    assert 3 <= len(calls) <= 8


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (httpx2.Response(404, text="<H1>Not Found</H1>"), NotFound),
        (httpx2.Response(400, text=""), ServingError),
        (httpx2.Response(200, text="hello"), ServingError),
        (httpx2.Response(200, json=[1]), ServingError),
        (httpx2.Response(200, json={"ok": True}), ServingError),
        (httpx2.Response(302, text="moved"), ServingError),
        (httpx2.Response(401, text="who?"), Unauthenticated),
        (httpx2.Response(403, text="no"), PermissionDenied),
        (httpx2.Response(413, text="<h1>413 Too Large</h1>"), MessageTooLarge),
        (httpx2.Response(429, text="slowly"), ResourceExhausted),
        (httpx2.Response(502, text="<h1>502 Bad Gateway</h1>"), Unavailable),
        (httpx2.Response(504, text="<h1>504 Time-out</h1>"), DeadlineExceeded),
        (httpx2.Response(500, text="[" * 100_000), ServingError),
        (httpx2.Response(200, text='{"n": ' + "9" * 5000 + "}"), ServingError),
    ],
)
@pytest.mark.usefixtures("without_retries")
def test_other_servers_are_recognized(connect, answer, wanted):
    with pytest.raises(wanted, match="not in TensorFlow Serving's form"):
        connect(lambda _: answer).status()


def test_numbers_out_of_range_are_errors_of_the_client(connect):
    text = json.dumps(STATUS).replace('"124"', "Infinity")
    with pytest.raises(ServingError, match="OverflowError"):
        connect(lambda _: httpx2.Response(200, text=text)).status()
    text = CLASSIFY_JSON.replace("[1, 2, 0]", f"[1, 2, {2**70}]")
    with pytest.raises(ServingError, match="OverflowError"):
        connect(lambda _: httpx2.Response(200, text=text)).classify([b"1", b"2"])


def test_the_first_words_of_a_gateway_are_shown(connect):
    page = "<html>\n  <h1>413 Request Entity Too Large</h1>" + "<p>nginx" * 100_000
    with pytest.raises(MessageTooLarge) as caught:
        connect(lambda _: httpx2.Response(413, text=page)).status()
    assert "'<html> <h1>413 Request Entity Too Large</h1><p>nginx" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_redirects_are_reported_and_not_followed(connect):
    asked = []

    def redirect(request):
        asked.append(request)
        return httpx2.Response(301, headers={"location": "https://gate/v1"})

    with pytest.raises(ServingError, match="leads to, https://gate/v1"):
        connect(redirect).status()
    assert len(asked) == 1


def test_compressed_answers_are_read(connect):
    content = gzip.compress(json.dumps(STATUS).encode())
    headers = {"content-encoding": "gzip"}
    answer = httpx2.Response(200, headers=headers, stream=httpx2.ByteStream(content))
    assert connect(lambda _: answer).status()[0].version == 124


def test_invalid_compression_is_an_error(connect):
    def broken(_):
        stream = httpx2.ByteStream(b"not gzip")
        headers = {"content-encoding": "gzip"}
        return httpx2.Response(200, headers=headers, stream=stream)

    with pytest.raises(ServingError, match="bad answer from http://server"):
        connect(broken).status()


@pytest.mark.slow
def test_an_answer_of_fifty_megabytes_is_read(connect, fake):
    row = np.arange(700_000, dtype="float32") / 7
    text = json.dumps({"outputs": [row.tolist()] * 4})
    fake.answers = [Outputs(text, {})]
    outputs = connect(fake.rest).predict({"x": [1.0]}, "nan_out")
    np.testing.assert_array_equal(outputs["y"], np.stack([row] * 4))


def test_headers_are_sent_with_each_request(connect, fake):
    client = connect(fake.rest, headers={"Authorization": "Bearer x"})
    client.classify([b"1", b"2"])
    client.status()
    sent = [request.headers["authorization"] for request in fake.requests]
    assert sent == ["Bearer x"] * 2


def test_a_password_in_the_url_is_sent_as_a_header(connect, fake):
    client = connect(fake.rest, "https://me:secret@gate/way")
    client.status()
    [request] = fake.requests
    assert request.headers["authorization"] == "Basic bWU6c2VjcmV0"
    assert "secret" not in request.url.raw_path.decode()
    assert client.url == "https://gate/way"


def test_errors_do_not_show_the_password(connect):
    def refuse(_):
        raise httpx2.ReadTimeout("")

    with pytest.raises(DeadlineExceeded) as caught:
        connect(refuse, "https://me:secret@gate").status()
    assert "secret" not in str(caught.value)


def test_every_phase_of_a_request_has_the_time_that_is_left(connect):
    left = []

    def slow(request):
        for phase in ("pool", "connect", "write", "read"):
            left.append(request.extensions["timeout"].get(phase))
            time.sleep(0.02)
        return httpx2.Response(200, json=STATUS)

    connect(slow, timeout=3).status()
    assert 3 > left[0] > left[1] + 0.01 > left[2] + 0.02 > left[3] + 0.03


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["b64", "classes", "dim", "size", "outputs", "version"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


def places(value, path=()):
    """The paths of all values inside a JSON."""
    yield path
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    for key, item in inner:
        yield from places(item, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = replaced(value[path[0]], path[1:], new)
    return copied


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_malformed_answers_are_errors_of_the_client(data):
    method, good = data.draw(
        st.sampled_from(
            [
                ("status", STATUS),
                ("metadata", METADATA),
                ("classify", json.loads(CLASSIFY_JSON)),
                ("embed", json.loads(EMBEDDED.text)),
                ("attention", json.loads(ATTENTION_JSON)),
            ]
        )
    )
    path = data.draw(st.sampled_from(sorted(places(good), key=str)))
    answer = replaced(good, path, data.draw(JSON))
    text = json.dumps(answer)
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, text=text))
    images = {"status": [], "metadata": [], "attention": [[b"1"]]}
    with (
        RestClient("http://server", "tiny_vit", transport=transport) as client,
        contextlib.suppress(ServingError),
    ):
        getattr(client, method)(*images.get(method, [[b"1", b"2"]]))
