"""Names of a package that are imported when a command first uses one of them."""

import functools
import importlib
import importlib.util
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any


@functools.cache  # `-m` is there only until the program's module is found
def is_command() -> bool:
    """Whether this process is one of the project's commands, not a user's code.

    A command answers `--help`, and refuses mistakes, without importing Keras.
    """
    program = pathlib.Path(*sys.argv[:1])
    if program.name == "-m":  # Python is still looking for the module
        return re.search(r" -m ?keras_vit\b", " ".join(sys.orig_argv)) is not None
    checkout = pathlib.Path(__file__).parents[2]
    ours = {checkout / name for name in ("training", "serving", "benchmarks")}
    return program.name == "keras-vit" or not ours.isdisjoint(program.parents)


def names_on_first_use(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose module `api` has its names."""

    def find(name: str) -> Any:
        module = f"{package}.{name}"
        if importlib.util.find_spec(module) is not None:
            return importlib.import_module(module)
        value = getattr(importlib.import_module(f"{package}.api"), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
