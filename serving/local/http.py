"""HTTP/1.1 through uvicorn and h11: targets as they came, answers in one piece."""

import asyncio
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Protocol(H11Protocol):
    """uvicorn's protocol; the target of a request is in `scope["state"]["target"]`.

    ASGI's `path` and `query_string` do not tell `/x?` from `/x`, which are two requests
    to TensorFlow Serving.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.app_state = dict(self.app_state)
        self.conn = _Connection(h11.SERVER, self.conn._max_incomplete_event_size)
        self.conn.app_state = self.app_state

    def send_400_response(self, msg: str) -> None:
        """Ends a connection that does not speak HTTP."""
        page = error_page(400).encode()
        head = h11.Response(
            status_code=400,
            headers=[
                ("Content-Type", "text/html"),
                ("Content-Length", str(len(page))),
                ("Connection", "close"),
            ],
            reason="Bad Request",
        )
        for event in (head, h11.Data(data=page), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_made(self, transport: Any) -> None:
        """Begins a connection."""
        super().connection_made(_OnePiece(transport, self.loop))  # type: ignore[arg-type]


class _Connection(h11.Connection):
    """h11's connection, which notes the target of each request."""

    app_state: dict[str, Any]

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.app_state["target"] = event.target
        return event


class _OnePiece:
    """A transport that sends the head of an answer together with its body.

    uvicorn writes them one after the other, which costs a system call and wakes the
    client for the head alone: a tenth of the time of a small request.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Keeps data until the answer ends, which uvicorn tells by writing nothing.

        What has no such end, as "go on and send", leaves with the loop's next turn.
        """
        if not data:
            self._flush()
            return
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)

    def _flush(self) -> None:
        if self._pieces:
            self._transport.write(b"".join(self._pieces))
            self._pieces.clear()

    def close(self) -> None:
        """Sends what is kept, then closes."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def error_page(status: int) -> str:
    """The page of TensorFlow Serving's HTTP library for what never reaches a model."""
    title = HTTPStatus(status).phrase
    return (
        f"<HTML><HEAD>\n<TITLE>{status} {title}</TITLE>\n</HEAD><BODY>\n"
        f"<H1>{title}</H1>\n</BODY></HTML>\n"
    )
