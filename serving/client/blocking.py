"""Clients that block: a call returns when the answer is there; safe between threads."""

import contextlib
import time
from abc import abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from .base import Operations
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


class BlockingClient(Operations):
    """Carries out the steps of an operation in turn, and those of a flow in threads."""

    def close(self) -> None:
        """Closes the connections, those of an injected transport too."""
        self._closed = True
        self._hang_up()

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
                return self._carry(request, timeout)
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
    def _carry(self, request: Any, timeout: float) -> Any:
        """The reply to a request; `ServingError` when none came."""

    @abstractmethod
    def _hang_up(self) -> None:
        """Closes the connections."""
