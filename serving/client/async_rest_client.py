"""The asyncio client over REST, apart because importing asyncio takes time."""

import asyncio
import contextlib

import httpx2

from .async_client import AsyncClient
from .rest_client import ERRORS, Rest, reply_of
from .rest_protocol import RestReply, RestRequest


class AsyncRestClient(Rest, AsyncClient):
    """`RestClient` for asyncio: the same arguments; its methods are awaited."""

    _open = httpx2.AsyncClient

    async def _transmit(self, request: RestRequest, timeout: float) -> RestReply:
        sent = self._http_request(request, timeout)
        try:
            async with asyncio.timeout(timeout):
                response = await self._http.send(sent, stream=True)
                async with contextlib.aclosing(response):
                    return reply_of(response, await response.aread())
        except ERRORS as error:
            raise self._converted(error, timeout) from error

    async def _disconnect(self) -> None:
        await self._http.aclose()
