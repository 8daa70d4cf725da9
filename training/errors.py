"""Errors that end a command with one line and an exit status, without a traceback.

TrainingError       exit status 1
|-- DataError       the images cannot be used
|-- RunError        the run's folder or a model file cannot be used
|-- RecipeError     exit status 2: the command line or the recipe is wrong
|-- Preempted       exit status 75: SIGTERM; `keras-vit resume` continues
|-- Diverged        exit status 76: the loss or the weights are not finite
`-- WorkerLost      exit status 77: another worker ended; restart all with --resume
"""

from collections.abc import Callable

from keras_vit.common.command_line import CommandError
from keras_vit.option_rows import Check, rows
from keras_vit.options import is_number

# At the end of a message.
CONTINUES = (
    "; `keras-vit resume` with the run's folder continues a training, "
    "the same command a study"
)


class TrainingError(CommandError):
    """An error that is explained to the user in one line."""


class DataError(TrainingError):
    """A source without images, an unreadable image, or missing data."""


class RunError(TrainingError):
    """A run that already exists or does not exist yet, or an invalid model file."""


class RecipeError(TrainingError):
    """An unknown key, a wrong type, or a value out of range."""

    exit_status = 2


class Preempted(TrainingError):
    """Stopped by SIGTERM after saving a checkpoint (EX_TEMPFAIL of sysexits.h)."""

    exit_status = 75


class WorkerLost(TrainingError):
    """Another worker ended, so this one had to end as well."""

    exit_status = 77


class Diverged(TrainingError):
    """The loss or the weights are not finite; a retry would end in the same way."""

    exit_status = 76


def require(ok: bool, argument: str, wanted: str, received: object) -> None:
    """Raise RecipeError unless `ok`: which argument, what was wanted, what came."""
    if not ok:
        raise RecipeError(f"`{argument}` must be {wanted}. Received: {received!r}")


def number_check(wanted: str, holds: Callable[[float], bool]) -> Check:
    """A check of a value that is a finite number."""
    return Check(wanted, lambda value: is_number(value) and holds(value))


def require_each(section: str, config: object, check: Check, *names: str) -> None:
    """Raise RecipeError for a value, other than null, that a check refuses."""
    for name in names:
        value = getattr(config, name)
        ok = value is None or check.holds(value)
        require(ok, f"{section}{name}", check.wanted, value)


def require_rows(section: str, config: object) -> None:
    """Raise RecipeError for a value of a section that is not as its row says."""
    for name, row in rows(type(config)).items():
        value = getattr(config, name)
        wanted = row.problem(value)
        require(wanted is None, f"{section}.{name}", wanted or "", value)
