"""What all commands share: argument types, and errors that are reported in one line.

    CommandError       the command failed           exit status 1
    └── UsageError     its arguments are wrong      exit status 2

Commands raise them; `serving.__main__` alone reports them.
"""

import argparse
import contextlib
import difflib
import re
import sys
from collections.abc import Iterator
from typing import ClassVar, NoReturn

# Python arguments whose flag has another name.
_FLAGS = {"url": "rest", "address": "grpc", "headers": "header", "metadata": "header"}


class CommandError(Exception):
    """A failure to be reported in one line; nothing was published or changed."""

    exit_status: ClassVar[int] = 1


class UsageError(CommandError):
    """Arguments that cannot be used."""

    exit_status = 2


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises `UsageError`, with the flag that was meant."""

    def parse_known_args(self, args=None, namespace=None):
        """Look for unknown flags first: one may be why a required one is missing."""
        args = sys.argv[1:] if args is None else list(args)
        known = [name for action in self._actions for name in action.option_strings]
        for arg in args[: args.index("--") if "--" in args else None]:
            flag = arg.partition("=")[0]
            unknown = not any(name.startswith(flag) for name in known)
            if arg.startswith("--") and unknown:
                meant = difflib.get_close_matches(flag, known, n=1)
                question = f". Did you mean {meant[0]}?" if meant else ""
                self.error(f"there is no {flag}{question}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise the message as an exception."""
        raise UsageError(f"{message} (--help shows the arguments)")


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


def positive_integer(text: str) -> int:
    """The type of an argument: an integer of at least 1."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return int(text)


def positive_number(text: str) -> float:
    """The type of an argument: a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text}")
    return value


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


def complain(command: str, message: str | Exception) -> None:
    """Print one line on standard error.

    Args:
        command: Its name.
        message: What went wrong; only the first line is printed.
    """
    if isinstance(message, OSError) and message.filename:
        message = f"{message.filename}: {message.strerror}"
    print(f"keras-vit {command}: {str(message).partition(chr(10))[0]}", file=sys.stderr)


def without_keras() -> None:
    """Make TensorFlow start without Keras and JAX, in half of the time.

    It imports both if they are installed. What TensorFlow Serving runs needs neither.
    """
    for name in ("keras", "keras_vit", "jax"):
        sys.modules[name] = None  # type: ignore[assignment]  # an import fails
