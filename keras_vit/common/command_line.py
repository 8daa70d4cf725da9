"""What all commands share: their parser, types of arguments, and errors of one line.

    CommandError       a file, a model or a server cannot be used   exit status 1
    └── UsageError     the command line itself is wrong             exit status 2

Commands raise them; `commands.run` alone reports them.
"""

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable
from typing import Any, ClassVar, NoReturn

from keras_vit.common.similar_names import did_you_mean, similar_names

# What other projects call some values.
ABBREVIATIONS = {"lr": "learning_rate", "wd": "weight_decay", "bs": "batch_size"}
# Instead of arguments: a parser raises `ParserFound`.
FIND_PARSER = ["--find_parser"]


class CommandError(Exception):
    """What ends a command with one line, without a traceback."""

    exit_status: ClassVar[int] = 1


class UsageError(CommandError):
    """Arguments that cannot be used."""

    exit_status = 2


class ParserFound(Exception):
    """Carries a command's parser to `completion`, which reads its flags."""

    def __init__(self, parser: Any) -> None:
        super().__init__(parser.prog)
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises `UsageError`, with the flag that was meant."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, **keywords)

    def parse_known_args(
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Look for unknown flags first: one may be why a required one is missing."""
        if args == FIND_PARSER:
            raise ParserFound(self)
        args = sys.argv[1:] if args is None else list(args)
        known = [name for action in self._actions for name in action.option_strings]
        for arg in args[: args.index("--") if "--" in args else None]:
            flag = arg.partition("=")[0]
            if arg.startswith("--") and flag not in known:
                self.error(f"there is no {flag}{_flag_meant(flag, known)}")
        return super().parse_known_args(args, namespace)

    def parse_args(
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parse all arguments; one too many is an error."""
        options, left = self.parse_known_args(args, namespace)
        if left:
            self.error(f"one argument too many: {left[0]!r}")
        return options

    def error(self, message: str) -> NoReturn:
        """Raise the message as an exception."""
        raise UsageError(f"{message} (--help shows the arguments)")


def _flag_meant(flag: str, known: list[str]) -> str:
    """A question about the flag meant: --learning_rate is --optimizer.learning_rate."""
    plain = flag.lstrip("-").replace("-", "_").lower()
    plain = ABBREVIATIONS.get(plain, plain)
    ends = {name.lstrip("-").rpartition(".")[2]: name for name in known}
    end = [plain] if plain in ends else similar_names(plain, ends)
    meant = "" if plain in ends else did_you_mean(f"--{plain}", known)
    meant = meant or (f" Did you mean {ends[end[0]]}?" if end else "")
    return meant and f".{meant}"


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


def documented_fields(config: type) -> dict[str, str]:
    """The lines of each field under `Args` in a dataclass's docstring, as one line."""
    # `getdoc` removes the indentation, as Python 3.13 itself does.
    text = str(inspect.getdoc(config))
    entries = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE)
    names = {field.name for field in dataclasses.fields(config)}
    return {name: " ".join(line.split()) for name, line in entries if name in names}


def complain(command: str, message: str | Exception) -> None:
    """Print a command's name and a message's first line, reasons behind it included."""
    line = str(message).replace("\n- ", "; ").partition("\n")[0]
    print(f"{f'keras-vit {command}'.strip()}: {line}", file=sys.stderr)
