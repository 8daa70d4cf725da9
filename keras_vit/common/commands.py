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
    did_you_mean,
)
from keras_vit.common.quiet import quiet_tensorflow


class Command(NamedTuple):
    """Where a command is, and what it does.

    Attributes:
        place: Module in its package, and function, if its name is not the command's:
            called with the arguments after that, it returns the exit status, or None.
        about: One line for `keras-vit --help`; none if it is not listed there.
    """

    place: str
    about: str


# Of each package: name, module and function where it has another name, and what the
# command does; - where it is for other commands.
TABLES = {
    "training": """
    fit         commands.fit       train a model
    resume      commands.fit       continue or extend a run
    launch      commands.launch    train with several workers on this machine
    evaluate    commands.evaluate  evaluate a model on labeled images
    predict     commands.predict   classify image files
    probe       commands.probe     evaluate a model's frozen features
    push        commands.push      share a finished run on Hugging Face
    recipes     commands.recipes   list the recipes, or print one
    compare     commands.studies   train recipes on the same images
    study       commands.studies   run one of the paper's experiments
    data-speed  commands.recipes   measure a recipe's input pipeline
    tpu-check   commands.recipes   check, without a TPU, that a recipe runs on one
    baselines   commands.studies   compare finished runs with scikit-learn
    run-images  run_images:main    -
    """,
    "keras_vit": """
    info        commands.info     parameters, FLOPs, tokens, memory; or what a file is
    list        commands.info:published  list the published weights
    convert     commands.convert  write a checkpoint in another project's format
    inspect     commands.inspect  draw what a model has learned
    completion  common.completion  print the shell's completion of commands
    """,
    "serving": """
    export     export.export_command:main   write a model as a versioned SavedModel
    versions   rollout.label_commands:show  list a model's versions and labels
    promote    rollout.label_commands       move a label's version to `stable`
    rollback   rollout.label_commands       return to the previous version
    copy       rollout.copy_command:main    copy versions, complete or not at all
    prune      rollout.label_commands       remove old versions
    serve      local:main                   start the local server
    page       page.proxy:main              show a model on a server in a browser
    classify   client_commands.commands     classify images on a server
    embed      client_commands.commands     write the embeddings of images
    attention  client_commands.commands     draw attention maps
    status     client_commands.commands     list the versions on a server
    load       load:main                    measure a server under load
    """,
}
COMMANDS = {
    group: {
        name: Command(place, "" if about == "-" else about)
        for name, place, about in (
            line.split(maxsplit=2) for line in table.strip().splitlines()
        )
    }
    for group, table in TABLES.items()
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

    Args:
        argv: Name of the command and its arguments; default: the process's own.

    Returns:
        The command's exit status; 2 for an unknown command.
    """
    argv = sys.argv[1:] if argv is None else argv
    for group, commands in COMMANDS.items():
        if argv and argv[0] in commands:
            return importlib.import_module(RUNNERS[group]).main(argv)
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
        argv: Name of the command and its arguments; default: the process's own.
        explain: What an error is for a user; None for a mistake of ours.
        groups: Those of `COMMANDS` that are listed where there is no such command.

    Returns:
        The exit status: 0, or that of the error; 2 for an unknown command.
    """
    argv = sys.argv[1:] if argv is None else argv
    group = package.rpartition(".")[2]
    name = argv[0] if argv else "--help"
    try:
        if name in COMMANDS[group]:
            _start()
            status = find(package, name)(argv[1:]) or 0
        else:
            name = ""
            status = _without_command(argv, groups or (group,))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, such as `head`, has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        known = error if isinstance(error, CommandError) else explain(error)
        known = known or _explain(error, group)
        if known is None:
            traceback.print_exc()
            return 1
        if str(known):
            complain(name, known)
        return known.exit_status


def listed(group: str) -> dict[str, Command]:
    """The commands of a group that are for users."""
    return {name: each for name, each in COMMANDS[group].items() if each.about}


def find(package: str, name: str) -> Function:
    """Import a command's function."""
    module, _, function = COMMANDS[package.rpartition(".")[2]][name].place.partition(
        ":"
    )
    function = function or name.replace("-", "_")
    return getattr(importlib.import_module(f"{package}.{module}"), function)


def _start() -> None:
    """Prepare what has to be before TensorFlow is imported.

    Raises:
        CommandError: The operating system is none that keras-vit runs on.
    """
    # oneDNN is faster on any x86-64; without AVX512_VNNI the default is Eigen.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    quiet_tensorflow()
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
        atexit._run_exitfuncs()
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
