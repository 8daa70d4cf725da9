"""What a user can get wrong: each of these ends a command with one line, no traceback.

TrainingError       exit status 1: the work failed
|-- DataError       the images are not as they should be
|-- RunError        the run's folder or a model file is not
|-- RecipeError     exit status 2: the command line or the recipe is not
|-- Preempted       exit status 75: SIGTERM came; the same command with --resume goes on
|-- Diverged        exit status 76: the loss is no number any more
`-- WorkerLost      exit status 77: another worker ended; start all with --resume
"""


class TrainingError(Exception):
    """A mistake of the user's, explained in one line."""

    exit_status = 1


class DataError(TrainingError):
    """A source without images, an unreadable image, data that are not there."""


class RunError(TrainingError):
    """A run that exists already or not yet, a file that is no model."""


class RecipeError(TrainingError):
    """An unknown key, a wrong type, a value out of range."""

    exit_status = 2


class Preempted(TrainingError):
    """SIGTERM came, a checkpoint was saved (EX_TEMPFAIL of sysexits.h: try again)."""

    exit_status = 75


class WorkerLost(TrainingError):
    """Another worker ended, so that this one had to end as well."""

    exit_status = 77


class Diverged(TrainingError):
    """The loss is infinite or NaN; trying again would end in the same way."""

    exit_status = 76
