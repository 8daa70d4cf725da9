"""Errors of input pipelines, which name the images that cannot be read."""

import contextlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from ..errors import DataError
from .labeled_images import Split

# The operation, in TensorFlow's messages, that fails where a pipeline does; the one for
# several devices has it in its name.
NEXT_BATCH = "IteratorGetNext"
# In the messages of the workers whose own pipelines did not fail.
OTHER_WORKER = "Collective ops is aborted"
MOST_NAMED = 5  # images
# What TensorFlow's messages contain beside the reason: names of nodes, and whole lines.
NODES = re.compile(
    r"\{\{.*?\}\} ?|\[\[.*?\]\]| ?\[Op:.*|^\s*\(\d+\) [A-Z_]+: +"
    r"|Error in user-defined function passed to .*?: Iterator::\S+ "
)
HEADINGS = re.compile(
    r"Graph execution error:|Detected at node .*|<stack traces .*|\d+ root error.*|"
    r'File ".*", line \d+, in .*|'
)
# Failed assertions, whose words and values follow in lines or in brackets.
IN_EAGER_MODE = re.compile(
    r"Expected '.*?' to be true\. Summarized data: (.*)", re.DOTALL
)
VALUE_IN_EAGER_MODE = re.compile(r"^(?:b['\"])?(.*?)['\"]?$", re.MULTILINE)
IN_A_GRAPH = re.compile(r"assertion failed: \[(.*)\]")


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


def reason_of(error: Exception) -> str:
    """What failed, by TensorFlow's message."""
    lines = (NODES.sub("", line).strip() for line in str(error).splitlines())
    reasons = [line for line in lines if not HEADINGS.fullmatch(line)]
    if not reasons:
        return type(error).__name__
    if asserted := IN_EAGER_MODE.fullmatch("\n".join(reasons)):
        return " ".join(VALUE_IN_EAGER_MODE.findall(asserted[1]))
    if asserted := IN_A_GRAPH.fullmatch(reasons[0]):
        return asserted[1].replace("] [", " ")
    return reasons[0]
