"""Concurrent requests for many images; a bad image fails alone."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from .errors import InvalidArgument, MessageTooLarge, ServingError
from .image_encoding import Image, check_images, encode_image
from .steps import Await, Flow, FlowSteps, Give, Start, Steps, Work

Result = TypeVar("Result")
# One request for several encoded images, with a result for each.
Ask = Callable[[list[bytes]], Steps[Iterable[Result]]]


def in_order(
    ask: Ask[Result], images: Iterable[Image], batch_size: int, concurrency: int
) -> Flow[Result]:
    """Stream the results for images, which are read lazily, in order.

    Args:
        ask: Sends one request for several images.
        images: Any iterable of images, or pixels [N, H, W, C].
        batch_size: Images in one request.
        concurrency: Concurrent requests; `batch_size` times as many images are held in
            memory.

    Raises:
        TypeError, ValueError: An argument that cannot be used.
    """
    for name, value in {"batch_size": batch_size, "concurrency": concurrency}.items():
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
    check_images(images)
    steps = _window(ask, _batches(images, batch_size), concurrency)
    return Flow(steps, concurrency)


def _window(
    ask: Ask[Result], batches: Iterable[list[Image]], concurrency: int
) -> FlowSteps:
    in_flight: deque[Any] = deque()
    index = itertools.count()
    for batch in batches:
        in_flight.append((yield Start(_each(ask, batch))))
        if len(in_flight) == concurrency:
            yield from _oldest(in_flight, index)
    while in_flight:
        yield from _oldest(in_flight, index)


def _oldest(in_flight: deque[Any], index: Iterator[int]) -> FlowSteps:
    for result in (yield Await(in_flight.popleft())):
        yield Give((next(index), result))


def _each(ask: Ask[Result], images: list[Image]) -> Steps[list[Result | ServingError]]:
    """The result or the error of each image of a request."""
    contents = yield Work(lambda: [_bytes_or_error(image) for image in images])
    readable = [content for content in contents if isinstance(content, bytes)]
    answers = iter((yield from _one_by_one_if_refused(ask, readable)))
    return [
        next(answers) if isinstance(content, bytes) else content for content in contents
    ]


def _one_by_one_if_refused(
    ask: Ask[Result], contents: list[bytes]
) -> Steps[list[Result | ServingError]]:
    try:
        return list((yield from ask(contents)))
    except ServingError as error:
        one_may_be_bad = isinstance(error, InvalidArgument | MessageTooLarge)
        if len(contents) == 1 or not one_may_be_bad:
            return [error] * len(contents)
    results: list[Result | ServingError] = []
    for content in contents:
        results += yield from _one_by_one_if_refused(ask, [content])
    return results


def _bytes_or_error(image: Image) -> bytes | ServingError:
    try:
        return encode_image(image)
    except (OSError, TypeError, ValueError) as error:
        refused = InvalidArgument(str(error))
        refused.__cause__ = error
        return refused


def _batches(images: Iterable[Image], size: int) -> Iterator[list[Image]]:
    iterator = iter(images)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
