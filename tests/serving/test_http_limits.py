"""Hosts, origins and bodies that the servers on this machine accept."""

import asyncio
from functools import partial

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from serving.http_limits import Bodies, OwnSite, is_host_name

LOCAL = "http://127.0.0.1:8501"


def client(*allowed, base_url=LOCAL, **options):
    return TestClient(
        OwnSite(PlainTextResponse("passed"), allowed, **options), base_url
    )


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8501", "localhost", "LocalHost:1", "[::1]:8501", "models", ""]
)
def test_loopback_and_allowed_hosts_pass(host):
    assert client("Models").get("/", headers={"Host": host}).text == "passed"


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8501", "127.0.0.1.evil.example", "10.0.0.1"),
        *("localhost:x", "localhost:1:2", "localhost@evil", "[", "[evil]", "models."),
    ],
)
def test_other_hosts_are_refused(host):
    answer = client("models").get("/", headers={"Host": host})
    assert answer.status_code == 403
    assert "--allowed_host" in answer.json()["error"]


@pytest.mark.parametrize("origin", [LOCAL, "https://127.0.0.1:8501"])
def test_requests_of_the_own_page_pass(origin):
    assert client().post("/", headers={"Origin": origin}).text == "passed"


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "", "http://evil.example", "http://127.0.0.1:8501.evil.example"),
        *("http://127.0.0.1:3000", "http://127.0.0.1", "127.0.0.1:8501"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_requests_of_other_origins_are_refused(method, origin):
    headers = {"Origin": origin}
    answer = client().request(method, "/", headers=headers)
    assert answer.status_code == 403
    assert repr(origin) in answer.json()["error"]
    answer = client(any_origin=True).request(method, "/", headers=headers)
    assert answer.text == "passed"


def test_preflight_requests_pass_from_any_origin():
    headers = {"Origin": "http://evil.example"}
    assert client().options("/", headers=headers).text == "passed"


def test_host_names():
    names = ["models", "10.0.0.1", "a.example", "my_host"]
    others = ["", "*", "*.example", "a:80", "http://a", "a/b", "-a"]
    assert [name for name in [*names, *others] if is_host_name(name)] == names


def request(*pieces, wait=0.0, length=None, disconnect=False):
    """Body and headers of a request whose body arrives in pieces."""
    messages = [
        {"type": "http.request", "body": piece, "more_body": True} for piece in pieces
    ]
    last = {"type": "http.disconnect" if disconnect else "http.request"}
    queue = iter([*messages, last])

    async def receive():
        await asyncio.sleep(wait)
        return next(queue)

    headers = [] if length is None else [(b"content-length", length)]
    scope = {"type": "http", "method": "POST", "headers": headers}
    received = Request(scope, receive)
    return received.stream(), received.headers


def refusal(bodies, received):
    async def read():
        async with bodies.read(*received):
            raise AssertionError("the body was accepted")

    with pytest.raises(HTTPException) as caught:
        asyncio.run(read())
    return caught.value


def content(bodies, received):
    async def read():
        async with bodies.read(*received) as body:
            return bytes(body)

    return asyncio.run(read())


def test_a_body_within_the_limits_is_read():
    bodies = Bodies(largest=4, total=4, seconds=5)
    for _ in range(3):  # what was read before does not count
        assert content(bodies, request(b"ab", b"cd", length=b"4")) == b"abcd"


@pytest.mark.parametrize(
    ("received", "status", "text"),
    [
        (partial(request, b"abc", b"de"), 413, "larger than 4 bytes"),
        (partial(request, length=b"5"), 413, "larger than 4 bytes"),
        (
            partial(request, length=b"0" * 5000 + b"9" * 5000),
            413,
            "larger than 4 bytes",
        ),
        (partial(request, b"a", wait=0.2), 408, "within 0.1 seconds"),
        (partial(request, b"a", disconnect=True), 499, "has gone"),
        (partial(request, b"a", length=b"3"), 400, "announces 3 bytes, 1 came"),
        (partial(request, length=b"3"), 400, "announces 3 bytes, 0 came"),
    ],
)
def test_a_body_beyond_the_limits_is_refused(received, status, text):
    bodies = Bodies(largest=4, total=100, seconds=0.1)
    error = refusal(bodies, received())
    assert error.status_code == status
    assert text in error.detail
    assert content(bodies, request(b"abcd")) == b"abcd"


def test_all_bodies_together_are_limited():
    bodies = Bodies(largest=4, total=6, seconds=5)

    async def read_both():
        async with bodies.read(*request(b"abcd")), bodies.read(*request(b"abcd")):
            raise AssertionError("both were accepted")

    with pytest.raises(HTTPException) as caught:
        asyncio.run(read_both())
    assert caught.value.status_code == 503
    assert content(bodies, request(b"abcd")) == b"abcd"


def test_a_timeout_of_the_handler_is_its_own():
    async def read():
        async with Bodies(largest=4, total=4, seconds=5).read(*request()):
            raise TimeoutError

    with pytest.raises(TimeoutError):
        asyncio.run(read())


def test_a_body_that_is_on_its_way_when_the_server_stops_is_refused():
    bodies = Bodies(largest=4, total=4, seconds=30)

    async def read_and_stop():
        asyncio.get_running_loop().call_later(0.05, bodies.stop)
        async with bodies.read(*request(b"a", wait=2)):
            raise AssertionError("the body was accepted")

    with pytest.raises(HTTPException) as caught:
        asyncio.run(read_and_stop())
    assert caught.value.status_code == 503


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "no-cors", 403),
        ("same-site", "no-cors", 403),
        ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ],
)
def test_what_other_sites_embed_is_refused_and_a_link_to_the_page_is_not(
    site, mode, status
):
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
    assert client().get("/", headers=headers).status_code == status
    assert client(any_origin=True).get("/", headers=headers).status_code == 200
