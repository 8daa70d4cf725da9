"""`python -m serving`: finds the command; each one is imported when it is asked for."""

import importlib
import os
import sys
from typing import NamedTuple


class Command(NamedTuple):
    """Where a command lives, and what it does."""

    module: str
    function: str
    about: str


COMMANDS = {
    "export": Command(
        ".export.export", "main", "write a model as a versioned SavedModel"
    ),
    "list": Command(".rollout.labels", "show", "list a model's versions and labels"),
    "promote": Command(
        ".rollout.labels", "promote", "give a label's version to `stable`"
    ),
    "rollback": Command(".rollout.labels", "rollback", "go back to the version before"),
    "prune": Command(".rollout.labels", "prune", "remove versions that nothing needs"),
    "serve": Command(".local", "main", "start the local server"),
    "classify": Command(".client.commands", "classify", "ask a server about images"),
    "embed": Command(".client.commands", "embed", "write the embeddings of images"),
    "attention": Command(".client.commands", "attention", "draw what the model saw"),
    "status": Command(".client.commands", "status", "list a model's versions"),
    "load": Command(".load.command", "load", "measure a server under load"),
    "soak": Command(".load.soak_command", "soak", "mixed requests and version swaps"),
}


def main(argv: list[str] | None = None) -> int:
    """Runs a command with the arguments after its name, which it alone reads.

    Args:
        argv: name of the command and its arguments; default: the process's own.

    Returns:
        The exit status: 0, 1 after a failure, 2 for a usage error.
    """
    # TensorFlow's start-up lines say nothing about what was asked.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    arguments = sys.argv[1:] if argv is None else argv
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"serving: no command {name!r}. There are: {known}", file=sys.stderr)
        return 2
    return _run(COMMANDS[name], rest)


def _run(command: Command, argv: list[str]) -> int:
    try:
        module = importlib.import_module(command.module, package="serving")
        return getattr(module, command.function)(argv)
    except ImportError as error:
        print(f"serving: {_reason(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _reason(error: ImportError) -> str:
    """A missing package, or a backend of Keras that the library refuses.

    Raises:
        ImportError: Any other reason, which is a fault of ours.
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
        ["usage: python -m serving COMMAND ...", "", *lines, "", "COMMAND --help: more"]
    )


if __name__ == "__main__":
    sys.exit(main())
