"""Explains what is wrong in a command line or a recipe file, in the user's terms.

jsonargparse finds the mistakes. Its messages name its own keys and Python's types; here
they get the flag's name, the line of the file, and the name that was probably meant.
"""

import argparse
import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml
from jsonargparse import ArgumentParser
from jsonargparse.typing import PositiveFloat, PositiveInt

from .errors import RecipeError, did_you_mean

# What other projects call some values.
ABBREVIATIONS = {"lr": "learning_rate", "wd": "weight_decay", "bs": "batch_size"}
# Of a type: a value of it, and several.
IN_WORDS: dict[typing.Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    str: ("text", "texts"),
    types.NoneType: ("null", "null"),
    PositiveInt: ("a whole number above 0", "whole numbers above 0"),
    PositiveFloat: ("a number above 0", "numbers above 0"),
}


def read_lines(text: str, origin: str | Path, config: type) -> dict[str, int]:
    """The line on which each value of a recipe file stands.

    Args:
        text: The file's YAML.
        origin: The file's name.
        config: The dataclass whose values the file has.

    Returns:
        The line, from 1, of each dotted path, such as `data.source`.

    Raises:
        RecipeError: The text is not YAML, or has a key that `config` has not.
    """
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise RecipeError(f"{origin}{line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{origin}: {' '.join(str(error).split())}") from None
    if not isinstance(node, yaml.MappingNode):
        raise RecipeError(
            f"{origin}: must be a recipe, lines such as `epochs: 10`; `keras-vit "
            "recipes digits` prints one"
        )
    lines: dict[str, int] = {}
    _add_lines(node, config, "", origin, lines)
    return lines


def _add_lines(
    node: yaml.MappingNode,
    config: type,
    prefix: str,
    origin: str | Path,
    lines: dict[str, int],
) -> None:
    values = {field.name: field.type for field in dataclasses.fields(config)}
    for key, value in node.value:
        if key.tag.endswith(":merge"):
            continue
        path, line = f"{prefix}{key.value}", key.start_mark.line + 1
        place = f"{origin}:{line}"
        if key.value not in values:
            similar = did_you_mean(key.value, values, prefix)
            raise RecipeError(f"{place}: there is no `{path}`.{similar}")
        if path in lines:
            raise RecipeError(
                f"{place}: `{path}` is there a second time, after line {lines[path]}"
            )
        lines[path] = line
        group = values[key.value]
        if not (isinstance(group, type) and dataclasses.is_dataclass(group)):
            continue
        if not isinstance(value, yaml.MappingNode):
            first = dataclasses.fields(group)[0].name
            raise RecipeError(
                f"{place}: `{path}` must have values below it, such as `{path}.{first}`"
            )
        _add_lines(value, group, f"{path}.", origin, lines)


def line_of(message: str, lines: dict[str, int]) -> int | None:
    """The line of the value whose path a message begins with."""
    path = re.match(r"`([\w.]+)`", message)
    return lines.get(path[1]) if path else None


def explain(message: str, parser: ArgumentParser, command: str = "") -> str:
    """jsonargparse's message in the user's terms.

    Args:
        message: The message.
        parser: The parser of the command, or of a recipe.
        command: The command's name; of a recipe, none.
    """
    message = " ".join(message.split())
    if found := re.match(r"unrecognized arguments: (.+)", message):
        return _explain_unknown(found[1].split(), parser, command)
    if found := re.match(r"the following arguments are required: (.+)", message):
        return _explain_missing(found[1].split(", "), parser, command)
    if found := re.match(r"argument (--[\w.]+): expected one argument", message):
        return f"{found[1]} needs a value; see `keras-vit {command} --help`"
    if found := re.match(r'Parser key "(\w+)": Unable to load config', message):
        return f"--{found[1]} is a group: set its values, as --{found[1]}.NAME VALUE"
    if found := re.match(r'Parser key "([\w.]+)": (.+)', message):
        hint = _type_of(found[1], parser)
        value = re.search(
            r"(?:Got|Given) value: (.*)$|: (\S*) does not conform", found[2]
        )
        if hint is not None and value:
            received = value[1] if value[1] is not None else value[2]
            wanted = in_words(hint)
            return f"`{found[1]}` must be {wanted}. Received: {received!r}"
    return message


def _explain_unknown(unknown: list[str], parser: ArgumentParser, command: str) -> str:
    flags = [name for action in parser._actions for name in action.option_strings]
    name = next((each for each in unknown if each.startswith("-")), None)
    if name is None:
        return f"{command}: one argument too many: {unknown[0]!r}"
    name = name.partition("=")[0]
    return (
        f"{command} has no flag {name}."
        f"{_similar_flag(name, flags) or f' `keras-vit {command} --help` lists them'}"
    )


def _similar_flag(name: str, flags: Iterable[str]) -> str:
    """A question about the flag meant: --learning_rate is --optimizer.learning_rate."""
    plain = name.lstrip("-").replace("-", "_").lower()
    plain = ABBREVIATIONS.get(plain, plain)
    ends = {flag.lstrip("-").rpartition(".")[2]: flag for flag in flags}
    if plain in ends:
        return f" Did you mean {ends[plain]}?"
    similar = did_you_mean(f"--{plain}", flags)
    end = difflib.get_close_matches(plain, ends, n=1)
    return similar or (f" Did you mean {ends[end[0]]}?" if end else "")


def _explain_missing(missing: list[str], parser: ArgumentParser, command: str) -> str:
    names = [name.removeprefix(f"{command}.") for name in missing]
    if "data.source" in names and not command:
        return "`data.source` must be given, such as folder:PATH"
    if "data.source" in names:
        return (
            f"{command} needs --recipe NAME (`keras-vit recipes` lists them), or "
            "--data.source, such as folder:PATH"
        )
    positional = [a.dest for a in parser._actions if not a.option_strings]
    shown = [name.upper() if name in positional else f"--{name}" for name in names]
    return f"{command} needs {' and '.join(shown)}; see `keras-vit {command} --help`"


def _type_of(key: str, parser: ArgumentParser) -> typing.Any:
    actions: Sequence[argparse.Action] = parser._actions
    for action in actions:
        if action.dest == key:
            return getattr(action, "_typehint", action.type)
    return None


def in_words(hint: typing.Any) -> str:
    """What a value of a type looks like on a command line or in a recipe."""
    words = list(_alternatives(hint))
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _alternatives(hint: typing.Any) -> Iterator[str]:
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if hint in IN_WORDS:
        yield IN_WORDS[hint][0]
    elif origin is typing.Literal:
        yield from map(str, arguments)
    elif origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        choices = typing.get_args(arguments[0])
        if typing.get_origin(arguments[0]) is typing.Literal:
            yield f"a list of {count}{', '.join(choices[:-1])} and {choices[-1]}"
        else:
            yield f"a list of {count}{IN_WORDS[arguments[0]][1]}"
    else:
        for each in arguments:
            yield from _alternatives(each)
