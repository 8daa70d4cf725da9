"""The asyncio client over REST, apart because importing asyncio takes time."""

import asyncio
import ssl
from typing import Any

import httpx2

from .async_client import AsyncClient
from .asyncio_transport import AsyncioTransport
from .rest_client import ERRORS, Rest
from .rest_protocol import RestReply, RestRequest


class AsyncRestClient(Rest, AsyncClient):
    """`RestClient` for asyncio: the same arguments; its methods are awaited."""

    @staticmethod
    def _open(
        *, verify: ssl.SSLContext | bool, transport: Any, **options: Any
    ) -> httpx2.AsyncClient:
        context = httpx2.create_ssl_context(verify)
        # Not as its transport, for which httpx2 ignores the environment's proxies.
        direct = None if transport else {"all://": AsyncioTransport(context)}
        return httpx2.AsyncClient(
            verify=context, transport=transport, mounts=direct, **options
        )

    async def _transmit(self, request: RestRequest, timeout: float) -> RestReply:
        sent = self._http_request(request, timeout)
        try:
            async with asyncio.timeout(timeout):
                response = await self._http.send(sent)
            return RestReply(response.status_code, response.headers, response.content)
        except ERRORS as error:
            raise self._converted(error, timeout) from error

    async def _disconnect(self) -> None:
        await self._http.aclose()
