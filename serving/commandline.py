"""What the commands share: arguments whose mistakes are told in one line."""

import argparse
import re
import sys
from typing import NoReturn

# Arguments of Python whose flag has another name.
_FLAGS = {"url": "rest", "address": "grpc", "headers": "header", "metadata": "header"}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2."""
        name = self.prog.removeprefix("python -m ")
        self.exit(2, f"{name}: {message} (--help shows the arguments)\n")


def positive_integer(text: str) -> int:
    """Type of an argument."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return int(text)


def by_flags(error: Exception) -> str:
    """What an error says, its `arguments` named as the flags they came from."""

    def flag(match: re.Match[str]) -> str:
        name = _FLAGS.get(match[1], match[1])
        return f"--{name.replace('_', '-')}"

    return re.sub(r"`([a-z_]+)`", flag, str(error))


def complain(command: str, message: str | Exception) -> int:
    """Prints one line on standard error.

    Args:
        command: its name.
        message: what went wrong; of more than one line, the first is told.

    Returns:
        The exit status, 1.
    """
    if isinstance(message, OSError) and message.filename:
        message = f"{message.filename}: {message.strerror}"
    first_line = str(message).partition("\n")[0]
    print(f"serving {command}: {first_line}", file=sys.stderr)
    return 1
