"""A flag for each value of a recipe, and the parsing of a command's flags."""

import argparse
import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit.common.command_line import (
    Parser,
    UsageError,
    documented_fields,
)

from .errors import RecipeError
from .recipe import Recipe, read_recipe_text
from .recipes import recipe_names, recipe_yaml
from .typed_values import (
    as_text,
    build,
    common_values,
    in_words,
    names_choices,
    place_of,
    read_file,
    read_flag,
    typed_fields,
)


def parse_flags(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command's flags.

    Raises:
        RecipeError: A flag, or a line of a recipe file, is unknown, missing or wrong.
    """
    arguments = [_with_home(argument) for argument in arguments]
    try:
        options: argparse.Namespace = parser.parse_args(arguments)
    except UsageError as error:
        raise RecipeError(str(error)) from None
    given = {flag.partition("=")[0].removeprefix("--") for flag in arguments}
    _reconcile_steps(options, given)
    if hasattr(options, "from_file"):
        try:
            recipe_of(options)  # may raise
        except RecipeError as error:
            lines = {p: v for p, v in options.from_file.items() if p not in given}
            place = place_of(str(error), lines)
            raise RecipeError(f"{place}: {error}" if place else str(error)) from None
    if getattr(options, "print_config", False):
        print(recipe_of(options).to_yaml(), end="")
        parser.exit()
    return options


def _with_home(argument: str) -> str:
    """Expand `~` in PATH and --flag=PATH: shells leave it after an equals sign."""
    flag, equals, value = argument.rpartition("=")
    return f"{flag}{equals}{os.path.expanduser(value)}"


def _reconcile_steps(options: argparse.Namespace, given: set[str]) -> None:
    """Let a flag move the recipe's other bound, which it contradicts."""
    least = getattr(options, "min_steps", None)
    most = getattr(options, "max_steps", None)
    if least is None or most is None or least <= most:
        return
    if "min_steps" not in given:
        options.min_steps = most
    elif "max_steps" not in given:
        options.max_steps = least


class RecipeOrConfig(argparse.Action):
    """`--config FILE`, or `--recipe NAME` for a recipe of this project."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        option_string: str | None = None,
    ) -> None:
        """Read the file into the arguments."""
        if option_string == "--recipe":
            text = recipe_yaml(value)
        elif value in recipe_names() and not Path(value).exists():
            raise RecipeError(f"{value}: no such file. Did you mean --recipe {value}?")
        else:
            text = read_recipe_text(Path(value))
        read = read_file(text, value, Recipe)
        given = vars(namespace)
        for path, each in read.items():
            of_files = namespace.of_files.get(path, each.value)
            if given.get(path, of_files) not in (of_files, each.value):
                raise RecipeError(
                    f"--{path} must stand after {option_string} {value}, which "
                    "replaces its value"
                )
        for path, each in read.items():
            setattr(namespace, path, each.value)
        namespace.of_files = namespace.of_files | {p: v.value for p, v in read.items()}
        if option_string == "--config":
            namespace.from_file = namespace.from_file | read


class _Group(argparse.Action):
    """`--data`, which is a group of flags and no flag."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        option_string: str | None = None,
    ) -> None:
        raise RecipeError(
            f"{option_string} is a group: set its values, as {option_string}.NAME VALUE"
        )


class _CommonHelp(argparse.HelpFormatter):
    """Help without the flags in groups of their own."""

    def start_section(self, heading: str | None) -> None:
        self._is_shown = heading in (None, "positional arguments", "options")
        super().start_section(heading)

    def add_argument(self, action: argparse.Action) -> None:
        if self._is_shown:
            super().add_argument(action)


class _HelpAll(argparse.Action):
    """`--help_all`: help with every group."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        option_string: str | None = None,
    ) -> None:
        parser.formatter_class = argparse.HelpFormatter
        parser.print_help()
        parser.exit()


def add_recipe(parser: Parser) -> None:
    """Add `--recipe`, `--config` and a flag for each value of a recipe.

    `--help` shows the values marked `COMMON` and what a command adds to the parser
    itself, `--help_all` the flags in groups too.
    """
    parser.usage = "%(prog)s --recipe NAME [--FLAG VALUE ...]"
    parser.formatter_class = _CommonHelp
    parser.add_argument(
        "--help_all",
        action=_HelpAll,
        nargs=0,
        default=argparse.SUPPRESS,
        help="show all flags: every value of a recipe is one",
    )
    parser.set_defaults(from_file={}, of_files={})
    for flag, metavar, about in (
        ("--recipe", "NAME", "start from a recipe that `keras-vit recipes` lists"),
        ("--config", "FILE", "start from a recipe file"),
    ):
        parser.add_argument(
            flag,
            action=RecipeOrConfig,
            default=argparse.SUPPRESS,
            metavar=metavar,
            help=about,
        )
    parser.add_argument(
        "--print_config",
        action="store_true",
        help="print the recipe with all its values, and end",
    )
    _add_values(parser)


def _add_values(parser: Parser) -> None:
    groups = {"": parser.add_argument_group("The run")}
    about = documented_fields(Recipe)
    for field in dataclasses.fields(Recipe):
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            group = parser.add_argument_group(about[field.name].rstrip("."))
            group.add_argument(f"--{field.name}", action=_Group, help=argparse.SUPPRESS)
            groups[field.name] = group
            lines = documented_fields(field.type)
            about |= {f"{field.name}.{name}": line for name, line in lines.items()}
    common = set(common_values(Recipe))
    for path, hint, default in typed_fields(Recipe):
        add_value(
            parser if path in common else groups[path.rpartition(".")[0]],
            path,
            hint,
            about.get(path, ""),
            default,
        )


def add_value(
    parser: argparse._ActionsContainer,
    path: str,
    hint: Any,
    about: str,
    default: Any = dataclasses.MISSING,
) -> None:
    """Add a flag whose value is checked by its type, as in a recipe file.

    The default is for the help; an absent flag leaves no attribute.
    """
    if not names_choices(hint, about):
        about = f"{in_words(hint)}: {about}"
    if default is not dataclasses.MISSING:
        about = f"{about} (default: {as_text(default)})"
    parser.add_argument(
        f"--{path}",
        type=functools.partial(read_flag, path, hint),
        default=argparse.SUPPRESS,
        metavar=path.rpartition(".")[2].upper(),
        help=about.replace("%", "%%"),
    )


def recipe_of(options: argparse.Namespace) -> Recipe:
    """The recipe in a parsed command line.

    Raises:
        RecipeError: A value is missing, or out of its range.
    """
    given = vars(options)
    if "data.source" not in given:
        raise RecipeError(
            "needs --recipe NAME (`keras-vit recipes` lists them), or --data.source, "
            "such as folder:PATH"
        )
    return build(Recipe, given)


def recipe_values() -> list[str]:
    """The dotted path of every value of a recipe but its name."""
    return [path for path, _, _ in typed_fields(Recipe) if path != "name"]
