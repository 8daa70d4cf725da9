"""Arguments of timm's architectures, which a checkpoint's `config.json` names only.

    python -m benchmarks.timm_architectures     # writes the package's table

timm keeps them in its code; each architecture is called here with its class replaced,
so nothing is built. Needs `pip install -e ".[parity]"`.
"""

from benchmarks import torch_libraries  # noqa: F401  isort: skip

import dataclasses
import functools
import importlib
import json
import pathlib
import re
import unittest.mock
from typing import NoReturn

from keras_vit.typing import JSON

TABLE = (
    pathlib.Path(__file__).parents[1]
    / "keras_vit/weights/families/timm_architectures.json"
)
# Modules of timm's models, and the architectures in each that belong here.
MODULES = {
    "vision_transformer": ".*",
    "deit": ".*",
    "vision_transformer_hybrid": ".*",
    "eva": ".*",
    "beit": ".*",
    "naflexvit": ".*",
    "resnetv2": ".*_bit",
}
# Arguments of timm's builder, not of the model's class.
_OF_THE_BUILDER = (
    "feature_cfg",
    "out_indices",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "pretrained_filter_fn",
    "pretrained_strict",
)


class _Called(Exception):
    """Ends an architecture's function once it has called for its class."""


def _called(cls: object, *args: object, **arguments: object) -> NoReturn:
    raise _Called(cls, arguments)


def architectures() -> dict[str, dict[str, JSON]]:
    """Class and its arguments by the name of the architecture."""
    import timm

    found: dict[str, dict[str, JSON]] = {}
    for name, chosen in MODULES.items():
        module = importlib.import_module(f"timm.models.{name}")
        with unittest.mock.patch.object(module, "build_model_with_cfg", _called):
            for architecture in timm.list_models(module=name):
                if re.fullmatch(chosen, architecture):
                    found[architecture] = _arguments(architecture)
    return found


def _arguments(architecture: str) -> dict[str, JSON]:
    import timm

    try:
        timm.models.model_entrypoint(architecture)()
    except _Called as call:
        cls, arguments = call.args
    arguments |= _changed(arguments.pop("cfg", None))
    return {
        "class": _described(cls),
        **{
            name: _described(value)
            for name, value in sorted(arguments.items())
            if name not in _OF_THE_BUILDER
        },
    }


def _changed(cfg: JSON) -> dict[str, JSON]:
    """Fields of `NaFlexVitCfg`, which its class takes as arguments too."""
    return {
        field.name: getattr(cfg, field.name)
        for field in (dataclasses.fields(cfg) if cfg else ())
        if getattr(cfg, field.name) != field.default
    }


def _described(value: JSON) -> JSON:
    """A value as JSON; a class or a function by its name, with what it is given."""
    if isinstance(value, functools.partial):
        given = {name: _described(each) for name, each in value.keywords.items()}
        return {"": _described(value.func), **given}
    if isinstance(value, (list, tuple)):
        return [_described(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__name__", type(value).__name__)


def table() -> str:
    """The content of the file: an architecture in each line."""
    import timm

    lines = [
        f"{json.dumps(name)}: {json.dumps(arguments)}"
        for name, arguments in sorted(architectures().items())
    ]
    version = json.dumps(timm.__version__)
    return f'{{"timm": {version}, "architectures": {{\n' + ",\n".join(lines) + "\n}}\n"


def main() -> None:
    """Write the table."""
    TABLE.write_text(table(), "utf-8")
    print(f"{TABLE}: {len(architectures())} architectures")


if __name__ == "__main__":
    main()
