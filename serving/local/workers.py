"""Threads that run what blocks for an event loop, at half an executor's cost."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from .pace import MayTakeLong

# Bytes up to which a request is read in no time.
_SMALL = 4096

_Call = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class Workers:
    """A fixed number of threads of one event loop, in whose thread it is made.

    `loop.run_in_executor` makes a second future, with a lock of its own, for each call;
    of a small model's requests that would be a third of the time.

    Args:
        count: how many threads.
        name: what they are called.
    """

    def __init__(self, count: int, name: str):
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{index}", daemon=True)
            for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Runs a function as soon as a thread is free.

        Args:
            function: what to run.
            *arguments: its arguments.

        Returns:
            Its result or error, to be awaited. If it is cancelled before a thread took
            the call, the function is not run.
        """
        future = self._loop.create_future()
        self._calls.put((future, function, arguments))
        return future

    async def answer(
        self, size: int, timeout: float, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Runs what answers a request: at once, or in a thread if it may take long.

        Args:
            size: of the request, in bytes.
            timeout: seconds to wait for a thread to have done it.
            function: raises `MayTakeLong` before it has done anything but read, if it
                does not belong into the event loop's thread.
            *arguments: its arguments.

        Raises:
            TimeoutError: the time is over; what the thread does goes on.
        """
        if size <= _SMALL:
            with contextlib.suppress(MayTakeLong):
                return function(*arguments)
        return await asyncio.wait_for(self.run(function, *arguments), timeout)

    def close(self) -> None:
        """Ends the threads after the calls that wait; does not wait for that."""
        for _ in self._threads:
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, arguments = call
            if future.cancelled():
                continue
            result = error = None
            try:
                result = function(*arguments)
            except Exception as caught:
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_settle, future, result, error)
            # Not kept until the next call.
            del call, future, function, arguments, result, error


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():  # cancelled meanwhile
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
