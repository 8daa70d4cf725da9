"""Functions of a user's own modules, by name: MODULE:FUNCTION."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import keras

from .errors import RecipeError
from .recipe import Recipe


def find_function(name: str) -> Callable[..., Any]:
    """Import a function.

    Args:
        name: MODULE:FUNCTION; the module is looked for in the working directory too.

    Raises:
        ValueError: There is no such function; the message says why.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    module, _, function = name.partition(":")
    try:
        found: object = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, TypeError, SyntaxError) as error:
        raise ValueError(str(error)) from None
    if not callable(found):
        raise ValueError(f"must be a function. Received: {type(found).__name__}")
    return found


class UserCallbacks:
    """The Keras callbacks that a recipe's `callbacks` make.

    Raises:
        RecipeError: There is no such function.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        names = recipe.callbacks or ()
        self.functions = {}
        for name in (names,) if isinstance(names, str) else names:
            try:
                self.functions[name] = find_function(name)
            except ValueError as error:
                raise RecipeError(f"--callbacks {name}: {error}") from None

    def make(self) -> list[keras.callbacks.Callback]:
        """Call the functions.

        Raises:
            RecipeError: A function fails, or returns something else than callbacks.
        """
        made: list[keras.callbacks.Callback] = []
        for name, function in self.functions.items():
            try:
                returned = function(self.recipe)
            except Exception as error:  # whatever a user's function may raise
                line = str(error).strip().split("\n")[0]
                raise RecipeError(
                    f"--callbacks {name}: {type(error).__name__}: {line}"
                ) from error
            several = isinstance(returned, (list, tuple))
            for callback in returned if several else [returned]:
                if not isinstance(callback, keras.callbacks.Callback):
                    raise RecipeError(
                        f"--callbacks {name}: must return a Keras callback or a list "
                        f"of them. Received: {type(callback).__name__}"
                    )
                made.append(callback)
        return made
