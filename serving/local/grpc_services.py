"""gRPC: PredictionService, ModelService and Health on the official stubs."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
)

from .errors import ServingError
from .service import Service

logger = logging.getLogger(__name__)
_MESSAGE_LIMIT = 1024
_NO_DEADLINE = 24 * 3600.0
HEALTHY = ("", "PredictionService", "ModelService")


class Caller:
    """Runs operations of a `Service` in threads, and tells clients of errors.

    Args:
        service: the operations.
        threads: where they run.
    """

    def __init__(self, service: Service, threads: ThreadPoolExecutor):
        self.service = service
        self._threads = threads

    async def answer(
        self,
        context: grpc.aio.ServicerContext,
        operation: Callable[..., Any],
        *arguments: Any,
        counted: tuple[str, str] | None = None,
    ) -> Any:
        """The operation's answer; an error ends the call with its code.

        Args:
            context: the call.
            operation: a method of the service.
            *arguments: its arguments.
            counted: model and API under which the request is counted, if it is.
        """

        def run() -> Any:
            if counted is None:
                return operation(*arguments)
            with self.service.counted(*counted, "GRPC"):
                return operation(*arguments)

        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, run)
        except ServingError as error:
            await context.abort(grpc.StatusCode[error.code], _shortened(str(error)))
        except Exception as error:
            logger.exception("internal error")
            await context.abort(grpc.StatusCode.INTERNAL, _shortened(repr(error)))


def _shortened(text: str) -> str:
    if len(text) <= _MESSAGE_LIMIT:
        return text
    return f"{text[:_MESSAGE_LIMIT]}...TRUNCATED"


def _timeout(context: grpc.aio.ServicerContext) -> float:
    remaining = context.time_remaining()
    return _NO_DEADLINE if remaining is None else max(remaining, 0.001)


class PredictionServicer(prediction_service_pb2_grpc.PredictionServiceServicer):
    """tensorflow.serving.PredictionService."""

    def __init__(self, caller: Caller):
        self._caller = caller

    async def Predict(self, request: Any, context: Any) -> Any:  # noqa: D102
        return await self._run("predict", request, context)

    async def Classify(self, request: Any, context: Any) -> Any:  # noqa: D102
        return await self._run("classify", request, context)

    async def Regress(self, request: Any, context: Any) -> Any:  # noqa: D102
        return await self._run("regress", request, context)

    async def MultiInference(self, request: Any, context: Any) -> Any:  # noqa: D102
        operation = self._caller.service.multi_inference
        return await self._caller.answer(context, operation, request, _timeout(context))

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: D102
        operation = self._caller.service.get_model_metadata
        return await self._caller.answer(context, operation, request)

    async def _run(self, name: str, request: Any, context: Any) -> Any:
        operation = getattr(self._caller.service, name)
        counted = (request.model_spec.name, name.capitalize())
        return await self._caller.answer(
            context, operation, request, _timeout(context), counted=counted
        )


class ModelServicer(model_service_pb2_grpc.ModelServiceServicer):
    """tensorflow.serving.ModelService."""

    def __init__(self, caller: Caller):
        self._caller = caller

    async def GetModelStatus(self, request: Any, context: Any) -> Any:  # noqa: D102
        operation = self._caller.service.get_model_status
        return await self._caller.answer(context, operation, request)

    async def HandleReloadConfigRequest(  # noqa: D102
        self, request: Any, context: Any
    ) -> Any:
        operation = self._caller.service.reload_config
        return await self._caller.answer(context, operation, request)


class HealthServicer(health_pb2_grpc.HealthServicer):
    """grpc.health.v1.Health as TensorFlow Serving has it: static, unqualified names."""

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: D102
        if request.service not in HEALTHY:
            await context.abort(grpc.StatusCode.NOT_FOUND, "service name unknown")
        return health_pb2.HealthCheckResponse(
            status=health_pb2.HealthCheckResponse.SERVING
        )


def grpc_server(service: Service, threads: ThreadPoolExecutor) -> grpc.aio.Server:
    """A server with all services, without a port.

    Args:
        service: the operations.
        threads: where they run.
    """
    server = grpc.aio.server(options=_options(service.options.grpc_channel_arguments))
    caller = Caller(service, threads)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        PredictionServicer(caller), server
    )
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(
        ModelServicer(caller), server
    )
    if service.options.enable_grpc_healthcheck_service:
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), server)
    return server


def _options(arguments: str) -> list[tuple[str, int | str]]:
    """`--grpc_channel_arguments`, `name=value,...`, on top of our own."""
    options: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # Two servers on one port would share the calls and nobody would notice.
        ("grpc.so_reuseport", 0),
    ]
    for argument in filter(None, arguments.split(",")):
        name, _, value = argument.partition("=")
        options.append((name, int(value) if value.lstrip("-").isdigit() else value))
    return options
