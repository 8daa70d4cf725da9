"""Errors of input pipelines, which name the images that cannot be read."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from keras_vit.common.activity import activity
from keras_vit.common.tensorflow_messages import reason_of

from ..errors import DataError
from .labeled_images import Split

# The operation, in TensorFlow's messages, that fails where a pipeline does; the one for
# several devices has it in its name.
NEXT_BATCH = "IteratorGetNext"
# In the messages of the workers whose own pipelines did not fail.
OTHER_WORKER = "Collective ops is aborted"
MOST_NAMED = 5  # images
SEARCH = 60.0  # seconds, after which the images that are found so far are named


@contextlib.contextmanager
def read_errors(
    *splits: Split | None,
    origin: str = "the input pipeline",
    reading: Callable[[], Iterable[int]] = tuple,
) -> Iterator[None]:
    """Convert errors of the block's input pipelines to DataError.

    TensorFlow's message has no file's name, so the images are read once more, for
    `SEARCH` seconds.

    Args:
        splits: The images of the pipelines.
        origin: What to name where it is none of these images.
        reading: Returns the indices of those of the first split that a pipeline was
            reading; they come first.

    Raises:
        DataError: A pipeline has failed; the message names the images that cannot be
            read, or has TensorFlow's reason where all of them can be now.
    """
    try:
        yield
        return
    except tf.errors.OpError as error:
        if NEXT_BATCH not in str(error) or OTHER_WORKER in str(error):
            raise
        reason = reason_of(error)
    # Without the first error as its context, whose frames keep the pipeline running.
    raise DataError(
        _unreadable_images(splits, reading()) or f"{origin} failed: {reason}"
    )


def read_image(split: Split, index: int) -> tf.Tensor:
    """Read one image, uint8 [h, w, C]; DataError, with its name, where that fails."""
    try:
        return split.read(tf.constant(index, tf.int64))
    except Exception as error:  # TensorFlow's, or one of a Python function  # noqa: BLE001
        name = split.names[index]
        reason = reason_of(error).removeprefix(f"{name}; ")
        raise DataError(f"{name}: {reason}") from None


def _unreadable_images(splits: tuple[Split | None, ...], first: Iterable[int]) -> str:
    """A message that names the images that cannot be read; empty without any."""
    every = [
        (number, index)
        for number, split in enumerate(splits)
        if split is not None
        for index in range(len(split))
    ]
    order = dict.fromkeys(itertools.chain(((0, index) for index in first), every))
    end = time.monotonic() + SEARCH
    tried: list[None] = []

    def problem(place: tuple[int, int]) -> str | None:
        number, index = place
        split = splits[number]
        if split is None or time.monotonic() > end:
            return None
        tried.append(None)
        try:
            read_image(split, index)
        except DataError as error:
            return str(error)
        return None

    what = "looking for the images that cannot be read"
    with activity(what), ThreadPoolExecutor() as pool:
        lines = [line for line in pool.map(problem, order) if line]
    if not lines:
        return ""
    more = f"; and {len(lines) - MOST_NAMED} more" if len(lines) > MOST_NAMED else ""
    rest = "" if len(tried) == len(every) else f" ({len(every)} in all)"
    return (
        f"{len(lines)} of {len(tried)} images{rest} cannot be read: "
        f"{'; '.join(lines[:MOST_NAMED])}{more}"
    )
