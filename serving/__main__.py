"""`keras-vit export` and others: run a command, report its errors in one line."""

import importlib
import os
import sys
from typing import NamedTuple

from .commandline import CommandError, complain


class Command(NamedTuple):
    """Where a command is implemented, and what it does."""

    module: str
    function: str
    about: str


CLIENT = ".client_commands.commands"
COMMANDS = {
    "export": Command(
        ".export.export_command", "main", "write a model as a versioned SavedModel"
    ),
    "versions": Command(
        ".rollout.label_commands", "show", "list a model's versions and labels"
    ),
    "promote": Command(
        ".rollout.label_commands", "promote", "move a label's version to `stable`"
    ),
    "rollback": Command(
        ".rollout.label_commands", "rollback", "return to the previous version"
    ),
    "copy": Command(
        ".rollout.copy_command", "main", "copy versions, complete or not at all"
    ),
    "prune": Command(".rollout.label_commands", "prune", "remove old versions"),
    "serve": Command(".local", "main", "start the local server"),
    "page": Command(".page.proxy", "main", "show a model on a server in a browser"),
    "classify": Command(
        ".client_commands.commands", "classify", "classify images on a server"
    ),
    "embed": Command(
        ".client_commands.commands", "embed", "write the embeddings of images"
    ),
    "attention": Command(
        ".client_commands.commands", "attention", "draw attention maps"
    ),
    "status": Command(
        ".client_commands.commands", "status", "list the versions on a server"
    ),
    "load": Command(".load", "main", "measure a server under load"),
}


def main(argv: list[str] | None = None) -> int:
    """Run a command with the arguments after its name.

    Args:
        argv: Name of the command and its arguments; default: the process's own.

    Returns:
        The exit status: 0, 1 after a failure, 2 for wrong arguments.
    """
    # Before any command imports TensorFlow, whose start-up lines are noise.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # oneDNN is faster on any x86-64; without AVX512_VNNI the default is Eigen.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    arguments = sys.argv[1:] if argv is None else argv
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"keras-vit: no command {name!r}. There are: {known}", file=sys.stderr)
        return 2
    return _run(name, rest)


def _run(name: str, argv: list[str]) -> int:
    command = COMMANDS[name]
    try:
        module = importlib.import_module(command.module, package=__package__)
        return getattr(module, command.function)(argv)
    except ImportError as error:
        print(f"keras-vit: {_reason(error)}", file=sys.stderr)
        return 1
    except CommandError as error:
        complain(name, error)
        return error.exit_status
    except BrokenPipeError:
        # The reader is gone; without this, the interpreter complains as it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        complain(name, error)
        return 1
    except KeyboardInterrupt:
        return 130


def _reason(error: ImportError) -> str:
    """A missing package, or a Keras backend that the library refuses.

    Raises:
        ImportError: Any other reason, which is a bug.
    """
    package = (error.name or "serving").partition(".")[0]
    missing = isinstance(error, ModuleNotFoundError)
    if missing and package not in ("serving", "keras_vit"):
        return f'{package} is missing: pip install "keras-vit-serving[serve]"'
    if not missing and package == "keras_vit":
        return str(error)
    raise error


def _usage() -> str:
    lines = [f"  {name:10}{command.about}" for name, command in COMMANDS.items()]
    return "\n".join(
        ["usage: keras-vit COMMAND ...", "", *lines, "", "COMMAND --help: more"]
    )


if __name__ == "__main__":
    sys.exit(main())
