"""REST: TensorFlow Serving's routes under /v1/, as an ASGI application."""

import contextlib
import functools
import json
import logging
import re
import time
import zlib
from typing import Any

from google.protobuf import json_format
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    regression_pb2,
)

from .http import error_page
from .jsonexamples import examples_from_json, result_to_json
from .jsontensor import inputs_from_json, outputs_to_json
from .jsontext import TOO_DEEP, dump, echo, parse
from .pace import MayTakeLong
from .predict import LazyInputs
from .routes import VersionOverflow, path_of, route
from .service import ModelSpec, Service
from .session import DEFAULT_SIGNATURE, LoadedModel
from .status_errors import InvalidArgument, ServingError
from .workers import Workers

logger = logging.getLogger(__name__)

# Those that TensorFlow Serving lets its HTTP library accept.
_METHODS = frozenset(("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"))
_INFLATED_LIMIT = 100_000_000
BODY_LIMIT = 64 * 2**20
_TOO_LARGE = f"The body is larger than {BODY_LIMIT} bytes; send large inputs over gRPC"
# Seconds after its deadline in which a request's own answer is waited for.
_PATIENCE = 1.0
_TOO_LATE = "Timed out waiting for notification"

_CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, GET",
    "Access-Control-Allow-Headers": "Content-Type",
}


class RestApp:
    """The ASGI application, for `http.Protocol`.

    Args:
        service: the operations.
        workers: where they run, and where JSON is read and written.
        metrics_path: the path of the metrics page, if there is one.
    """

    def __init__(
        self, service: Service, workers: Workers, metrics_path: str | None = None
    ):
        self._service = service
        self._workers = workers
        self._metrics_path = metrics_path
        self._timeout = service.options.rest_api_timeout_in_ms / 1000

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        request = Request(scope, receive)
        try:
            body = await _body(request, receive)
        except ClientDisconnect:
            return
        # How large a packed body is, is not known yet.
        packed = "gzip" in request.headers.get("content-encoding", "")
        size = BODY_LIMIT if body is None or packed else len(body)
        # TensorFlow ends most runs in time, but not those that surprise.
        patience = self._timeout + _PATIENCE
        try:
            response = await self._workers.answer(
                size, patience, self._respond, request, body
            )
        except TimeoutError:
            response = self._too_late(request)
        await response(scope, receive, send)

    def _too_late(self, request: Request) -> Response:
        """What is answered while the request still waits for a thread, or runs."""
        if "begun" not in request.scope:
            # It will never run, but overload must be seen in the metrics.
            with contextlib.suppress(ServingError, VersionOverflow):
                asked = route(request.method, _path(request) or "")
                with self._service.counted(asked.spec.name, asked.api, "REST"):
                    raise ServingError(_TOO_LATE, "DEADLINE_EXCEEDED")
        return self._with_cors(_json({"error": _TOO_LATE}, 504))

    def _respond(self, request: Request, body: bytes | None) -> Response:
        if request.method not in _METHODS:
            return _html(501)
        path = _path(request)
        if path is None:
            return _html(400)
        if self._metrics_path and re.split("[?#]", path)[0] == self._metrics_path:
            return self._metrics(path)
        if not path.lower().startswith("/v1/"):
            return _html(404)
        if body is None:
            response = _json({"error": _TOO_LARGE}, 413)
        elif request.method == "OPTIONS":
            response = _options(request)
        else:
            response = self._answer(request, path, body)
        return self._with_cors(response)

    def _with_cors(self, response: Response) -> Response:
        if self._service.options.rest_api_enable_cors_support:
            response.headers.update(_CORS)
        return response

    def _metrics(self, path: str) -> Response:
        if path != self._metrics_path:
            text = f"Unexpected path: {path}. Should be {self._metrics_path}"
            return Response(text, 400, {"Content-Type": "text/plain"})
        page = self._service.metrics.page()
        return Response(page, headers={"Content-Type": "text/plain"})

    def _answer(self, request: Request, path: str, body: bytes) -> Response:
        """The JSON answer; whatever goes wrong is one too."""
        try:
            asked = route(request.method, path)
            request.scope["begun"] = True
            operation = getattr(self, f"_{asked.operation}")
            with self._service.counted(asked.spec.name, asked.api, "REST"):
                begin = time.monotonic()
                answer = operation(asked.spec, _inflated(request, body))
                if time.monotonic() - begin > self._timeout + _PATIENCE:
                    raise ServingError(_TOO_LATE, "DEADLINE_EXCEEDED")
        except MayTakeLong:
            del request.scope["begun"]  # it waits for a thread
            raise
        except VersionOverflow:
            return Response(b"", 400, media_type="application/json")
        except RecursionError:
            return _json({"error": TOO_DEEP}, 400)
        except UnicodeEncodeError:
            return _json({"error": "a name in the request is not UTF-8"}, 400)
        except ServingError as error:
            return _json({"error": str(error)}, error.http_status)
        except Exception as error:
            logger.exception("internal error")
            return _json({"error": f"Internal error: {error!r}"}, 500)
        return _json(answer, 200)

    def _status(self, spec: ModelSpec, body: bytes) -> Any:
        request = get_model_status_pb2.GetModelStatusRequest(model_spec=spec)
        return _message(self._service.get_model_status(request))

    def _metadata(self, spec: ModelSpec, body: bytes) -> Any:
        response = self._service.get_model_metadata(
            get_model_metadata_pb2.GetModelMetadataRequest(
                model_spec=spec, metadata_field=["signature_def"]
            )
        )
        signatures = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        return {
            "model_spec": {
                "name": spec.name,
                "signature_name": "",
                "version": str(response.model_spec.version.value),
            },
            "metadata": {"signature_def": _message(signatures)},
        }

    def _predict(self, spec: ModelSpec, body: bytes) -> Any:
        document = parse(body)
        signature_name = _signature_name(document)
        row = False

        def read(model: LoadedModel) -> LazyInputs:
            nonlocal row
            key = signature_name or DEFAULT_SIGNATURE
            if key not in model.signatures:
                raise InvalidArgument(
                    f'Serving signature name: "{key}" not found in signature def'
                )
            spec.signature_name = key
            row, inputs = inputs_from_json(
                document, signature_name, model.signatures[key].inputs
            )
            return {
                alias: functools.partial(dense.array, alias)
                for alias, dense in inputs.items()
            }

        outputs = self._service.predict_arrays(spec, read, self._timeout)
        return outputs_to_json(outputs, row)

    def _classify(self, spec: ModelSpec, body: bytes) -> Any:
        request = classification_pb2.ClassificationRequest(model_spec=spec)
        _fill_examples(request, body)
        return result_to_json(self._service.classify(request, self._timeout).result)

    def _regress(self, spec: ModelSpec, body: bytes) -> Any:
        request = regression_pb2.RegressionRequest(model_spec=spec)
        _fill_examples(request, body)
        return result_to_json(self._service.regress(request, self._timeout).result)


def _path(request: Request) -> str | None:
    """The path with query and fragment, not decoded; None if the target is no URI."""
    return path_of(request.scope["state"]["target"])


async def _body(request: Request, receive: Receive) -> bytes | None:
    """The body; None if it is too large, of which no more than the limit is kept.

    Raises:
        ClientDisconnect: the client does not wait for an answer.
    """
    if int(request.headers.get("content-length", "0")) > BODY_LIMIT:
        return None
    pieces, size, more = [], 0, True
    while more and size <= BODY_LIMIT:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message["body"])
        size += len(pieces[-1])
        more = message["more_body"]
    return b"".join(pieces) if size <= BODY_LIMIT else None


def _fill_examples(request: Any, body: bytes) -> None:
    document = parse(body)
    request.model_spec.signature_name = _signature_name(document)
    request.input.CopyFrom(examples_from_json(document))


def _signature_name(document: dict[str, Any]) -> str:
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise InvalidArgument(
            f"JSON Value: {echo(document)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    return name


def _inflated(request: Request, body: bytes) -> bytes:
    """The body; one that does not inflate counts as empty."""
    if "gzip" not in request.headers.get("content-encoding", ""):
        return body
    inflate = zlib.decompressobj(wbits=31)
    try:
        data = inflate.decompress(body, _INFLATED_LIMIT)
    except zlib.error:
        return b""
    return data if inflate.eof and not inflate.unused_data else b""


def _options(request: Request) -> Response:
    """A preflight request; without an origin it is none."""
    origin = request.headers.get("origin", "")
    status = 200 if origin.startswith(("http://", "https://")) else 400
    return Response(b"", status, {"Content-Type": "text/html; charset=ISO-8859-1"})


def _message(message: Any) -> Any:
    return json.loads(
        json_format.MessageToJson(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
    )


def _json(value: Any, status: int) -> Response:
    return Response(dump(value), status, media_type="application/json")


def _html(status: int) -> Response:
    return Response(error_page(status), status, {"Content-Type": "text/html"})
