"""The library's commands: `keras-vit info | list | convert | inspect`."""

import sys
import warnings

from keras_vit.common.command_line import CommandError, UsageError
from keras_vit.common.commands import run


def main(argv: list[str] | None = None) -> int:
    """Run one command; see `keras_vit.common.commands.run`."""
    with warnings.catch_warnings():
        warnings.showwarning = _print_warning
        return run("keras_vit", argv, _explain)


def _explain(error: BaseException) -> CommandError | None:
    """What the library refuses, a missing package, or a file."""
    if isinstance(error, ValueError | ImportError | OSError):
        return UsageError(str(error))
    return None


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Show a warning without the line of code that gave it."""
    print(f"warning: {message}", file=sys.stderr)
