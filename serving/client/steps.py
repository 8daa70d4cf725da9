"""Operations as generators of steps, which blocking and asyncio clients both run.

An operation yields what has to be sent, waited for or worked out, and is sent the
outcome. So what is asked, and what is made of the answer, is written once; the clients
differ in the few lines that carry out a step.
"""

import functools
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
    """Carry a request, within a time in seconds."""

    request: Any
    timeout: float


@dataclass(frozen=True)
class Pause:
    """Wait, in seconds."""

    seconds: float


@dataclass(frozen=True)
class Work:
    """Call a function that takes time without the network: it reads or encodes."""

    function: Callable[[], Any]


@dataclass(frozen=True)
class Done(Generic[Result]):
    """Nothing is left to do."""

    result: Result


Step: TypeAlias = Send | Pause | Work
Steps: TypeAlias = Generator[Step, Any, Result]


def advance(
    steps: Steps[Result], outcome: Any = None, error: Exception | None = None
) -> Step | Done[Result]:
    """The next step of an operation.

    Args:
        steps: the operation.
        outcome: of the step before.
        error: the step before failed with it.

    Raises:
        Exception: the operation failed.
    """
    try:
        return steps.send(outcome) if error is None else steps.throw(error)
    except StopIteration as stop:
        return Done(stop.value)
    finally:
        # An error, and this frame in its traceback, would keep each other alive, and
        # with them the client and its connections.
        del error


@dataclass(frozen=True)
class Start:
    """Start an operation beside the others; the outcome is a handle to it."""

    steps: Steps[Any]


@dataclass(frozen=True)
class Await:
    """Wait for an operation that was started; the outcome is its result."""

    handle: Any


@dataclass(frozen=True)
class Give:
    """Hand a result to the caller."""

    item: Any


FlowSteps: TypeAlias = Generator[Start | Await | Give, Any, None]


@dataclass(frozen=True)
class Flow(Generic[Result]):
    """Many operations side by side, whose results come in order.

    Attributes:
        steps: what to do.
        concurrency: how many operations run at once.
    """

    steps: FlowSteps
    concurrency: int


class operation(Generic[Arguments, Result]):
    """Turns a method that yields steps into one that carries them out.

    On a blocking client the method returns its result, on one for asyncio it returns a
    coroutine.
    """

    def __init__(self, method: Callable[Concatenate[Any, Arguments], Steps[Result]]):
        self._call = _calling(method, "_run")

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
        self._call = _calling(method, "_stream")

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


def _calling(method: Callable, runner: str) -> Callable:
    """Calls the method, and the client's runner with what it returns."""

    @functools.wraps(method)
    def call(client: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(client, runner)(method(client, *args, **kwargs))

    return call
