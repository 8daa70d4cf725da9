"""The clients over REST on real sockets: deadlines, closed connections, TLS."""

import asyncio
import contextlib
import itertools
import json
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from client_fakes import KINDS, STATUS, connected, make_certificate

from serving.client import (
    DeadlineExceeded,
    MessageTooLarge,
    RestClient,
    Unavailable,
    asyncio_transport,
)


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


def test_an_answer_in_slow_pieces_times_out(dripping_url):
    with (
        RestClient(dripping_url, "tiny_vit", timeout=0.3) as client,
        pytest.raises(DeadlineExceeded),
    ):
        client.status()


@contextlib.contextmanager
def serving(*connections):
    """A server on a socket: for each connection, the answers to its requests.

    Further connections get the last one's: a client may try more than once.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    requests = []

    def serve():
        with contextlib.suppress(OSError):
            for answers in itertools.chain(
                connections, itertools.repeat(connections[-1])
            ):
                connection, _ = listening.accept()
                with connection:
                    for answer in answers:
                        requests.append(connection.recv(65536))
                        connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}", requests
    listening.shutdown(socket.SHUT_RDWR)  # ends `accept`, which `close` does not
    listening.close()


BODY = json.dumps(STATUS).encode()
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


@pytest.mark.parametrize("kind", ["rest", "rest-asyncio"])
@pytest.mark.parametrize(
    "connections",
    [
        # The server closes the connection that the client keeps.
        ([WHOLE], [WHOLE]),
        # It does so when the next request has been sent.
        ([WHOLE, b""], [WHOLE]),
        # It hangs up in the middle of an answer.
        ([WHOLE, WHOLE[:-40]], [WHOLE]),
        ([WHOLE, WHOLE[:12]], [WHOLE]),
    ],
)
def test_a_closed_connection_is_reopened(kind, connections):
    with serving(*connections) as (url, _), connected(kind, url, timeout=30) as client:
        client.status()
        time.sleep(0.05)
        assert client.status()[0].version == 124


@pytest.mark.parametrize("kind", ["rest", "rest-asyncio"])
def test_connections_are_reused(kind):
    with (
        serving([WHOLE] * 5) as (url, requests),
        connected(kind, url, timeout=5) as client,
    ):
        for _ in range(5):
            client.status()
    assert len(requests) == 5


@pytest.mark.parametrize("kind", ["rest", "rest-asyncio"])
@pytest.mark.usefixtures("without_retries")
def test_tls_trusts_the_given_authorities(kind, tmp_path):
    certificate = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.path, certificate.key)
    server = HTTPServer(("127.0.0.1", 0), StatusHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"https://localhost:{server.server_port}"
    trusting = ssl.create_default_context(cafile=certificate.path)
    with connected(kind, url, verify=trusting) as client:
        assert client.status()[0].version == 124
    with (
        connected(kind, url) as client,
        pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        client.status()
    server.shutdown()
    server.server_close()


class StatusHandler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *args):
        pass


PIECES = b"5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])
FORMS = {
    "until it closes": b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
    "in pieces": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + PIECES,
    "after a notice": b"HTTP/1.1 102 Processing\r\n\r\n" + WHOLE,
    "and close": WHOLE.replace(b"\r\n", b"\r\nConnection: close\r\n", 1),
}


@pytest.mark.parametrize("kind", ["rest", "rest-asyncio"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_answers_of_every_form_are_read(kind, form):
    with serving([form]) as (url, requests), connected(kind, url) as client:
        assert [client.status()[0].version for _ in range(2)] == [124, 124]
    assert len(requests) == 2


@pytest.mark.parametrize("kind", ["rest", "rest-asyncio"])
def test_a_body_that_is_refused_unread_is_too_large(kind):
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    with (
        serving([answer]) as (url, requests),
        connected(kind, url) as client,
        pytest.raises(MessageTooLarge),
    ):
        client.classify([bytes(2**24)])
    assert len(requests) == 1


def test_idle_connections_are_few_and_kept_for_a_while(monkeypatch):
    opened = []

    async def answer(reader, writer):
        opened.append(writer)
        while await reader.read(65536):
            writer.write(WHOLE)
        writer.close()

    async def ask():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with KINDS["rest-asyncio"](f"http://127.0.0.1:{port}", "m") as client:
            for limit, at_once, wanted in ((5.0, 3, 3), (5.0, 3, 4), (0.0, 1, 5)):
                monkeypatch.setattr(asyncio_transport, "IDLE_SECONDS", limit)
                await asyncio.gather(*(client.status() for _ in range(at_once)))
                assert len(opened) == wanted
            monkeypatch.undo()
            await client.status()
            opened[-1].close()
            await asyncio.sleep(0.05)
            await client.ask_once(client.protocol.status())

    monkeypatch.setattr(asyncio_transport, "IDLE_CONNECTIONS", 2)
    asyncio.run(ask())
