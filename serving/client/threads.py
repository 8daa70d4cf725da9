"""What the blocking clients do in threads; `tasks.py` has the same names."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    ask: Callable[[Item], Iterable[Result]], batches: Iterator[Item], concurrency: int
) -> Iterator[tuple[int, Result]]:
    """Stream the numbered results of batches, `concurrency` of them in flight."""
    index = itertools.count()
    asked: deque[Future[Iterable[Result]]] = deque()
    with ThreadPoolExecutor(concurrency, "serving-client") as threads:
        while True:
            for batch in itertools.islice(batches, concurrency - len(asked)):
                asked.append(threads.submit(ask, batch))
            if not asked:
                return
            for result in asked.popleft().result():
                yield next(index), result
