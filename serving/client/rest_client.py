"""Clients over REST, on httpx2: connections, deadlines, errors."""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

try:
    import httpx2
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "RestClient needs httpx2: pip install httpx2", name=error.name
    ) from error

from .base_client import BaseClient
from .blocking_client import BlockingClient
from .errors import ServingError, Unavailable, too_late
from .protocol import Target, checked_headers
from .rest_protocol import RestProtocol, RestReply, RestRequest

if TYPE_CHECKING:
    import ssl

# What httpx2 and asyncio raise of a request.
ERRORS = (httpx2.RequestError, TimeoutError)
# A connection for each concurrent call; only idle ones are bounded.
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=100)


class Rest(BaseClient):
    """Base of both clients over REST.

    Attributes:
        url: Of the server, without a password.
    """

    _open: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        url: str,
        model: str,
        *,
        version: int | None = None,
        label: str | None = None,
        timeout: float = 10.0,
        headers: Mapping[str, str] | None = None,
        verify: "ssl.SSLContext | bool" = True,
        transport: httpx2.BaseTransport | httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(RestProtocol(Target(model, version, label)), timeout)
        parsed = _checked_url(url)
        self._base = str(parsed).rstrip("/")
        self.url = str(parsed.copy_with(userinfo=b"")).rstrip("/")
        self._http = self._open(
            headers=checked_headers("headers", headers),
            verify=verify,
            limits=_LIMITS,
            transport=transport,
        )

    def _http_request(self, request: RestRequest, timeout: float) -> httpx2.Request:
        built: httpx2.Request = self._http.build_request(
            request.method,
            self._base + request.path,
            content=request.content,
            headers={"Content-Type": "application/json"},
            extensions={"timeout": _TimeLeft(time.monotonic() + timeout)},
        )
        return built

    def _converted(self, error: Exception, timeout: float) -> ServingError:
        """The client's error for one of `ERRORS`.

        A context manager that raises it would, in Python 3.13, form a reference cycle
        of the error and its own frame, which keeps the client alive.
        """
        match error:
            case httpx2.TimeoutException() | TimeoutError():
                return too_late(self.url, timeout)
            case httpx2.TransportError() if str(error).startswith("illegal "):  # h11
                return ServingError(
                    f"{self.url} does not speak HTTP/1.1; is it the port of gRPC?"
                )
            case httpx2.TransportError():
                return Unavailable(f"no answer from {self.url}: {error}")
            case _:
                return ServingError(f"bad answer from {self.url}: {error}")


class RestClient(Rest, BlockingClient):
    """A client of TensorFlow Serving, or of the local server, over REST.

    Args:
        url: Of the server, such as "http://127.0.0.1:8501"; may have a path, a user
            and a password.
        model: Name of the model.
        version: Number of a version; default: the newest one available.
        label: Label of a version, in place of its number.
        timeout: Seconds for each call, its retries included.
        headers: Sent with each request, such as {"Authorization": "Bearer ..."}.
        verify: For https, an SSLContext; default: the system's authorities.
        transport: Of httpx2, in place of the network, for tests.

    Raises:
        ValueError: An argument that cannot be used.
    """

    _open = httpx2.Client

    def _transmit(self, request: RestRequest, timeout: float) -> RestReply:
        sent = self._http_request(request, timeout)
        try:
            response = self._http.send(sent, stream=True)
            with contextlib.closing(response):
                content = _body(response, sent.extensions["timeout"])
            return RestReply(response.status_code, response.headers, content)
        except ERRORS as error:
            raise self._converted(error, timeout) from error

    def _disconnect(self) -> None:
        self._http.close()


class _TimeLeft(dict[str, float]):
    """httpx2's timeouts: each phase of a request gets the time that is left."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline

    def get(self, phase: str, default: Any = None) -> float:
        return max(self.deadline - time.monotonic(), 0.001)


def _body(response: httpx2.Response, time_left: _TimeLeft) -> bytes:
    """The whole body; httpx2's own timeout restarts with every chunk."""
    chunks = []
    for chunk in response.iter_bytes():
        chunks.append(chunk)
        if time.monotonic() > time_left.deadline:
            raise httpx2.ReadTimeout("the body did not end in time")
    return b"".join(chunks)


def _checked_url(url: str) -> httpx2.URL:
    try:
        parsed = httpx2.URL(url)
        labels = parsed.raw_host.decode().removesuffix(".").split(".")
        named = all(0 < len(label) < 64 for label in labels)
        valid = parsed.scheme in ("http", "https") and named
    except httpx2.InvalidURL:
        valid = False
    if not valid:
        raise ValueError(
            f"`url` must look like http://127.0.0.1:8501. Received: {url!r}"
        )
    return parsed
