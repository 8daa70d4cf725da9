"""The library's commands: `keras-vit info | list | convert | inspect`."""

import sys
import warnings

from keras_vit.common.command_line import CommandError, UsageError
from keras_vit.common.commands import run
from keras_vit.errors import KerasViTError


def main(argv: list[str] | None = None) -> int:
    """Run one command; see `keras_vit.common.commands.run`."""
    with warnings.catch_warnings():
        warnings.showwarning = _print_warning
        return run("keras_vit", argv, _explain)


def _explain(error: BaseException) -> CommandError | None:
    """What the library refuses: a file or a model, a missing package, an argument."""
    if isinstance(error, KerasViTError | ImportError):
        return CommandError(str(error))
    if isinstance(error, ValueError):
        return UsageError(str(error))
    return None


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Show a warning without the line of code that gave it."""
    print(f"warning: {message}", file=sys.stderr)
