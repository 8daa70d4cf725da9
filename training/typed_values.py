"""Values of a dataclass from YAML: the text of a file, or that of a flag.

A value's text decides, not what YAML 1.1 makes of it: `off` is text where a field has
text, and 1e-3 is a number.
"""

import dataclasses
import json
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from keras_vit.common.similar_names import did_you_mean

from .errors import RecipeError

# Of a type: a value of it, and several.
IN_WORDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    str: ("text", "texts"),
    types.NoneType: ("null", "null"),
}
NULL = ("null", "~", "")
# Metadata of a field: its flag is among the few of `--help`.
COMMON = {"common": True}


Config = typing.TypeVar("Config")


class Value(typing.NamedTuple):
    """A value of a file and where it stands, such as `mine.yaml:3`."""

    value: Any
    place: str


def typed_fields(config: type, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The dotted path, type and default of every value of a dataclass.

    The default of a value that must be given is `dataclasses.MISSING`.
    """
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        path, hint = f"{prefix}{field.name}", hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from typed_fields(typing.cast(type, hint), f"{path}.")
        else:
            yield path, hint, field.default


def common_values(config: type, prefix: str = "") -> Iterator[str]:
    """The dotted paths of the values whose fields are marked `COMMON`."""
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        path, hint = f"{prefix}{field.name}", hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from common_values(typing.cast(type, hint), f"{path}.")
        elif field.metadata == COMMON:
            yield path


def build(config: type[Config], values: dict[str, Any], prefix: str = "") -> Config:
    """Build a dataclass, and those inside it, from values by their dotted paths."""
    hints = typing.get_type_hints(config)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        path, hint = f"{prefix}{field.name}", hints[field.name]
        if dataclasses.is_dataclass(hint):
            arguments[field.name] = build(typing.cast(type, hint), values, f"{path}.")
        elif path in values:
            arguments[field.name] = values[path]
    return config(**arguments)


def read_flag(path: str, hint: Any, text: str) -> Any:
    """Read the value of a flag: YAML, or any text where the type has text.

    Raises:
        RecipeError: It is none of the type.
    """
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError:
        node = None
    if node is None:
        node = yaml.ScalarNode("", text, style='"')
    if text in NULL:
        node = yaml.ScalarNode("", text)
    kinds = list(_kinds(hint))
    try:
        return _value(node, [kind for kind in kinds if kind is not str])
    except ValueError:
        if str in kinds:
            return text
    raise _wrong(path, hint, text)


def read_file(text: str, origin: str | Path, config: type) -> dict[str, Value]:
    """Read the values of a file by their dotted paths.

    Raises:
        RecipeError: The text is not YAML, has a key that `config` has not, or a value
            of another type.
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
    values: dict[str, Value] = {}
    _read_group(node, config, "", _File(text, origin), values)
    return values


class _File(typing.NamedTuple):
    text: str
    origin: str | Path


def _read_group(
    node: yaml.MappingNode,
    config: type,
    prefix: str,
    file: _File,
    values: dict[str, Value],
) -> None:
    hints = typing.get_type_hints(config)
    own: dict[str, int] = {}
    for key, _ in node.value:
        path, line = f"{prefix}{key.value}", key.start_mark.line + 1
        if key.tag.endswith(":merge"):
            continue
        if key.value not in hints:
            similar = did_you_mean(key.value, hints, prefix)
            raise RecipeError(f"{file.origin}:{line}: there is no `{path}`.{similar}")
        if path in own:
            raise RecipeError(
                f"{file.origin}:{line}: `{path}` is there a second time, after line "
                f"{own[path]}"
            )
        own[path] = line
    yaml.SafeLoader("").flatten_mapping(node)  # what is merged comes first
    for key, value in node.value:
        path, hint = f"{prefix}{key.value}", hints.get(key.value)
        place = f"{file.origin}:{key.start_mark.line + 1}"
        if not dataclasses.is_dataclass(hint):
            try:
                values[path] = Value(_value(value, list(_kinds(hint))), place)
            except ValueError:
                received = _text(value, file.text)
                raise RecipeError(f"{place}: {_wrong(path, hint, received)}") from None
        elif isinstance(value, yaml.MappingNode):
            group = typing.cast(type, hint)
            _read_group(value, group, f"{path}.", file, values)
        else:
            first = dataclasses.fields(hint)[0].name
            raise RecipeError(
                f"{place}: `{path}` must have values below it, such as `{path}.{first}`"
            )


def _text(node: yaml.Node, text: str) -> str:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    return " ".join(text[node.start_mark.index : node.end_mark.index].split())


def _wrong(path: str, hint: Any, received: str) -> RecipeError:
    return RecipeError(f"`{path}` must be {in_words(hint)}. Received: {received!r}")


def _kinds(hint: Any) -> Iterator[Any]:
    """The types in a union, text last: it would take all."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = list(typing.get_args(hint)) if union else [hint]
    yield from sorted(kinds, key=lambda kind: kind is str)


def _value(node: yaml.Node, kinds: list[Any]) -> Any:
    """The node as the first of the types that it is; ValueError without one."""
    for kind in kinds:
        try:
            if typing.get_origin(kind) is tuple:
                return _list(node, typing.get_args(kind))
            if isinstance(node, yaml.ScalarNode):
                return _scalar(node, kind)
        except ValueError:
            continue
    raise ValueError


def _list(node: yaml.Node, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(node, yaml.SequenceNode):
        raise ValueError
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(node.value)
    pairs = zip(node.value, kinds, strict=True)  # ValueError for another number
    return tuple(_value(each, list(_kinds(kind))) for each, kind in pairs)


def _scalar(node: yaml.ScalarNode, kind: Any) -> Any:
    if typing.get_origin(kind) is typing.Literal:
        names = {str(choice): choice for choice in typing.get_args(kind)}
        if node.value not in names:
            raise ValueError
        return names[node.value]
    is_null = node.style is None and node.value in NULL
    if kind is types.NoneType and is_null:
        return None
    if kind is str and not is_null:
        return node.value
    if kind is bool and node.value.lower() in ("true", "false"):
        return node.value.lower() == "true"
    if kind in (int, float) and node.style is None:
        return kind(node.value)
    raise ValueError


def place_of(message: str, values: dict[str, Value]) -> str | None:
    """Where the value stands whose path a message begins with."""
    path = re.match(r"`([\w.]+)`", message)
    return values[path[1]].place if path and path[1] in values else None


def in_words(hint: Any) -> str:
    """What a value of a type looks like on a command line or in a recipe."""
    words = list(_alternatives(hint))
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def names_choices(hint: Any, about: str) -> bool:
    """Whether a sentence about a value already has all that it may be."""
    is_choice = typing.get_origin(hint) is typing.Literal
    return is_choice and all(str(each) in about for each in typing.get_args(hint))


def _alternatives(hint: Any) -> Iterator[str]:
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


def as_text(value: Any) -> str:
    """A value as it is given on a command line or in a file."""
    return value if isinstance(value, str) else json.dumps(value)
