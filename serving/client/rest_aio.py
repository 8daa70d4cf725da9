"""The client over REST for asyncio."""

import asyncio
import contextlib

import httpx2

from .aio import AsyncClient
from .rest import Rest, reply_of
from .rest_protocol import RestReply, RestRequest


class AsyncRestClient(Rest, AsyncClient):
    """`RestClient` for asyncio: the same arguments; the methods are awaited."""

    _open = httpx2.AsyncClient

    async def _carry(self, request: RestRequest, timeout: float) -> RestReply:
        sent = self._http_request(request, timeout)
        with self._errors(timeout):
            async with asyncio.timeout(timeout):
                response = await self._http.send(sent, stream=True)
                async with contextlib.aclosing(response):
                    return reply_of(response, await response.aread())

    async def _hang_up(self) -> None:
        await self._http.aclose()
