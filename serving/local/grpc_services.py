"""gRPC: PredictionService, ModelService and Health on the official stubs."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
)

from .messages import CHECK, UNREAD, MessageReader
from .service import Service
from .status_errors import ServingError
from .workers import Workers

logger = logging.getLogger(__name__)
# In bytes: texts of errors, names that Health looks up.
_MESSAGE_LIMIT = 1024
_SERVICE_LIMIT = 200
_NO_DEADLINE = 24 * 3600.0
HEALTHY = ("", "PredictionService", "ModelService")


class Caller:
    """Runs operations of a `Service` in threads, and tells clients of errors.

    Args:
        service: the operations.
        workers: where they run.
    """

    def __init__(self, service: Service, workers: Workers):
        self.service = service
        self._workers = workers

    async def answer(
        self, context: Any, operation: Callable[..., Any], *arguments: Any
    ) -> Any:
        """The operation's answer; an error ends the call with its code.

        A client that cancels is waited for no longer; an operation that no thread has
        taken by then is not run.

        Args:
            context: the call.
            operation: a method of the service, or what ends in one.
            *arguments: its arguments.
        """
        try:
            return await self._workers.run(operation, *arguments)
        except ServingError as error:
            _fail(context, grpc.StatusCode[error.code], str(error))
        except Exception as error:
            logger.exception("internal error")
            _fail(context, grpc.StatusCode.INTERNAL, repr(error))


def _fail(context: grpc.aio.ServicerContext, code: grpc.StatusCode, text: str) -> None:
    """Ends a call with an error.

    Not by `abort`, whose exception holds the request in a cycle until Python looks for
    cycles: ninety wrong requests of 17 MB would take 2 GB.
    """
    context.set_code(code)
    context.set_details(_shortened(text))


def _shortened(text: str) -> str:
    data = text.encode(errors="replace")
    if len(data) <= _MESSAGE_LIMIT:
        return text
    # What C++ cuts inside a character, clients decode so.
    return f"{data[:_MESSAGE_LIMIT].decode(errors='replace')}...TRUNCATED"


class PredictionServicer(prediction_service_pb2_grpc.PredictionServiceServicer):
    """tensorflow.serving.PredictionService."""

    def __init__(self, caller: Caller):
        self._caller = caller

    async def Predict(self, request: Any, context: Any) -> Any:  # noqa: D102
        return await self._infer("predict", request, context)

    async def Classify(self, request: Any, context: Any) -> Any:  # noqa: D102
        return await self._infer("classify", request, context)

    async def Regress(self, request: Any, context: Any) -> Any:  # noqa: D102
        return await self._infer("regress", request, context)

    async def MultiInference(self, request: Any, context: Any) -> Any:  # noqa: D102
        service, remaining = self._caller.service, _remaining(context)

        def run() -> Any:
            return service.multi_inference(request, remaining())

        return await self._caller.answer(context, run)

    async def GetModelMetadata(  # noqa: D102
        self, request: Any, context: Any
    ) -> Any:
        operation = self._caller.service.get_model_metadata
        return await self._caller.answer(context, operation, request)

    async def _infer(self, name: str, request: Any, context: Any) -> Any:
        service, remaining = self._caller.service, _remaining(context)

        def run() -> Any:
            with service.counted(request.model_spec.name, name.capitalize(), "GRPC"):
                return getattr(service, name)(request, remaining())

        return await self._caller.answer(context, run)


def _remaining(context: Any) -> Callable[[], float]:
    """Tells how many seconds are left, when it is called."""
    seconds = context.time_remaining()
    deadline = time.monotonic() + (_NO_DEADLINE if seconds is None else seconds)

    def remaining() -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ServingError("Timed out before it was run", "DEADLINE_EXCEEDED")
        return left

    return remaining


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
        if len(request.service.encode()) > _SERVICE_LIMIT:
            await context.abort(*UNREAD[CHECK])
        if request.service not in HEALTHY:
            await context.abort(grpc.StatusCode.NOT_FOUND, "service name unknown")
        return _health("SERVING")

    async def List(self, request: Any, context: Any) -> Any:  # noqa: D102
        await context.abort(grpc.StatusCode.UNIMPLEMENTED)  # younger than that server

    async def Watch(  # noqa: D102
        self, request: Any, context: Any
    ) -> AsyncIterator[Any]:
        # What is known now, and then nothing: it does not change.
        yield _health("SERVING" if request.service in HEALTHY else "SERVICE_UNKNOWN")
        await asyncio.Event().wait()


def _health(status: str) -> Any:
    return health_pb2.HealthCheckResponse(
        status=health_pb2.HealthCheckResponse.ServingStatus.Value(status)
    )


def grpc_server(service: Service, workers: Workers) -> grpc.aio.Server:
    """A server with all services, without a port.

    Args:
        service: the operations.
        workers: where they run.
    """
    server = grpc.aio.server(
        interceptors=[MessageReader()],
        options=_options(service.options.grpc_channel_arguments),
    )
    caller = Caller(service, workers)
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
