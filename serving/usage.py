"""What commands of serving share: errors of usage, versions, TensorFlow alone."""

import argparse
import contextlib
import re
import sys
from collections.abc import Iterator

from keras_vit.common.command_line import UsageError

# Python arguments whose flag has another name.
_FLAGS = {"url": "rest", "address": "grpc", "headers": "header", "metadata": "header"}


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Report a ValueError about Python arguments as one about the flags they came from.

    Raises:
        UsageError: `max_images` in the message has become --max_images.
    """
    try:
        yield
    except ValueError as error:
        message = re.sub(
            r"`([a-z_]+)`", lambda m: f"--{_FLAGS.get(m[1], m[1])}", str(error)
        )
        raise UsageError(f"{message} (--help shows the arguments)") from error


def version_number(text: str) -> int:
    """The type of an argument: the number of a version."""
    try:
        version = int(text)
    except ValueError:
        version = 0
    if not 1 <= version < 2**63:
        raise argparse.ArgumentTypeError(
            f"must be a number from 1 to 2**63 - 1. Received: {text}"
        )
    return version


def without_keras() -> None:
    """Make TensorFlow start without Keras and JAX, in half of the time.

    It imports both if they are installed. What TensorFlow Serving runs needs neither.
    """
    for name in ("keras", "jax"):
        sys.modules[name] = None  # type: ignore[assignment]  # an import fails
