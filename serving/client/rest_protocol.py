"""TensorFlow Serving's REST protocol; imports no TensorFlow."""

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from .errors import ServingError, error_of
from .protocol import Call, Target
from .responses import (
    Metadata,
    TensorInfo,
    VersionStatus,
    read_metadata,
    read_status,
)


class RestRequest(NamedTuple):
    """Method, path below the server's URL, and body."""

    method: str
    path: str
    content: bytes | None


class RestReply(NamedTuple):
    """HTTP status, headers and body."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class RestProtocol:
    """Calls of a model as HTTP requests."""

    def __init__(self, target: Target) -> None:
        path = f"/v1/models/{quote(target.model, safe='')}"
        if target.version is not None:
            path += f"/versions/{target.version}"
        elif target.label is not None:
            path += f"/labels/{quote(target.label, safe='')}"
        self._path = path

    def status(self) -> Call[list[VersionStatus]]:
        """GET the model: a list of `VersionStatus`."""
        request = RestRequest("GET", self._path, None)
        return Call(request, lambda reply: read_status(_json(reply)))

    def metadata(self) -> Call[Metadata]:
        """GET the model's `Metadata`."""
        request = RestRequest("GET", f"{self._path}/metadata", None)
        return Call(request, lambda reply: read_metadata(_json(reply)))

    def predict(
        self,
        signature_name: str,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, TensorInfo],
        as_lists: bool = False,
    ) -> Call[dict[str, Any]]:
        """POST in the column format, which holds inputs of any shape.

        Args:
            signature_name: Of the model.
            inputs: Arrays, or lists of bytes, by name.
            outputs: Types of the outputs, which are arrays by name.
            as_lists: Nested lists instead, without NumPy; strings as bytes.
        """
        body = {"signature_name": signature_name, "inputs": dict(inputs)}
        # NaN and Infinity are not JSON, but TensorFlow Serving reads them.
        content = json.dumps(body, default=_json_value).encode()

        def read(reply: RestReply) -> dict[str, Any]:
            values = _outputs(reply, outputs)
            for name, info in outputs.items():
                if info.dtype == "string":
                    values[name] = _as_bytes(values[name])
            if as_lists:
                return values
            from .tensors import output_array  # NumPy: as long to import as httpx2

            return {
                name: output_array(values[name], info) for name, info in outputs.items()
            }

        return Call(RestRequest("POST", f"{self._path}:predict", content), read)


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode("ascii")}
    return value.tolist()


def _outputs(reply: RestReply, outputs: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """The answer's nested lists by name."""
    values = _json(reply)["outputs"]
    if not isinstance(values, dict) or set(values) == {"b64"}:
        values = dict.fromkeys(list(outputs)[:1], values)  # a single output
    if not set(outputs) <= set(values):
        raise ServingError(
            f"the answer does not match the signature. Expected: {', '.join(outputs)}. "
            f"Received: {', '.join(values)}"
        )
    return values


def _as_bytes(value: Any) -> Any:
    """Convert nested lists of strings; those that are no UTF-8 are {"b64": ...}."""
    if isinstance(value, list):
        return [_as_bytes(item) for item in value]
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    return value.encode("utf-8", "surrogateescape")


def _json(reply: RestReply) -> dict[str, Any]:
    try:
        # Labels that are not UTF-8 must survive the way back to bytes.
        answer = json.loads(reply.content.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        answer = None
    if reply.status == 200 and isinstance(answer, dict):
        return answer
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        raise error_of(reply.status, answer["error"])
    raise _foreign_answer(reply)


def _foreign_answer(reply: RestReply) -> ServingError:
    """The answer of a gateway, or of another server: its status and first words."""
    if location := reply.headers.get("Location"):
        return ServingError(
            f"HTTP {reply.status}: give the URL that it leads to, {location}"
        )
    words = " ".join(reply.content[:400].decode("utf-8", "replace").split())
    return error_of(
        reply.status,
        f"HTTP {reply.status}, not in TensorFlow Serving's form: {words[:100]!r}",
    )
