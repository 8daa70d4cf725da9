"""A flag for each value of a recipe, and the parsing of a command's flags."""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser, Namespace

from . import mistakes
from .errors import RecipeError
from .recipe import Recipe, read_recipe_text
from .recipes import recipe_names, recipe_yaml


def new_parser(**kwargs) -> ArgumentParser:
    """A parser that takes no abbreviations: a misspelt flag must not pass for one."""
    return ArgumentParser(exit_on_error=False, allow_abbrev=False, **kwargs)


def parse_flags(
    parser: ArgumentParser, arguments: Sequence[str], command: str
) -> Namespace:
    """Parse a command's flags.

    Args:
        parser: The command's parser.
        arguments: The command line after the command's name.
        command: Its name, for messages.

    Raises:
        RecipeError: A flag, or a line of a recipe file, is unknown, missing or wrong.
    """
    arguments = [_with_home(argument) for argument in arguments]
    file, lines = _config_file(arguments)
    given = {flag.partition("=")[0].removeprefix("--") for flag in arguments}
    try:
        options = parser.parse_args(arguments)
        _reconcile_steps(options, given)
        options = parser.instantiate(options)
        if any(isinstance(action, RecipeOrConfig) for action in parser._actions):
            recipe_of(options)  # may raise
        return options
    except (ArgumentError, TypeError) as error:
        message = mistakes.explain(str(error), parser, command)
    except RecipeError as error:
        message = str(error)
    from_file = {path: line for path, line in lines.items() if path not in given}
    line = mistakes.line_of(message, from_file)
    raise RecipeError(f"{file}:{line}: {message}" if line else message)


def _with_home(argument: str) -> str:
    """Expand `~` in PATH and --flag=PATH: shells leave it after an equals sign."""
    flag, equals, value = argument.rpartition("=")
    return f"{flag}{equals}{os.path.expanduser(value)}"


def _reconcile_steps(options: Namespace, given: set[str]) -> None:
    """Let a flag move the recipe's other bound, which it contradicts."""
    least, most = options.get("min_steps"), options.get("max_steps")
    if least is None or most is None or least <= most:
        return
    if "min_steps" not in given:
        options.min_steps = most
    elif "max_steps" not in given:
        options.max_steps = least


def _config_file(arguments: Sequence[str]) -> tuple[str, dict[str, int]]:
    """The recipe file on a command line, and the line of each value in it.

    Raises:
        RecipeError: The file cannot be read, is not YAML, or has an unknown key.
    """
    pairs = itertools.pairwise(arguments)
    files = [value for flag, value in pairs if flag == "--config"]
    files += [a.partition("=")[2] for a in arguments if a.startswith("--config=")]
    lines: dict[str, int] = {}
    for file in files:
        if file in recipe_names() and not Path(file).exists():
            raise RecipeError(f"{file}: no such file. Did you mean --recipe {file}?")
        text = read_recipe_text(Path(file))
        lines |= mistakes.read_lines(text, file, Recipe)
    return (files[-1] if files else ""), lines


class RecipeOrConfig(ActionConfigFile):
    """`--config FILE`, or `--recipe NAME` for a recipe of this project."""

    def __call__(self, parser, cfg, values, option_string=None):
        """Read the file into the arguments."""
        if option_string == "--recipe":
            values = recipe_yaml(values)
        super().__call__(parser, cfg, values, option_string)


def add_recipe(parser: ArgumentParser) -> None:
    """Add `--recipe`, `--config` and a flag for each value of a recipe."""
    parser.add_argument(
        "--recipe",
        "--config",
        action=RecipeOrConfig,
        help="--recipe and the name of a recipe (see `recipes`), or --config and the "
        "path of a recipe file",
    )
    parser.add_class_arguments(Recipe)


def recipe_of(options: Namespace) -> Recipe:
    """The recipe in a parsed command line."""
    names = [field.name for field in dataclasses.fields(Recipe)]
    return Recipe(**{name: options[name] for name in names})


def recipe_values(config: type, prefix: str = "") -> list[str]:
    """The dotted path of every value of a recipe but its name."""
    paths = []
    for field in dataclasses.fields(config):
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            paths += recipe_values(field.type, f"{field.name}.")
        elif field.name != "name" or prefix:
            paths.append(f"{prefix}{field.name}")
    return paths
