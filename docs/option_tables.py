"""The tables of the models' options, from the rows that the code uses."""

import dataclasses
import json
import types
from typing import Any, Union, get_args, get_origin

from markdown_table import table

from keras_vit.option_rows import OptionRow, rows
from keras_vit.options import ResNetOptions, ViTOptions

HEADER = ["argument", "type", "default", "meaning"]


def page() -> str:
    """One table per model, in the order of its constructor's arguments."""
    models = {"VisionTransformer": ViTOptions, "ResNet": ResNetOptions}
    sections = [
        f"### {name}\n\n{table(HEADER, _lines(options))}"
        for name, options in models.items()
    ]
    return "\n\n".join(sections) + "\n"


def _lines(options: type) -> list[list[str]]:
    found = rows(options)
    return [
        [f"`{f.name}`", _type(found[f.name]), _default(f), found[f.name].about]
        for f in dataclasses.fields(options)
    ]


def _type(row: OptionRow) -> str:
    """Choices, or the alternatives of a union, without the names of modules."""
    if row.choices:
        return ", ".join(map(_code, row.choices))
    union = get_origin(row.kind) in (Union, types.UnionType)
    kinds = get_args(row.kind) if union else (row.kind,)
    return " or ".join(f"`{_name(kind)}`" for kind in kinds)


def _name(kind: Any) -> str:
    if kind is types.NoneType:
        return "None"
    if isinstance(kind, type) and not get_args(kind):
        return kind.__name__
    return str(kind).removeprefix("typing.").removeprefix("collections.abc.")


def _default(field: dataclasses.Field) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    return _code(field.default)


def _code(value: Any) -> str:
    return f"`{json.dumps(value) if isinstance(value, str) else value}`"
