"""Clients over gRPC, on grpcio: channels, deadlines, errors."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import grpc
from google.protobuf.message import Message

from .async_client import AsyncClient
from .base_client import BaseClient
from .blocking_client import BlockingClient
from .errors import ServingError, error_of, too_late
from .grpc_protocol import GrpcProtocol
from .messages import METHODS
from .protocol import Target, checked_headers

_OPTIONS = {
    # gRPC's default of 4 MiB is less than the attention maps of many images.
    "grpc.max_receive_message_length": 64 * 1024 * 1024,
    # The default back-off of up to two minutes is longer than a server needs to start.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1000,
    # All addresses of a headless service, not the first one alone.
    "grpc.lb_policy_name": "round_robin",
    # Servers disconnect clients that ping more often than every five minutes.
    "grpc.keepalive_time_ms": 300_000,
    "grpc.keepalive_timeout_ms": 20_000,
}


class Grpc(BaseClient):
    """Base of both clients over gRPC.

    Attributes:
        address: Of the server.
    """

    protocol: GrpcProtocol
    _library: ClassVar[Any]  # grpc or grpc.aio

    def __init__(
        self,
        address: str,
        model: str,
        *,
        version: int | None = None,
        label: str | None = None,
        timeout: float = 10.0,
        metadata: Mapping[str, str] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        options: Mapping[str, Any] | None = None,
        channel: grpc.Channel | grpc.aio.Channel | None = None,
    ) -> None:
        super().__init__(GrpcProtocol(Target(model, version, label)), timeout)
        self.address = _checked_address(address)
        self._metadata = tuple(checked_headers("metadata", metadata).items())
        self._channel = channel or self._connect(credentials, options or {})

    def _connect(
        self, credentials: grpc.ChannelCredentials | None, options: Mapping[str, Any]
    ) -> Any:
        merged = list({**_OPTIONS, **options}.items())
        if credentials is None:
            return self._library.insecure_channel(self.address, merged)
        return self._library.secure_channel(self.address, credentials, merged)

    def _call(self, request: Message, timeout: float) -> Any:
        method, answer = METHODS[type(request)]
        call = self._channel.unary_unary(
            f"/tensorflow.serving.{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=timeout, metadata=self._metadata)

    def _error(self, error: Any, timeout: float) -> ServingError:
        """Convert an error of gRPC."""
        details = error.details() or ""
        # gRPC's message for a deadline that passed on this side.
        if details == "Deadline Exceeded":
            return too_late(self.address, timeout)
        if "Trying to connect an http1.x server" in details:
            return ServingError(
                f"{self.address} does not speak gRPC; is it the port of REST?"
            )
        return error_of(error.code().name, details)


class GrpcClient(Grpc, BlockingClient):
    """A client of TensorFlow Serving, or of the local server, over gRPC.

    Args:
        address: Of the server, such as "127.0.0.1:8500". Where a name resolves to
            several servers, requests are distributed round-robin.
        model: Name of the model.
        version: Number of a version; default: the newest one available.
        label: Label of a version, in place of its number.
        timeout: Seconds for each call, its retries included.
        metadata: Sent with each request, such as {"authorization": "Bearer ..."}.
        credentials: For TLS, as from `grpc.ssl_channel_credentials`.
        options: Of the channel, by gRPC's names.
        channel: Of grpcio, in place of a new one to `address`.

    Raises:
        ValueError: An argument that cannot be used.
    """

    _library = grpc

    def reload_config(self, config: Message | str) -> None:
        """Replace the server's model config, and wait until its models are loaded.

        The server waits indefinitely for a model that has no version; the client gives
        up after its `timeout`, while the server continues.

        Args:
            config: The whole config, as a message or in text form.

        Raises:
            ServingError: One of its subclasses; the server keeps its models.
            ValueError: The text is not a ModelServerConfig.
        """
        self._ask(self.protocol.reload_config(config))

    def _transmit(self, request: Message, timeout: float) -> Message:
        try:
            return self._call(request, timeout)
        except grpc.RpcError as error:
            raise self._error(error, timeout) from error

    def _disconnect(self) -> None:
        self._channel.close()


class AsyncGrpcClient(Grpc, AsyncClient):
    """`GrpcClient` for asyncio: the same arguments; its methods are awaited.

    It must be created in a running event loop, and belongs to that loop.
    """

    _library = grpc.aio

    async def reload_config(self, config: Message | str) -> None:
        """Replace the server's model config, as `GrpcClient.reload_config`."""
        await self._ask(self.protocol.reload_config(config))

    def _connect(self, *args: Any) -> Any:
        asyncio.get_running_loop()  # or gRPC picks a loop that never runs
        return super()._connect(*args)

    async def _transmit(self, request: Message, timeout: float) -> Message:
        try:
            return await self._call(request, timeout)
        except grpc.RpcError as error:
            raise self._error(error, timeout) from error
        except asyncio.CancelledError as error:
            if not self._closed:
                raise
            # Closing the channel cancels the calls in flight, not their tasks.
            raise ServingError("cancelled") from error

    async def _disconnect(self) -> None:
        await self._channel.close()


def _checked_address(address: str) -> str:
    if not re.fullmatch(r"\S+", address) or address.startswith(("http:", "https:")):
        raise ValueError(
            f"`address` must look like 127.0.0.1:8500. Received: {address!r}"
        )
    return address
