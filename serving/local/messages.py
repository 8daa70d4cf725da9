"""Bytes that are no message are answered as C++ gRPC answers them."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

CHECK = "/grpc.health.v1.Health/Check"
# What C++ gRPC answers; for other methods INTERNAL without a text.
UNREAD = {CHECK: (grpc.StatusCode.INVALID_ARGUMENT, "could not parse request")}


class MessageReader(grpc.aio.ServerInterceptor):
    """Reads requests in the place of grpc.aio, which answers UNKNOWN and logs it."""

    async def intercept_service(  # noqa: D102
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        unread = UNREAD.get(handler_call_details.method, (grpc.StatusCode.INTERNAL, ""))
        if handler is None or handler.unary_unary is None:
            return handler

        async def answer(data: bytes, context: grpc.aio.ServicerContext) -> Any:
            try:
                request = handler.request_deserializer(data)
            except DecodeError:
                await context.abort(*unread)
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            answer, response_serializer=handler.response_serializer
        )
