"""gRPC interface: PredictionService, ModelService and Health on the official stubs."""

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
)

from .inference_service import InferenceService
from .status_errors import StatusError

logger = logging.getLogger(__name__)
# Bytes of an error message, as in TensorFlow Serving.
_MESSAGE_LIMIT = 1024
_NO_DEADLINE = 24 * 3600.0
HEALTHY = ("", "PredictionService", "ModelService")


def _answer(context: Any, operation: Callable[..., Any], *arguments: Any) -> Any:
    """The operation's response; an error ends the call with its code."""
    try:
        return operation(*arguments)
    except StatusError as error:
        context.abort(grpc.StatusCode[error.code], _shortened(str(error)))
    except Exception as error:
        logger.exception("internal error")
        context.abort(grpc.StatusCode.INTERNAL, _shortened(repr(error)))


def _shortened(text: str) -> str:
    data = text.encode(errors="replace")
    if len(data) <= _MESSAGE_LIMIT:
        return text
    return f"{data[:_MESSAGE_LIMIT].decode(errors='replace')}...TRUNCATED"


def _remaining(context: Any) -> float:
    """Seconds until the deadline; StatusError if that or the client has gone."""
    seconds = context.time_remaining()
    if not context.is_active() or (seconds is not None and seconds <= 0):
        raise StatusError("Timed out before it was run", "DEADLINE_EXCEEDED")
    return _NO_DEADLINE if seconds is None else min(seconds, _NO_DEADLINE)


class PredictionServicer(prediction_service_pb2_grpc.PredictionServiceServicer):
    """tensorflow.serving.PredictionService."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    def Predict(self, request: Any, context: Any) -> Any:  # noqa: D102
        return self._infer("Predict", self._service.predict, request, context)

    def Classify(self, request: Any, context: Any) -> Any:  # noqa: D102
        return self._infer("Classify", self._service.classify, request, context)

    def Regress(self, request: Any, context: Any) -> Any:  # noqa: D102
        return self._infer("Regress", self._service.regress, request, context)

    def MultiInference(self, request: Any, context: Any) -> Any:  # noqa: D102
        def run() -> Any:
            with self._service.unless_stopped():
                return self._service.multi_inference(request, _remaining(context))

        return _answer(context, run)

    def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: D102
        return _answer(context, self._service.get_model_metadata, request)

    def _infer(
        self, api: str, operation: Callable[..., Any], request: Any, context: Any
    ) -> Any:
        def run() -> Any:
            with self._service.counted(request.model_spec.name, api, "GRPC"):
                return operation(request, _remaining(context))

        return _answer(context, run)


class ModelServicer(model_service_pb2_grpc.ModelServiceServicer):
    """tensorflow.serving.ModelService."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    def GetModelStatus(self, request: Any, context: Any) -> Any:  # noqa: D102
        return _answer(context, self._service.get_model_status, request)

    def HandleReloadConfigRequest(  # noqa: D102
        self, request: Any, context: Any
    ) -> Any:
        return _answer(context, self._service.reload_config, request)


def grpc_server(service: InferenceService, executor: Executor) -> grpc.Server:
    """A server with all services and no port."""
    server = grpc.server(
        executor, options=_options(service.options.grpc_channel_arguments)
    )
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        PredictionServicer(service), server
    )
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(
        ModelServicer(service), server
    )
    if service.options.enable_grpc_healthcheck_service:
        servicer = health.HealthServicer()
        for name in HEALTHY:
            servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    return server


def _options(arguments: str) -> list[tuple[str, int | str]]:
    """`--grpc_channel_arguments`, `name=value,...`, after our own."""
    options: list[tuple[str, int | str]] = [
        # Numbers of one byte take eight in memory, and as many again as an array.
        ("grpc.max_receive_message_length", 2**28),
        ("grpc.max_send_message_length", -1),
        # Two servers on one port would share the calls, unnoticed.
        ("grpc.so_reuseport", 0),
    ]
    for argument in filter(None, arguments.split(",")):
        name, _, value = argument.partition("=")
        options.append((name, int(value) if value.lstrip("-").isdigit() else value))
    return options
