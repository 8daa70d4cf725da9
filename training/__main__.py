"""`python -m training`: the commands of training, as `keras-vit` runs them."""

import errno
import os
import sys
from collections.abc import Sequence

from keras_vit.common.command_line import CommandError
from keras_vit.common.commands import Interrupted, end_process, run
from keras_vit.common.tensorflow_messages import reason_of

from .engine.launch import end_with_launcher
from .engine.sigterm import STOPPED, Terminated, terminated_at_once
from .errors import CONTINUES, Preempted, TrainingError

# Of a step of training there is a better message, with what would fit.
TOO_LARGE = (
    "out of memory while a model was made or evaluated ({}): a smaller "
    "`--model.variant`, smaller images, or a device with more memory would do"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; see `keras_vit.common.commands.run`."""
    with terminated_at_once():
        end_with_launcher()
        argv = None if arguments is None else list(arguments)
        return run(__package__, argv, _explanation)


def _explanation(error: BaseException) -> CommandError | None:
    """What an error means that others raise: a signal, a full disk, memory."""
    if isinstance(error, Terminated):
        return Preempted(STOPPED)
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(f"stopped{CONTINUES}")
    if isinstance(error, OSError):  # a full disk, a folder without permission
        return TrainingError(str(error) + CONTINUES)
    # The import of TensorFlow would take longer than the command.
    if not isinstance(error, Exception) or "tensorflow" not in sys.modules:
        return None
    from .fitting.device_limits import is_out_of_memory

    if os.strerror(errno.ENOSPC) in str(error):
        return TrainingError(reason_of(error) + CONTINUES)
    if not is_out_of_memory(error):
        return None
    cause = (str(error).strip() or type(error).__name__).splitlines()[0]
    return TrainingError(TOO_LARGE.format(cause[:300].rstrip(".")))


if __name__ == "__main__":
    end_process(main())
