"""What the HTTP servers on this machine accept: hosts, origins, and sizes of bodies.

Any website can have a visitor's browser send requests to 127.0.0.1; these have the
header `Origin`. If the site's DNS says so, its own name is an address of this machine,
too (DNS rebinding); the header `Host` still has that name.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Collection, Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# A browser always sends the header; the health checks of containers do not.
_NO_HOST = ""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", _NO_HOST)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:]*)(?::[0-9]*)?")
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def is_host_name(text: str) -> bool:
    """Whether a text can be allowed as a host: a name or an IPv4 address, no port."""
    return _HOST_NAME.fullmatch(text) is not None


class OwnSite:
    """ASGI middleware that refuses what browsers send for other sites, with 403.

    Args:
        allowed_hosts: Names of this server, besides those of the loopback interface.
        any_origin: Whether pages of other sites may send requests.
    """

    def __init__(
        self, app: ASGIApp, allowed_hosts: Collection[str], any_origin: bool = False
    ) -> None:
        self._app = app
        self._hosts = {*LOOPBACK, *(host.lower() for host in allowed_hosts)}
        self._any_origin = any_origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        app = self._app
        if scope["type"] == "http" and (reason := self._refusal(scope)):
            app = JSONResponse({"error": reason}, 403)
        await app(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        host = headers.get("host", _NO_HOST).strip().lower()
        name = _HOST.fullmatch(host)
        if name is None or name[1] not in self._hosts:
            return f"Host {host!r} is not allowed here; --allowed_host adds a name"
        # A preflight request asks for nothing but this.
        if self._any_origin or scope["method"] == "OPTIONS":
            return None
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] != host:
            return f"Origin {origin!r} is another site than Host {host!r}"
        # Images and scripts of other sites are asked for without `Origin`.
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        if site in ("cross-site", "same-site") and mode != "navigate":
            return f"Sec-Fetch-Site {site!r}: asked for by another site"
        return None


class Bodies:
    """Reads the bodies of requests, or of answers, within limits.

    Args:
        largest: Bytes of a body.
        total: Bytes of all bodies that are in memory at a time.
        seconds: In which a body must have arrived.
    """

    def __init__(self, largest: int, total: int, seconds: float) -> None:
        self._largest = largest
        self._total = total
        self._seconds = seconds
        self._held = 0
        self._stopped = False
        self._waiting: dict[asyncio.Timeout, asyncio.AbstractEventLoop] = {}

    @contextlib.asynccontextmanager
    async def read(
        self, pieces: AsyncIterator[bytes], headers: Mapping[str, str]
    ) -> AsyncIterator[bytearray]:
        """A body, which counts as long as the block runs.

        Raises:
            HTTPException: 413 if the body is too large, 503 if all bodies together are
                or the server stops, 408 if it does not arrive in time, 400 if it has
                another length than announced, 499 if the client has gone.
        """
        body = bytearray()
        try:
            await self._receive(pieces, headers, body)
            yield body
        finally:
            self._held -= len(body)

    def stop(self) -> None:
        """Wait for no more bodies; any thread may call it."""
        self._stopped = True
        for waiting, loop in list(self._waiting.items()):
            loop.call_soon_threadsafe(self._give_up, waiting)

    def _give_up(self, waiting: asyncio.Timeout) -> None:
        if waiting in self._waiting:
            waiting.reschedule(0)

    async def _receive(
        self, pieces: AsyncIterator[bytes], headers: Mapping[str, str], body: bytearray
    ) -> None:
        # Python reads no more than 4300 digits.
        digits = headers.get("content-length", "").lstrip("0")[:20]
        announced = int(digits or "0")
        self._check(announced)
        try:
            async with asyncio.timeout(self._seconds) as waiting:
                self._waiting[waiting] = asyncio.get_running_loop()
                try:
                    async for piece in pieces:
                        body += piece
                        self._held += len(piece)
                        self._check(len(body))
                finally:
                    del self._waiting[waiting]
        except TimeoutError as error:
            text = f"The body did not arrive within {self._seconds:g} seconds"
            close = {"Connection": "close"}
            if self._stopped:
                raise HTTPException(503, "the server is stopping", close) from error
            raise HTTPException(408, text, close) from error
        except ClientDisconnect as error:
            raise HTTPException(499, "The client has gone") from error
        if "content-length" in headers and len(body) != announced:
            text = f"Content-Length announces {announced} bytes, {len(body)} came"
            raise HTTPException(400, text)

    def _check(self, size: int) -> None:
        if size > self._largest:
            text = f"The body is larger than {self._largest} bytes"
            raise HTTPException(413, text)
        if self._held > self._total:
            text = f"Bodies of {self._total} bytes are in memory; ask again later"
            raise HTTPException(503, text)
