"""docker/gateway under clients that ask for too much at a time."""

import contextlib
import resource
import threading
import time

import pytest
from docker_files import compose
from docker_gateway import answer
from polling import wait_for

pytestmark = pytest.mark.slow

MIB = 2**20


@pytest.fixture
def opened():
    """A stack that closes what a test has opened."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


def status_of(gateway, name="alice"):
    with gateway.http(gateway.tokens[name]) as client:
        return client.get("/v1/models/vit").status_code


def begun(gateway, headers, *where):
    """A connection whose request has passed every limit, and whose body is awaited."""
    connection = gateway.post(headers + b"Expect: 100-continue\r\n", *where)
    assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
    return connection


def is_open(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True


def test_requests_per_client_are_limited(gateway, opened):
    small = b"Content-Length: 10\r\n"
    waiting = [opened(begun(gateway, small)) for _ in range(32)]
    assert status_of(gateway) == 429
    assert status_of(gateway, "bob") == 200
    for connection in waiting:
        connection.close()
    wait_for(lambda: status_of(gateway) == 200)


@pytest.mark.parametrize(
    "headers", [b"Content-Length: 1000000\r\n", b"Transfer-Encoding: chunked\r\n"]
)
def test_large_bodies_are_limited_per_client_and_in_all(gateway, opened, headers):
    for name, refused in (("alice", "alice"), ("bob", "carol")):
        for _ in range(4):
            opened(begun(gateway, headers, name))
        status, fields, _ = answer(opened(gateway.post(headers, refused)))
        assert (status, fields["Retry-After"]) == (429, "1")
    small = opened(begun(gateway, b"Content-Length: 2\r\n", "carol"))
    small.sendall(b"{}")
    assert b" 400 " in small.recv(100)


def test_small_bodies_are_limited_in_all(gateway, opened):
    small = b"Content-Length: 999999\r\n"
    *_, other = gateway.tokens
    for number, name in enumerate(("alice", "bob")):
        for _ in range(32):
            opened(begun(gateway, small, name, f"127.0.0.{2 + number}"))
    assert answer(opened(gateway.post(small, other)))[0] == 429
    assert status_of(gateway, other) == 200


def in_json(content):
    """A body of 24 MiB of some JSON, over and over."""
    start, end = b'{"instances": [', b"0]}"
    count = (24 * MIB - len(start) - len(end)) // len(content)
    return start + content * count + end


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("content", [b'"' + b"A" * 4 * MIB + b'",', b"1,", b'"a",'])
def test_bodies_of_any_number_fit_into_the_memory_of_the_container(
    gateway, chunked, content
):
    """60 bodies of 24 MiB, of three clients, as they arrive and as they are read."""
    before, statuses = gateway.memory(), []
    body = in_json(content)
    length = b"Content-Length: %d\r\n" % len(body)
    headers = b"Transfer-Encoding: chunked\r\n" if chunked else length
    frames = (b"%x\r\n" % len(body), b"\r\n0\r\n\r\n") if chunked else (b"", b"")
    sent = frames[0] + body + frames[1]

    def send(name):
        # OSError: refused, and closed.
        with gateway.post(headers, name) as connection, contextlib.suppress(OSError):
            connection.sendall(sent)
            try:
                statuses.append(answer(connection)[0])
            except TimeoutError:  # of a busy machine: taken, and not answered yet
                statuses.append(504)

    threads = [
        threading.Thread(target=send, args=(name,))
        for name in ("alice", "bob", "carol") * 20
    ]
    for thread in threads:
        thread.start()
    peak = before
    while any(thread.is_alive() for thread in threads):
        peak = max(peak, gateway.memory())
        time.sleep(0.05)
    limit = compose()["services"]["gateway"]["mem_limit"]
    assert limit == "1g"
    assert 50 * MIB < peak - before < 0.6 * 1024 * MIB
    # The server refuses 24 MiB of "A" in time, and millions of values too late.
    assert {400, 503, 504} & {*statuses}
    assert {*statuses} <= {400, 429, 503, 504}
    wait_for(lambda: gateway.memory() < before + 100 * MIB)


def test_answers_that_nobody_takes_fit_too(gateway, opened):
    """Streams without a window, on all connections that one address may have."""
    before = gateway.memory()
    for _ in range(64):
        connection = opened(gateway.connect_tls("127.0.0.4", "h2"))
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        connection.sendall(b"\0\0\x06\x04\0\0\0\0\0" + b"\0\x04\0\0\0\0")  # SETTINGS
        for stream in range(1, 65, 2):
            fields = b"\x82\x84\x87\x41\x01x"  # GET / of https://x
            head = len(fields).to_bytes(3) + b"\x01\x05" + stream.to_bytes(4)
            connection.sendall(head + fields)
    time.sleep(2)
    assert gateway.memory() - before < 64 * 0.5 * MIB


def test_connections_per_address_are_limited_before_they_send_anything(gateway, opened):
    silent = [opened(gateway.connect("127.0.0.2")) for _ in range(64)]
    with gateway.connect("127.0.0.2") as refused:
        assert refused.recv(1) == b""
    assert is_open(silent[0])  # so that was not for having been silent
    with gateway.connect_tls("127.0.0.3") as other:
        other.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(other)[0] == 401
    assert status_of(gateway) == 200


def test_connections_of_all_addresses_are_limited_and_leave_the_health_check_alone(
    gateway, opened
):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    half = []
    for address in range(10, 18):
        half += [opened(gateway.connect(f"127.0.0.{address}")) for _ in range(64)]
        for connection in half[-64:]:
            connection.sendall(b"\x16\x03\x01")  # of a TLS handshake
    with gateway.connect("127.0.0.18") as refused:
        assert refused.recv(1) == b""
    assert is_open(half[-64])
    assert gateway.is_healthy()


def test_half_a_request_is_given_up(gateway):
    with gateway.connect_tls() as connection:
        connection.sendall(b"GET /v1/models/vit HTTP/1.1\r\nHost: localhost\r\n")
        assert b"\r\n\r\n" not in connection.recv(4096)


def test_counting_depth_leaves_time_for_other_requests(gateway):
    """A large body is read in slices, between which the worker answers others."""
    body = b"[" + b"[]," * (2 * MIB) + b"[" * 64
    durations = []

    def send():
        started = time.monotonic()
        with gateway.post(b"Content-Length: %d\r\n" % len(body)) as connection:
            connection.sendall(body)
            assert answer(connection)[0] == 400
        durations.append(time.monotonic() - started)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    waits = []
    with gateway.http() as client:
        while any(thread.is_alive() for thread in threads):
            started = time.monotonic()
            assert client.get("/").status_code == 404
            waits.append(time.monotonic() - started)
    assert len(durations) == 4
    assert max(waits) < min(durations) / 3
