"""The table of commands, and how one is found, run and ended."""

import atexit
import gc
import importlib
import importlib.metadata
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from keras_vit._version import __version__
from keras_vit.common.command_line import (
    CommandError,
    UsageError,
    complain,
)
from keras_vit.common.lean_keras import import_lean
from keras_vit.common.quiet import quiet_tensorflow
from keras_vit.common.similar_names import did_you_mean


class Entry(NamedTuple):
    """Where a command is, and what it does.

    Attributes:
        place: Module in its package, and a function: called with the arguments after
            the command's name, it returns the exit status, or None.
        about: One line for `keras-vit --help`; empty for a command of other commands.
    """

    place: str
    about: str


# The commands of each package.
COMMANDS = {
    "training": {
        "fit": Entry("commands.fit:fit", "train a model"),
        "resume": Entry("commands.fit:resume", "continue or extend a run"),
        "launch": Entry(
            "commands.launch:launch", "train with several workers on this machine"
        ),
        "evaluate": Entry(
            "commands.evaluate:evaluate", "evaluate a model on labeled images"
        ),
        "predict": Entry("commands.predict:predict", "classify image files"),
        "probe": Entry("commands.probe:probe", "evaluate a model's frozen features"),
        "push": Entry("commands.push:push", "share a finished run on Hugging Face"),
        "recipes": Entry("commands.recipes:recipes", "list the recipes, or print one"),
        "compare": Entry(
            "commands.studies:compare", "train recipes on the same images"
        ),
        "study": Entry("commands.studies:study", "run one of the paper's experiments"),
        "data-speed": Entry(
            "commands.recipes:data_speed", "measure a recipe's input pipeline"
        ),
        "tpu-check": Entry(
            "commands.recipes:tpu_check",
            "check, without a TPU, that a recipe runs on one",
        ),
        "baselines": Entry(
            "commands.studies:baselines", "compare finished runs with scikit-learn"
        ),
        "run-images": Entry("evaluation.run_images:main", ""),
    },
    "keras_vit": {
        "info": Entry(
            "commands.info:info", "parameters, FLOPs, tokens, memory; or what a file is"
        ),
        "list": Entry("commands.info:published", "list the published weights"),
        "convert": Entry(
            "commands.convert:convert", "write a checkpoint in another project's format"
        ),
        "inspect": Entry("commands.inspect:inspect", "draw what a model has learned"),
        "completion": Entry(
            "common.shell_completion:completion",
            "print the shell's completion of commands",
        ),
    },
    "serving": {
        "export": Entry(
            "export.export_command:main", "write a model as a versioned SavedModel"
        ),
        "versions": Entry(
            "rollout.label_commands:show", "list a model's versions and labels"
        ),
        "promote": Entry(
            "rollout.label_commands:promote", "move a label's version to `stable`"
        ),
        "rollback": Entry(
            "rollout.label_commands:rollback", "return to the previous version"
        ),
        "copy": Entry(
            "rollout.copy_command:main", "copy versions, complete or not at all"
        ),
        "prune": Entry("rollout.label_commands:prune", "remove old versions"),
        "serve": Entry("local:main", "start the local server"),
        "page": Entry("page.proxy:main", "show a model on a server in a browser"),
        "classify": Entry(
            "client_commands.commands:classify", "classify images on a server"
        ),
        "embed": Entry(
            "client_commands.commands:embed", "write the embeddings of images"
        ),
        "attention": Entry("client_commands.commands:attention", "draw attention maps"),
        "status": Entry(
            "client_commands.commands:status", "list the versions on a server"
        ),
        "load": Entry("load:main", "measure a server under load"),
    },
}
# The extra with which each group's commands are installed.
EXTRAS = {"training": "train", "serving": "serve"}
# What runs the commands of each group.
RUNNERS = {
    "training": "keras_vit.training.__main__",
    "keras_vit": "keras_vit.commands",
    "serving": "keras_vit.serving.__main__",
}
# Exit statuses of a command that SIGTERM or Ctrl-C has stopped.
STOPPED = (os.EX_TEMPFAIL, 128 + signal.SIGINT)

Function = Callable[[list[str]], int | None]
Explain = Callable[[BaseException], CommandError | None]


def main(argv: list[str] | None = None) -> int:
    """Run a command of any group with the arguments after its name.

    Returns:
        The command's exit status; 2 for an unknown command.
    """
    argv = sys.argv[1:] if argv is None else argv
    for group, commands in COMMANDS.items():
        if argv and argv[0] in commands:
            status: int = importlib.import_module(RUNNERS[group]).main(argv)
            return status
    return run("keras_vit", argv, groups=tuple(COMMANDS))


def run(
    package: str,
    argv: list[str] | None = None,
    explain: Explain = lambda error: None,
    groups: tuple[str, ...] = (),
) -> int:
    """Run a command of one package, and report its error in one line.

    Args:
        package: `keras_vit`, or the name under which training or serving is imported.
        explain: What an error is for a user; None for a mistake of ours.
        groups: Those of `COMMANDS` that are listed where there is no such command.

    Returns:
        The exit status: 0, or that of the error; 2 for an unknown command.
    """
    argv = sys.argv[1:] if argv is None else argv
    group = package.rpartition(".")[2]
    name = argv[0] if argv else "--help"
    try:
        try:
            if name in COMMANDS[group]:
                _start()
                return find(package, name)(argv[1:]) or 0
            name = ""
            return _without_command(argv, groups or (group,))
        finally:  # also where the help of a command ends the program
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        known = error if isinstance(error, CommandError) else explain(error)
        known = known or _explain(error, group)
        if known is None:
            traceback.print_exc()
            return 1
        if str(known):
            complain(name, known)
        return known.exit_status


def listed(group: str) -> dict[str, Entry]:
    """The commands of a group that are for users."""
    return {name: each for name, each in COMMANDS[group].items() if each.about}


def find(package: str, name: str) -> Function:
    """Import a command's function."""
    command = COMMANDS[package.rpartition(".")[2]][name]
    module, _, function = command.place.partition(":")
    found: Function = getattr(importlib.import_module(f"{package}.{module}"), function)
    return found


def _start() -> None:
    """Prepare what has to be before TensorFlow is imported."""
    # oneDNN is faster on any x86-64; without AVX512_VNNI the default is Eigen.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    quiet_tensorflow()
    import_lean()
    importlib.import_module("keras_vit._platform")


class Interrupted(CommandError):
    """Ctrl-C; without a message nothing is printed."""

    exit_status = 128 + signal.SIGINT


def _explain(error: BaseException, group: str) -> CommandError | None:
    """A missing package, a backend that Keras lacks here, a file, or Ctrl-C."""
    if isinstance(error, KeyboardInterrupt):
        return Interrupted()
    if isinstance(error, OSError):
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return CommandError(reason)
    package = (getattr(error, "name", None) or "keras_vit").partition(".")[0]
    if isinstance(error, ModuleNotFoundError):
        extra = EXTRAS.get(group)
        if package in COMMANDS or extra is None:
            return None
        return CommandError(
            f'{package} is missing: pip install "keras-vit-serving[{extra}]"'
        )
    if isinstance(error, ImportError) and package == "keras_vit":
        return CommandError(str(error))
    return None


def _without_command(argv: list[str], groups: tuple[str, ...]) -> int:
    """Print the help, the version, or that there is no such command."""
    if not argv or argv[0] in ("-h", "--help"):
        lines = ["usage: keras-vit COMMAND ...", "       keras-vit --version", ""]
        for group in groups:
            lines += [f"  {n:12}{c.about}" for n, c in listed(group).items()]
            lines.append("")
        print("\n".join([*lines, "COMMAND --help: more"]))
        return 0 if argv else 2
    if argv[0] == "--version":
        print(_versions())
        return 0
    names = [name for group in groups for name in listed(group)]
    hint = did_you_mean(argv[0], names) or f" There are: {', '.join(names)}"
    raise UsageError(f"no command {argv[0]!r}.{hint}")


def _versions() -> str:
    """The versions that a bug report needs, without importing anything large."""
    others = ", ".join(
        f"{package} {importlib.metadata.version(package)}"
        for package in ("keras", "tensorflow")
    )
    return f"keras-vit {__version__} ({others}, Python {platform.python_version()})"


def end_process(status: int) -> NoReturn:
    """End the process with an exit status; at once after a command that was stopped.

    What the interpreter would free, TensorFlow above all, takes it up to 45 s on a busy
    machine, and whoever stops a command kills it before. Its files are on the disk.
    """
    if status in STOPPED:
        atexit._run_exitfuncs()  # noqa: SLF001
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    # Input pipelines that an error has left: one that is in the middle of a Python
    # function when the interpreter ends never lets it.
    gc.collect()
    sys.exit(status)


def command_line() -> NoReturn:
    """Run the command of the process's arguments, and end the process."""
    end_process(main())
