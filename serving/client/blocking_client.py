"""Blocking clients: a call returns its result; they are thread-safe."""

import contextlib
import time
from abc import abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


class BlockingClient(BaseClient):
    """Base of the blocking clients: operations run in the caller, flows in threads."""

    def close(self) -> None:
        """Close the connections, those of an injected transport too."""
        self._closed = True
        self._disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self, steps: Steps[Result]) -> Result:
        step = advance(steps)
        while not isinstance(step, Done):
            try:
                outcome = self._perform(step)
            except Exception as error:
                step = advance(steps, error=error)
            else:
                step = advance(steps, outcome)
        return step.result

    def _perform(self, step: Step) -> Any:
        match step:
            case Send(request, timeout):
                return self._transmit(request, timeout)
            case Pause(seconds):
                return time.sleep(seconds)
            case Work(function):
                return function()

    def _stream(
        self, flow: Flow[Result]
    ) -> Iterator[tuple[int, Result | ServingError]]:
        outcome: Any = None
        with (
            ThreadPoolExecutor(flow.concurrency, "serving-client") as threads,
            contextlib.suppress(StopIteration),
        ):
            while True:
                match flow.steps.send(outcome):
                    case Start(steps):
                        outcome = threads.submit(self._run, steps)
                    case Await(handle):
                        outcome = handle.result()
                    case Give(item):
                        outcome = yield item

    @abstractmethod
    def _transmit(self, request: Any, timeout: float) -> Any:
        """Send a request and wait for its reply; `ServingError` without one."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connections."""
