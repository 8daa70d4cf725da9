"""TensorFlow Serving's REST protocol; imports no TensorFlow."""

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from .errors import ServingError, from_http_status
from .nested_lists import from_json
from .protocol import Call, Protocol, Target
from .responses import Metadata, TensorInfo, VersionStatus, read_metadata, read_status

if TYPE_CHECKING:
    import numpy as np


class RestRequest(NamedTuple):
    """Method, path below the server's URL, and body."""

    method: str
    path: str
    content: bytes | None


class RestReply(NamedTuple):
    """HTTP status, body, and target of a redirect."""

    status: int
    content: bytes
    location: str | None


class RestProtocol(Protocol):
    """Calls as HTTP requests.

    Args:
        target: Model and version.
    """

    def __init__(self, target: Target):
        path = f"/v1/models/{quote(target.model, safe='')}"
        if target.version is not None:
            path += f"/versions/{target.version}"
        elif target.label is not None:
            path += f"/labels/{quote(target.label, safe='')}"
        self._path = path

    def status(self) -> Call:
        """GET the model."""

        def read(reply: RestReply) -> list[VersionStatus]:
            return read_status(_json(reply))

        return Call(RestRequest("GET", self._path, None), read)

    def metadata(self) -> Call:
        """GET the model's metadata."""

        def read(reply: RestReply) -> Metadata:
            return read_metadata(_json(reply))

        return Call(RestRequest("GET", f"{self._path}/metadata", None), read)

    def predict(
        self,
        signature_name: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, TensorInfo],
    ) -> Call:
        """POST in the column format, which holds inputs of any shape."""
        body = {"signature_name": signature_name, "inputs": dict(inputs)}
        # NaN and Infinity are not JSON, but TensorFlow Serving reads them.
        content = json.dumps(body, default=_json_value).encode()

        def read(reply: RestReply) -> dict[str, "np.ndarray"]:
            from .tensors import output_arrays  # NumPy: as long to import as httpx2

            return output_arrays(_outputs(reply, outputs), outputs)

        return Call(RestRequest("POST", f"{self._path}:predict", content), read)

    def predict_lists(
        self,
        signature_name: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, TensorInfo],
    ) -> Call:
        """`predict`, read without NumPy."""

        def read(reply: RestReply) -> dict[str, Any]:
            values = _outputs(reply, outputs)
            return {
                name: from_json(values[name], outputs[name].dtype) for name in outputs
            }

        return Call(self.predict(signature_name, inputs, outputs).request, read)


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode("ascii")}
    return value.tolist()


def _outputs(reply: RestReply, outputs: Mapping[str, TensorInfo]) -> Mapping[str, Any]:
    """The answer's nested lists by name.

    Raises:
        ServingError: They do not match the signature.
    """
    values = _json(reply)["outputs"]
    if not isinstance(values, dict) or set(values) == {"b64"}:
        values = dict.fromkeys(list(outputs)[:1], values)  # a single output
    if not set(outputs) <= set(values):
        raise ServingError(
            f"the answer does not match the signature. Expected: {', '.join(outputs)}. "
            f"Received: {', '.join(values)}"
        )
    return values


def _json(reply: RestReply) -> dict[str, Any]:
    try:
        # Labels that are not UTF-8 must survive the way back to bytes.
        answer = json.loads(reply.content.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        answer = None
    if reply.status == 200 and isinstance(answer, dict):
        return answer
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        raise from_http_status(reply.status, answer["error"])
    raise _foreign_answer(reply)


def _foreign_answer(reply: RestReply) -> ServingError:
    """The answer of a gateway, or of another server: its status and first words."""
    if reply.location is not None:
        message = f"HTTP {reply.status}: give the URL that it leads to, "
        return ServingError(message + reply.location)
    words = " ".join(reply.content[:400].decode("utf-8", "replace").split())
    return from_http_status(
        reply.status,
        f"HTTP {reply.status}, not in TensorFlow Serving's form: {words[:100]!r}",
    )
