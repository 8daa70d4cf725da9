"""Asyncio clients: every call is awaited, and many run concurrently in one loop."""

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Any, Self, TypeVar

from .base_client import BaseClient
from .errors import ServingError
from .steps import (
    Await,
    Done,
    Flow,
    Give,
    Pause,
    Send,
    Start,
    Step,
    Steps,
    Work,
    advance,
)

Result = TypeVar("Result")


class AsyncClient(BaseClient):
    """Base of the asyncio clients: operations are coroutines, flows run in tasks."""

    async def close(self) -> None:
        """Close the connections, those of an injected transport too."""
        self._closed = True
        await self._disconnect()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def _run(self, steps: Steps[Result]) -> Result:
        step = advance(steps)
        while not isinstance(step, Done):
            try:
                outcome = await self._perform(step)
            except Exception as error:
                step = advance(steps, error=error)
            else:
                step = advance(steps, outcome)
        return step.result

    async def _perform(self, step: Step) -> Any:
        match step:
            case Send(request, timeout):
                return await self._transmit(request, timeout)
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case Work(function):
                return await asyncio.to_thread(function)

    async def _stream(
        self, flow: Flow[Result]
    ) -> AsyncIterator[tuple[int, Result | ServingError]]:
        tasks: list[asyncio.Task] = []
        outcome: Any = None
        try:
            with contextlib.suppress(StopIteration):
                while True:
                    match flow.steps.send(outcome):
                        case Start(steps):
                            outcome = asyncio.create_task(self._run(steps))
                            tasks = [task for task in tasks if not task.done()]
                            tasks.append(outcome)
                        case Await(handle):
                            outcome = await handle
                        case Give(item):
                            outcome = yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @abstractmethod
    async def _transmit(self, request: Any, timeout: float) -> Any:
        """Send a request and wait for its reply; `ServingError` without one."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Close the connections."""
