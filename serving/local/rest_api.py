"""REST interface: TensorFlow Serving's routes under /v1/, and the page."""

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from google.protobuf import json_format
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    regression_pb2,
)
from tensorflow_serving.apis.model_pb2 import ModelSpec

from ..http_limits import Bodies
from ..page import MODELS_PATH, html_response, models_document
from .inference_service import InferenceService
from .json_document import TOO_DEEP, dump, format_error, parse
from .json_examples import examples_from_json, result_to_json
from .json_tensors import inputs_from_json, outputs_to_json
from .rest_routes import Route, VersionOverflow, route
from .session import DEFAULT_SIGNATURE, LoadedModel
from .status_errors import InvalidArgument, StatusError
from .tensor_proto import Arrays

logger = logging.getLogger(__name__)

BODY_LIMIT = 64 * 2**20
BODIES_LIMIT = 512 * 2**20
# Larger documents are read one at a time: JSON takes many times its bytes in memory,
# and Python would not read two any faster.
_LARGE = 2**20
# Seconds after the deadline in which TensorFlow's own answer is waited for.
_PATIENCE = 1.0

_CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, GET",
    "Access-Control-Allow-Headers": "Content-Type",
}


class RestApp:
    """The ASGI application.

    Args:
        metrics_path: path of the metrics page; None turns it off.
    """

    def __init__(
        self,
        service: InferenceService,
        executor: Executor,
        metrics_path: str | None = None,
    ) -> None:
        self._service = service
        self._executor = executor
        self._metrics_path = metrics_path
        self._timeout = service.options.rest_api_timeout_in_ms / 1000
        self._bodies = Bodies(BODY_LIMIT, BODIES_LIMIT, self._timeout)
        self._reading_large = asyncio.Lock()

    def stop(self) -> None:
        """Answer requests whose bodies have not arrived; any thread may call it."""
        self._bodies.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        try:
            async with self._bodies.read(request.stream(), request.headers) as body:
                response = await self._respond(request, body)
        except HTTPException as error:
            response = _json({"error": error.detail}, error.status_code)
            response.headers.update(error.headers or {})
        except asyncio.CancelledError:  # the server stops, and waits no longer
            response = _json({"error": "the server is stopping"}, 503)
        if self._service.options.rest_api_enable_cors_support:
            response.headers.update(_CORS)
        # Cancelled at a stop, if the client does not read its answer.
        with contextlib.suppress(asyncio.CancelledError):
            await response(scope, receive, send)

    async def _respond(self, request: Request, body: bytearray) -> Response:
        path = request.scope["raw_path"].decode(errors="replace")
        query = request.scope["query_string"].decode(errors="replace")
        if path == self._metrics_path:
            return self._metrics(query)
        if path == "/" and request.method == "GET":
            return html_response()
        if path == MODELS_PATH:
            url = str(request.base_url).rstrip("/")
            return _json(models_document(url, self._service.models.labels()), 200)
        if not path.lower().startswith("/v1/"):
            return _not_found()
        if request.method == "OPTIONS":
            return _options(request)
        # TensorFlow Serving takes a query for a part of the path.
        path = f"{path}?{query}" if query else path
        return await self._answer(request, path, body)

    def _metrics(self, query: str) -> Response:
        if query:
            text = f"Unexpected path: {self._metrics_path}?{query}. "
            text += f"Should be {self._metrics_path}"
            return Response(text, 400, {"Content-Type": "text/plain"})
        page = self._service.metrics.page()
        return Response(page, headers={"Content-Type": "text/plain"})

    async def _answer(self, request: Request, path: str, body: bytearray) -> Response:
        """The JSON answer, of errors too."""
        try:
            asked = route(request.method, path)
            packed = "gzip" in request.headers.get("content-encoding", "")
            with self._service.counted(asked.spec.name, asked.api, "REST"):
                answer = await self._in_thread(asked, body, packed)
        except VersionOverflow:
            return Response(b"", 400, media_type="application/json")
        except StatusError as error:
            return _json({"error": str(error)}, error.http_status)
        except Exception as error:
            logger.exception("internal error")
            return _json({"error": f"Internal error: {error!r}"}, 500)
        return Response(answer, media_type="application/json")

    async def _in_thread(self, asked: Route, body: bytearray, packed: bool) -> bytes:
        try:
            async with asyncio.timeout(self._timeout + _PATIENCE):
                end_turn = await self._turn(len(body), packed)
                run = self._executor.submit(self._run, asked, body, packed, end_turn)
                run.add_done_callback(lambda _: end_turn())
                return await asyncio.wrap_future(run)
        except TimeoutError as error:
            raise StatusError(
                "Timed out waiting for notification", "DEADLINE_EXCEEDED"
            ) from error

    async def _turn(self, size: int, packed: bool) -> Callable[[], None]:
        """Wait until no other large document is being read.

        Returns:
            What ends the turn; any thread may call it, also twice.
        """
        if size <= _LARGE and not packed:
            return lambda: None
        await self._reading_large.acquire()
        loop, turns = asyncio.get_running_loop(), [self._reading_large]

        def end() -> None:
            if turns:
                turns.pop().release()

        def end_soon() -> None:
            with contextlib.suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(end)

        return end_soon

    def _run(
        self,
        asked: Route,
        body: bytearray,
        packed: bool,
        end_turn: Callable[[], None],
    ) -> bytes:
        operation = getattr(self, f"_{asked.operation}")
        try:
            body = _inflated(body) if packed else body
            return dump(operation(asked.spec, body, end_turn))
        except RecursionError as error:
            raise InvalidArgument(TOO_DEEP) from error

    def _status(self, spec: ModelSpec, *_: Any) -> Any:
        request = get_model_status_pb2.GetModelStatusRequest(model_spec=spec)
        return _message(self._service.get_model_status(request))

    def _metadata(self, spec: ModelSpec, *_: Any) -> Any:
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

    def _predict(
        self, spec: ModelSpec, body: bytearray, end_turn: Callable[[], None]
    ) -> Any:
        document = parse(body)
        signature_name = _signature_name(document)
        spec.signature_name = signature_name or DEFAULT_SIGNATURE
        row = False

        def read(model: LoadedModel) -> Arrays:
            nonlocal row
            if spec.signature_name not in model.signatures:
                raise InvalidArgument(
                    f'Serving signature name: "{spec.signature_name}" not found in '
                    "signature def"
                )
            infos = model.signatures[spec.signature_name].inputs
            row, inputs = inputs_from_json(document, signature_name, infos)
            document.clear()
            end_turn()
            return inputs

        _, outputs = self._service.predict_arrays(spec, read, self._timeout)
        return outputs_to_json(outputs, row)

    def _classify(self, spec: ModelSpec, *rest: Any) -> Any:
        request = classification_pb2.ClassificationRequest(model_spec=spec)
        return self._infer(request, self._service.classify, *rest)

    def _regress(self, spec: ModelSpec, *rest: Any) -> Any:
        request = regression_pb2.RegressionRequest(model_spec=spec)
        return self._infer(request, self._service.regress, *rest)

    def _infer(
        self,
        request: Any,
        operation: Any,
        body: bytearray,
        end_turn: Callable[[], None],
    ) -> Any:
        document = parse(body)
        request.model_spec.signature_name = _signature_name(document)
        examples_from_json(document, request.input)
        end_turn()
        return result_to_json(operation(request, self._timeout).result)


def _signature_name(document: dict[str, Any]) -> str:
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise format_error(
            document,
            "not formatted correctly. 'signature_name' key must be a string value.",
        )
    return name


def _inflated(body: bytearray) -> bytearray:
    """The content of a gzip body; one that does not inflate counts as empty.

    Raises:
        InvalidArgument: it would have more than `BODY_LIMIT` bytes.
    """
    inflate = zlib.decompressobj(wbits=31)
    try:
        data = bytearray(inflate.decompress(body, BODY_LIMIT))
    except zlib.error:
        return bytearray()
    if inflate.unconsumed_tail:
        raise InvalidArgument(f"The body inflates to more than {BODY_LIMIT} bytes")
    whole = inflate.eof and not inflate.unused_data
    return data if whole else bytearray()


def _options(request: Request) -> Response:
    """The answer to a CORS preflight request; others with OPTIONS are refused."""
    origin = request.headers.get("origin", "")
    status = 200 if origin.startswith(("http://", "https://")) else 400
    return Response(b"", status, {"Content-Type": "text/html; charset=ISO-8859-1"})


def _message(message: Any) -> Any:
    return json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


def _json(value: Any, status: int) -> Response:
    return Response(dump(value), status, media_type="application/json")


def _not_found() -> Response:
    page = "<HTML><HEAD><TITLE>404 Not Found</TITLE></HEAD></HTML>\n"
    return Response(page, 404, {"Content-Type": "text/html"})
