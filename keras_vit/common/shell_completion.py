"""`keras-vit completion`: what a shell needs to complete commands and flags."""

import importlib

from keras_vit.common.command_line import (
    FIND_PARSER,
    CommandError,
    Parser,
    ParserFound,
)
from keras_vit.common.commands import RUNNERS, find, listed


def completion(argv: list[str]) -> None:
    """Print what a shell needs.

    Raises:
        CommandError: The package that writes it is missing.
    """
    parser = Parser(
        prog="keras-vit completion",
        description="Print what a shell needs to complete commands and their flags; in "
        'bash: eval "$(keras-vit completion bash)".',
    )
    parser.add_argument("shell", choices=("bash", "zsh"))
    shell = parser.parse_args(argv).shell
    try:
        shtab = importlib.import_module("shtab")
    except ModuleNotFoundError:
        raise CommandError("shtab is missing: pip install shtab") from None
    print(shtab.complete(_parser_of_all(), shell))


def _parser_of_all() -> Parser:
    """A parser with every command whose extra is installed."""
    parser = Parser(prog="keras-vit")
    parser.add_argument("--version", action="store_true", help="print the versions")
    added = parser.add_subparsers()
    for group, runner in RUNNERS.items():
        package = runner.rpartition(".")[0]
        for name, command in listed(group).items():
            try:
                find(package, name)(FIND_PARSER)
            except ParserFound as found:
                own = [found.parser]
                added.add_parser(name, help=command.about, parents=own, add_help=False)
            except ModuleNotFoundError:
                continue
    return parser
