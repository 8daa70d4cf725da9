"""Carries prepared requests over REST and gRPC, and names what came of each one.

Leaner than the clients: a request is encoded once and sent many times, an answer is not
interpreted. A generator that shares the machine with the server must cost little (per
request and core: 0.1 ms here, 0.6 ms through httpx2).
"""

import asyncio
import ssl
from abc import ABC, abstractmethod
from typing import NamedTuple
from urllib.parse import urlsplit

import grpc
import h11

OK = "OK"
TIMEOUT = "timeout"
NO_CONNECTION = "no connection"
CONNECTION_LOST = "connection lost"

_PREDICT = "/tensorflow.serving.PredictionService/Predict"
# Answers of any size: what a client would accept is not measured here.
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


class Reply(NamedTuple):
    """What came of a request.

    Attributes:
        code: "OK", "HTTP 404", a gRPC code, or what went wrong on this side: "timeout",
            "no connection", "connection lost".
        body: the answer, or the text of the error.
    """

    code: str
    body: bytes


class RestRequest(NamedTuple):
    """A request of HTTP, its body encoded."""

    method: str
    path: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class GrpcRequest(NamedTuple):
    """A request of gRPC, serialized."""

    message: bytes
    method: str = _PREDICT


class Sender(ABC):
    """Sends requests to one server; used in one event loop."""

    async def ask(self, request: RestRequest | GrpcRequest, timeout: float) -> Reply:
        """Sends a request and waits for its answer.

        Args:
            request: of the sender's own transport.
            timeout: seconds.

        Returns:
            The reply; whatever goes wrong is one too.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._ask(request, timeout)
        except TimeoutError:
            return Reply(TIMEOUT, b"")

    @abstractmethod
    async def _ask(self, request, timeout: float) -> Reply:
        """The reply; `TimeoutError` may end it."""

    @abstractmethod
    async def close(self) -> None:
        """Closes the connections."""


class RestSender(Sender):
    """Sends over HTTP/1.1, as many connections as requests are under way.

    Args:
        url: of the server, such as "http://127.0.0.1:8501"; may have a path.

    Raises:
        ValueError: no such URL.
    """

    def __init__(self, url: str):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"`url` must look like http://127.0.0.1:8501. Received: {url!r}"
            )
        secure = parts.scheme == "https"
        self._where = (parts.hostname, parts.port or (443 if secure else 80))
        self._ssl = ssl.create_default_context() if secure else None
        self._host = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        self._idle: list[_Connection] = []
        self._heads: dict[RestRequest, h11.Request] = {}

    async def _ask(self, request: RestRequest, timeout: float) -> Reply:
        while True:
            try:
                connection = self._free() or await self._connect()
            except OSError as error:
                return Reply(NO_CONNECTION, str(error).encode())
            try:
                status, body = await connection.ask(self._head(request), request.body)
            except (ConnectionError, h11.ProtocolError) as error:
                connection.close()
                if not connection.stale:
                    return Reply(CONNECTION_LOST, str(error).encode())
            except asyncio.CancelledError:
                connection.close()  # its answer is not the one to the next request
                raise
            else:
                self._idle.append(connection)
                return Reply(OK if status == 200 else f"HTTP {status}", body)

    def _free(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
            connection.close()
        return None

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            _Connection, *self._where, ssl=self._ssl
        )
        return connection

    def _head(self, request: RestRequest) -> h11.Request:
        """Made and checked once for each request."""
        if request not in self._heads:
            headers = {
                "Host": self._host,
                "Content-Type": "application/json",
                "Content-Length": str(len(request.body)),
            }
            self._heads[request] = h11.Request(
                method=request.method,
                target=self._prefix + request.path,
                headers=[*(headers | dict(request.headers)).items()],
            )
        return self._heads[request]

    async def close(self) -> None:
        """Closes the connections; those under way end with their requests."""
        for connection in self._idle:
            connection.close()


class _Connection(asyncio.Protocol):
    """One connection of HTTP/1.1, one request at a time."""

    def __init__(self) -> None:
        self.closed = False
        self._asked = 0
        self._begun = False
        self._http = h11.Connection(h11.CLIENT)
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._status = 0
        self._pieces: list[bytes] = []

    @property
    def reusable(self) -> bool:
        """Whether a further request can be sent."""
        return not self.closed and self._http.our_state is h11.IDLE

    @property
    def stale(self) -> bool:
        """Whether the server hung up between two requests, as the next one was sent.

        As all clients do, it is asked again on another connection.
        """
        return self._asked > 1 and not self._begun

    def ask(
        self, head: h11.Request, body: bytes
    ) -> "asyncio.Future[tuple[int, bytes]]":
        """Sends; the future is the status and the body of the answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._pieces = []
        self._asked += 1
        self._begun = False
        sent = [self._http.send(head)]
        if body:
            sent.append(self._http.send(h11.Data(body)))
        self._http.send(h11.EndOfMessage())
        self._transport.write(b"".join(sent))
        return self._answer

    def close(self) -> None:
        self.closed = True
        self._transport.close()

    def connection_made(self, transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._begun = True
        self._read(data)

    def eof_received(self) -> None:
        self.closed = True
        self._read(b"")  # the end of a body without a length

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._fail(ConnectionResetError(str(error or "closed by the server")))

    def _read(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            event = None
            while type(event) is not h11.EndOfMessage:
                event = self._http.next_event()
                if event in _NOTHING_YET or type(event) is h11.ConnectionClosed:
                    return
                self._take(event)
        except h11.ProtocolError as error:
            self._fail(error)

    def _take(self, event) -> None:
        if isinstance(event, h11.Response):
            self._status = event.status_code
        elif isinstance(event, h11.Data):
            self._pieces.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            if self._http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                self._http.start_next_cycle()
            if self._answer is not None and not self._answer.done():
                self._answer.set_result((self._status, b"".join(self._pieces)))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


_NOTHING_YET = (h11.NEED_DATA, h11.PAUSED)


class GrpcSender(Sender):
    """Sends over gRPC, on one channel.

    Args:
        address: of the server, such as "127.0.0.1:8500".
    """

    def __init__(self, address: str):
        self._channel = grpc.aio.insecure_channel(address, _CHANNEL_OPTIONS)
        self._methods: dict[str, grpc.aio.UnaryUnaryMultiCallable] = {}

    async def _ask(self, request: GrpcRequest, timeout: float) -> Reply:
        method = self._methods.get(request.method)
        if method is None:
            method = self._channel.unary_unary(request.method)  # bytes in, bytes out
            self._methods[request.method] = method
        try:
            return Reply(OK, await method(request.message, timeout=timeout))
        except grpc.aio.AioRpcError as error:
            return Reply(error.code().name, (error.details() or "").encode())

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()
