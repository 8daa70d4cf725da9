"""What the asyncio clients do in tasks and threads; `threads.py` has the same names."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def in_order(
    ask: Callable[[Item], Coroutine[Any, Any, Iterable[Result]]],
    batches: Iterator[Item],
    concurrency: int,
) -> AsyncIterator[tuple[int, Result]]:
    """Stream the numbered results of batches, `concurrency` of them in flight."""
    index = itertools.count()
    asked: deque[asyncio.Task[Iterable[Result]]] = deque()
    try:
        while True:
            for batch in itertools.islice(batches, concurrency - len(asked)):
                asked.append(asyncio.create_task(ask(batch)))
            if not asked:
                return
            for result in await asked.popleft():
                yield next(index), result
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def in_thread(
    encode: Callable[[Iterable[Any]], Result], images: Iterable[Any]
) -> Result:
    """Read and encode images outside of the event loop, unless they are bytes."""
    if isinstance(images, list) and all(isinstance(image, bytes) for image in images):
        return encode(images)
    return await asyncio.to_thread(encode, images)
