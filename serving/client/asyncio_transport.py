"""HTTP/1.1 by h11 on asyncio's own streams, a transport for httpx2's client.

httpx2's own takes twice as long for a request, because of anyio and of a pool that
looks at every connection each time.
"""

import asyncio
import ssl
import time
from collections import deque

import h11
import httpx2

# Idle connections that are kept, and for how many seconds: as `RestClient` does.
IDLE_CONNECTIONS = 100
IDLE_SECONDS = 5.0

_READ_BYTES = 2**18
_HEADER_BYTES = 100 * 1024


class Connection:
    """A connection, for one request at a time."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT, _HEADER_BYTES)
        self.idle_since = 0.0

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and read the whole answer."""
        head = h11.Request(
            method=request.method,
            target=request.url.raw_path,
            headers=request.headers.raw,
        )
        events = (head, h11.Data(await request.aread()), h11.EndOfMessage())
        # Not drained: a server may refuse a large body before it has read all.
        self._writer.writelines([self._http.send(event) or b"" for event in events])
        content = []
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await self._reader.read(_READ_BYTES)
                if not data and self._http.their_state is h11.SEND_RESPONSE:
                    raise httpx2.RemoteProtocolError("the server disconnected")
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                status, headers = event.status_code, event.headers.raw_items()
            elif isinstance(event, h11.Data):
                content.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                stream = httpx2.ByteStream(b"".join(content))
                return httpx2.Response(status, headers=headers, stream=stream)

    def is_reusable(self) -> bool:
        """Whether both sides have ended their messages, and none closes."""
        if {self._http.our_state, self._http.their_state} != {h11.DONE}:
            return False
        self._http.start_next_cycle()
        self.idle_since = time.monotonic()
        return True

    def is_alive(self) -> bool:
        """Whether it is young, and the server has not closed it."""
        expired = self.idle_since < time.monotonic() - IDLE_SECONDS
        return not (expired or self._reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        """Close it, without waiting."""
        self._writer.close()


class AsyncioTransport(httpx2.AsyncBaseTransport):
    """A connection for each concurrent request to one server.

    Args:
        context: For https.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()
        self._closed = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request on an idle connection or a new one."""
        connection = self._idle_connection() or await self._connect(request.url)
        self._busy.add(connection)
        try:
            return await connection.send(request)
        except OSError as error:
            raise httpx2.ReadError(str(error)) from error
        except h11.RemoteProtocolError as error:
            raise httpx2.RemoteProtocolError(str(error)) from error
        finally:
            self._busy.discard(connection)
            self._release(connection)

    async def aclose(self) -> None:
        """Close all connections; requests in flight fail."""
        self._closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()

    def _idle_connection(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_alive():
                return connection
            connection.close()
        return None

    async def _connect(self, url: httpx2.URL) -> Connection:
        encrypted = url.scheme == "https"
        try:
            return Connection(
                *await asyncio.open_connection(
                    url.raw_host.decode(),
                    url.port or (443 if encrypted else 80),
                    ssl=self._context if encrypted else None,
                    happy_eyeballs_delay=0.25,
                    limit=_READ_BYTES,
                )
            )
        except OSError as error:
            raise httpx2.ConnectError(str(error)) from error

    def _release(self, connection: Connection) -> None:
        if self._closed or not connection.is_reusable():
            connection.close()
            return
        oldest, idle = time.monotonic() - IDLE_SECONDS, self._idle
        while idle and (idle[0].idle_since < oldest or len(idle) >= IDLE_CONNECTIONS):
            idle.popleft().close()
        idle.append(connection)
