"""`keras-vit fit` and others: run a command, report its errors in one line."""

import errno
import os
import sys
import traceback
from collections.abc import Sequence

from .engine.launch import end_with_launcher
from .engine.sigterm import STOPPED, Terminated, terminated_at_once
from .errors import CONTINUES, Preempted, TrainingError

# Of a step of training there is a better message, with what would fit.
TOO_LARGE = (
    "out of memory while a model was made or evaluated ({}): a smaller "
    "`--model.variant`, smaller images, or a device with more memory would do"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Its name and its arguments; default: the process's own.

    Returns:
        The exit status: 0, or that of the error.
    """
    # TensorFlow's start-up messages say nothing about this project.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # oneDNN is faster on any x86-64; without AVX512_VNNI the default is Eigen.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    with terminated_at_once():
        return _status_of(arguments)


def _status_of(arguments: Sequence[str] | None) -> int:
    """Run a command and print its error; the exit status."""
    try:
        _run(arguments)
    except TrainingError as error:
        return _fail(str(error), error.exit_status)
    except BrokenPipeError:
        # The reader is gone; without this, the interpreter complains as it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a full disk, a folder without permission
        return _fail(str(error) + CONTINUES)
    except Terminated:
        return _fail(STOPPED, Preempted.exit_status)
    except KeyboardInterrupt:
        print(f"stopped{CONTINUES}", file=sys.stderr)
        return 130
    except Exception as error:
        message = _explanation(error)
        if message is not None:
            return _fail(message)
        traceback.print_exc()
        return 1
    return 0


def _run(arguments: Sequence[str] | None) -> None:
    """Import the commands, which takes a second, and run one."""
    try:
        from .cli import main as run
    except ModuleNotFoundError as error:
        raise TrainingError(
            f'needs {error.name}: pip install "keras-vit-serving[train]"'
        ) from None
    end_with_launcher()
    run(arguments)


def _explanation(error: Exception) -> str | None:
    """What an error of TensorFlow means, if it is a full disk or memory."""
    if "tensorflow" not in sys.modules:  # its import would take longer than the command
        return None
    from .data.read_errors import reason_of
    from .device_limits import is_out_of_memory

    if os.strerror(errno.ENOSPC) in str(error):
        return reason_of(error) + CONTINUES
    if not is_out_of_memory(error):
        return None
    cause = (str(error).strip() or type(error).__name__).splitlines()[0]
    return TOO_LARGE.format(cause[:300].rstrip("."))


def _fail(message: str, status: int = 1) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    from keras_vit_command import end_process

    end_process(main())
