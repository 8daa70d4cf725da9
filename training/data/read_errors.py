"""Errors of input pipelines, which name the images that cannot be read."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from keras_vit.common.tensorflow_messages import reason_of

from ..errors import DataError
from .labeled_images import Split

# The operation, in TensorFlow's messages, that fails where a pipeline does; the one for
# several devices has it in its name.
NEXT_BATCH = "IteratorGetNext"
# In the messages of the workers whose own pipelines did not fail.
OTHER_WORKER = "Collective ops is aborted"
MOST_NAMED = 5  # images


@contextlib.contextmanager
def read_errors(
    *splits: Split | None, origin: str = "the input pipeline"
) -> Iterator[None]:
    """Convert errors of the block's input pipelines to DataError.

    TensorFlow's message has no file's name, so all images are read once more.

    Args:
        splits: The images of the pipelines.
        origin: What to name where it is none of these images.

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
    raise DataError(_unreadable_images(splits) or f"{origin} failed: {reason}")


def read_image(split: Split, index: int) -> tf.Tensor:
    """Read one image, uint8 [h, w, C]; DataError, with its name, where that fails."""
    try:
        return split.read(tf.constant(index, tf.int64))
    except Exception as error:  # TensorFlow's, or one of a Python function
        name = split.names[index]
        reason = reason_of(error).removeprefix(f"{name}; ")
        raise DataError(f"{name}: {reason}") from None


def _unreadable_images(splits: tuple[Split | None, ...]) -> str:
    """A message that names the images that cannot be read; empty without any."""
    lines = [line for split in splits if split for line in _unreadable(split)]
    if not lines:
        return ""
    count = sum(len(split) for split in splits if split)
    more = f"; and {len(lines) - MOST_NAMED} more" if len(lines) > MOST_NAMED else ""
    return (
        f"{len(lines)} of {count} images cannot be read: "
        f"{'; '.join(lines[:MOST_NAMED])}{more}"
    )


def _unreadable(split: Split) -> list[str]:
    """Name and reason of each image that cannot be read."""

    def problem(index: int) -> str | None:
        try:
            read_image(split, index)
        except DataError as error:
            return str(error)
        return None

    with ThreadPoolExecutor() as pool:
        return [line for line in pool.map(problem, range(len(split))) if line]
