"""The client over REST, on httpx2; imports no TensorFlow."""

import base64
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

try:
    import httpx2
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'RestClient needs httpx2: pip install "keras-vit[serve]"', name=error.name
    ) from error

from .answers import Metadata, TensorInfo, VersionStatus, read_metadata, read_status
from .base import Client
from .errors import ServingError, Unavailable, from_http_status, too_late
from .protocol import Protocol, Question, Target

if TYPE_CHECKING:
    import numpy as np


class RestRequest(NamedTuple):
    """Method, path below the server's URL, and body."""

    method: str
    path: str
    content: bytes | None


class RestReply(NamedTuple):
    """HTTP status and body."""

    status: int
    content: bytes


class RestClient(Client):
    """Asks TensorFlow Serving, or the local server, over REST.

    Args:
        url: of the server, such as "http://127.0.0.1:8501"; may have a path.
        model: name of the model.
        version: number of a version; default: the newest one available.
        label: label of a version, in place of its number.
        timeout: seconds for each call, its retries included.
        transport: of httpx2, in place of the network.

    Raises:
        ValueError: an argument that cannot be used.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        version: int | None = None,
        label: str | None = None,
        timeout: float = 10.0,
        transport: httpx2.BaseTransport | None = None,
    ):
        super().__init__(RestProtocol(Target(model, version, label)), timeout)
        self.url = _checked_url(url)
        self._http = httpx2.Client(transport=transport)

    def close(self) -> None:
        """Closes the connections, those of an injected transport too."""
        self._http.close()

    def _carry(self, request: RestRequest, timeout: float) -> RestReply:
        deadline = time.monotonic() + timeout
        try:
            with self._http.stream(
                request.method,
                self.url + request.path,
                content=request.content,
                headers={"Content-Type": "application/json"},
                timeout=timeout,
            ) as response:
                return RestReply(response.status_code, _body(response, deadline))
        except httpx2.TimeoutException as error:
            raise too_late(self.url, timeout) from error
        except httpx2.TransportError as error:
            raise Unavailable(f"no answer from {self.url}: {error}") from error
        except httpx2.RequestError as error:
            raise ServingError(f"bad answer from {self.url}: {error}") from error


class RestProtocol(Protocol):
    """The questions in TensorFlow Serving's REST form.

    Args:
        target: model and version.
    """

    def __init__(self, target: Target):
        path = f"/v1/models/{quote(target.model, safe='')}"
        if target.version is not None:
            path += f"/versions/{target.version}"
        elif target.label is not None:
            path += f"/labels/{quote(target.label, safe='')}"
        self._path = path
        # Here, since NumPy takes longer than httpx2 to import; not in `predict`, since
        # it should not count as the time of the first request.
        from .tensors import output_arrays

        self._output_arrays = output_arrays

    def status(self) -> Question:
        """GET the model."""

        def read(reply: RestReply) -> list[VersionStatus]:
            return read_status(_json(reply))

        return Question(RestRequest("GET", self._path, None), read)

    def metadata(self) -> Question:
        """GET the model's metadata."""

        def read(reply: RestReply) -> Metadata:
            return read_metadata(_json(reply))

        return Question(RestRequest("GET", f"{self._path}/metadata", None), read)

    def predict(
        self,
        signature_name: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, TensorInfo],
    ) -> Question:
        """POST in the column format, which holds inputs of any shape."""
        body = {"signature_name": signature_name, "inputs": dict(inputs)}
        # NaN and Infinity are sent as these words, which the server understands.
        content = json.dumps(body, default=_json_value).encode()

        def read(reply: RestReply) -> dict[str, "np.ndarray"]:
            return self._output_arrays(_json(reply)["outputs"], outputs)

        return Question(RestRequest("POST", f"{self._path}:predict", content), read)


def _checked_url(url: str) -> str:
    try:
        parsed = httpx2.URL(url)
        valid = parsed.scheme in ("http", "https") and bool(parsed.host)
    except httpx2.InvalidURL:
        valid = False
    if not valid:
        raise ValueError(
            f"`url` must look like http://127.0.0.1:8501. Received: {url!r}"
        )
    return url.rstrip("/")


def _body(response: httpx2.Response, deadline: float) -> bytes:
    """The whole body; httpx2's own timeout begins anew with every piece of it."""
    pieces = []
    for piece in response.iter_bytes():
        pieces.append(piece)
        if time.monotonic() > deadline:
            raise httpx2.ReadTimeout("the body did not end in time")
    return b"".join(pieces)


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode("ascii")}
    return value.tolist()


def _json(reply: RestReply) -> dict[str, Any]:
    try:
        # So that labels that are not UTF-8 survive the way back to bytes.
        answer = json.loads(reply.content.decode("utf-8", "surrogateescape"))
    except ValueError:
        answer = None
    if reply.status == 200 and isinstance(answer, dict):
        return answer
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        raise from_http_status(reply.status, answer["error"])
    raise from_http_status(
        reply.status, f"HTTP {reply.status}, and not in TensorFlow Serving's form"
    )
