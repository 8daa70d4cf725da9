"""Operations as generators of steps, which blocking and asyncio clients both run.

An operation yields steps (send a request, pause, call a function) and receives their
outcomes. Requests, retries and the reading of answers are therefore written once; the
clients differ only in the few lines that perform a step.
"""

import functools
import inspect
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeAlias,
    TypeVar,
    get_args,
    overload,
)

from .errors import ServingError

if TYPE_CHECKING:
    from .async_client import AsyncClient
    from .blocking_client import BlockingClient

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Send:
    """Send a request and wait for its reply, with a timeout in seconds."""

    request: Any
    timeout: float


@dataclass(frozen=True)
class Pause:
    """Sleep, in seconds."""

    seconds: float


@dataclass(frozen=True)
class Work:
    """Call a function that blocks or computes, such as reading or encoding images."""

    function: Callable[[], Any]


@dataclass(frozen=True)
class Done(Generic[Result]):
    """The operation has ended."""

    result: Result


Step: TypeAlias = Send | Pause | Work
Steps: TypeAlias = Generator[Step, Any, Result]


def advance(
    steps: Steps[Result], outcome: Any = None, error: Exception | None = None
) -> Step | Done[Result]:
    """Resume an operation until its next step.

    Args:
        steps: The operation.
        outcome: Of the previous step.
        error: With which the previous step failed.

    Raises:
        Exception: The operation failed.
    """
    try:
        return steps.send(outcome) if error is None else steps.throw(error)
    except StopIteration as stop:
        return Done(stop.value)
    finally:
        # The error and this frame in its traceback would form a reference cycle, which
        # keeps the client and its connections alive.
        del error


@dataclass(frozen=True)
class Start:
    """Start an operation concurrently; the outcome is a handle."""

    steps: Steps[Any]


@dataclass(frozen=True)
class Await:
    """Wait for a started operation; the outcome is its result."""

    handle: Any


@dataclass(frozen=True)
class Give:
    """Yield a result to the caller."""

    item: Any


FlowSteps: TypeAlias = Generator[Start | Await | Give, Any, None]


@dataclass(frozen=True)
class Flow(Generic[Result]):
    """Concurrent operations, whose results come in order.

    Attributes:
        steps: Starts the operations and yields their results.
        concurrency: Largest number of concurrent operations.
    """

    steps: FlowSteps
    concurrency: int


class operation(Generic[Arguments, Result]):
    """Turns a method that yields steps into one that performs them.

    On a blocking client the method returns its result, on one for asyncio it returns a
    coroutine.
    """

    def __init__(self, method: Callable[Concatenate[Any, Arguments], Steps[Result]]):
        self._call = _calling(method, "_run", lambda result: result)

    @overload
    def __get__(
        self, client: "BlockingClient", owner: Any = None
    ) -> Callable[Arguments, Result]: ...
    @overload
    def __get__(
        self, client: "AsyncClient", owner: Any = None
    ) -> Callable[Arguments, Coroutine[Any, Any, Result]]: ...
    @overload
    def __get__(self, client: None, owner: Any = None) -> Callable[..., Any]: ...
    def __get__(self, client: Any, owner: Any = None) -> Any:
        return self._call if client is None else types.MethodType(self._call, client)


class stream(Generic[Arguments, Result]):
    """Turns a method that returns a `Flow` into one that yields its results.

    On a blocking client the method returns an iterator, on one for asyncio it returns
    an asynchronous iterator.
    """

    def __init__(self, method: Callable[Concatenate[Any, Arguments], Flow[Result]]):
        self._call = _calling(method, "_stream", _numbered)

    @overload
    def __get__(
        self, client: "BlockingClient", owner: Any = None
    ) -> Callable[Arguments, Iterator[tuple[int, Result | ServingError]]]: ...
    @overload
    def __get__(
        self, client: "AsyncClient", owner: Any = None
    ) -> Callable[Arguments, AsyncIterator[tuple[int, Result | ServingError]]]: ...
    @overload
    def __get__(self, client: None, owner: Any = None) -> Callable[..., Any]: ...
    def __get__(self, client: Any, owner: Any = None) -> Any:
        return self._call if client is None else types.MethodType(self._call, client)


def _numbered(result: Any) -> Any:
    return Iterator[tuple[int, result | ServingError]]


def _calling(method: Callable, runner: str, returned: Callable) -> Callable:
    """Pass the result of the method to a method of the client.

    `help` and the reference show what the client's method returns.
    """

    @functools.wraps(method)
    def call(client: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(client, runner)(method(client, *args, **kwargs))

    signature = inspect.signature(method)
    result = returned(get_args(signature.return_annotation)[-1])
    call.__signature__ = signature.replace(return_annotation=result)  # type: ignore
    return call
