"""The console script `keras-vit`: the commands of library, training and serving."""

import ast
import atexit
import contextlib
import ctypes
import difflib
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import mmap
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

COMMANDS = {
    "keras_vit.training": {
        "fit": "train a model",
        "resume": "continue or extend a run",
        "launch": "train with several workers on this machine",
        "evaluate": "evaluate a model on labeled images",
        "predict": "classify image files",
        "probe": "evaluate a model's frozen features",
        "push": "share a finished run on Hugging Face",
        "recipes": "list the recipes, or print one",
        "compare": "train recipes on the same images",
        "study": "run one of the paper's experiments",
        "data-speed": "measure a recipe's input pipeline",
        "tpu-check": "check, without a TPU, that a recipe runs on one",
        "baselines": "compare finished runs with scikit-learn",
    },
    "keras_vit": {
        "info": "parameters, FLOPs, tokens, memory; or what a file is",
        "list": "list the published weights",
        "convert": "write a checkpoint in another project's format",
        "inspect": "draw what a model has learned",
    },
    "keras_vit.serving": {
        "export": "write a model as a versioned SavedModel",
        "versions": "list a model's versions and labels",
        "promote": "move a label's version to `stable`",
        "rollback": "return to the previous version",
        "copy": "copy versions, complete or not at all",
        "prune": "remove old versions",
        "serve": "start the local server",
        "page": "show a model on a server in a browser",
        "classify": "classify images on a server",
        "embed": "write the embeddings of images",
        "attention": "draw attention maps",
        "status": "list the versions on a server",
        "load": "measure a server under load",
    },
}

# Exit statuses of a command that SIGTERM or Ctrl-C has stopped.
STOPPED = (os.EX_TEMPFAIL, 128 + signal.SIGINT)


def main(argv: list[str] | None = None) -> int:
    """Run a command with the arguments after its name.

    Args:
        argv: Name of the command and its arguments; default: the process's own.

    Returns:
        The command's exit status; 2 for an unknown command.
    """
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, such as `head`, has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(argv: list[str]) -> int:
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        print(_usage())
        return 0 if argv else 2
    if name == "--version":
        print(_versions())
        return 0
    for package, commands in COMMANDS.items():
        if name in commands:
            quiet_tensorflow()
            import_on_first_use("keras_vit")
            import_on_first_use("keras_vit.weights")
            try:
                importlib.import_module("keras_vit._platform")
            except ImportError as error:
                print(f"keras-vit: {error}", file=sys.stderr)
                return 2
            return importlib.import_module(f"{package}.__main__").main(argv)
    print(f"keras-vit: no command {name!r}.{_hint(name)}", file=sys.stderr)
    return 2


def import_on_first_use(package: str) -> None:
    """Run a package's `__init__` only once a name that it imports is used.

    Its modules can be imported before: `keras_vit.serving` without `keras_vit`, which
    imports Keras and TensorFlow. Most commands answer in a tenth of that time. Those
    that open `.keras` files use a name first, which registers the models.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or (loader := spec.loader) is None:
        raise ModuleNotFoundError(f"{package} must be installed", name=package)
    module = importlib.util.module_from_spec(spec)
    tree = ast.parse(Path(str(spec.origin)).read_text("utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names}

    def load(attribute: str) -> object:
        if attribute not in names:
            raise AttributeError(f"{package} has no attribute {attribute!r}")
        del module.__getattr__
        loader.exec_module(module)
        return getattr(module, attribute)

    module.__getattr__ = load  # type: ignore[method-assign]
    sys.modules[package] = module


def quiet_tensorflow() -> None:
    """Let TensorFlow, once it is imported, print fatal errors only.

    Whatever else goes wrong is an exception. `TF_CPP_MIN_LOG_LEVEL` wins where it is
    set: 0 for all lines.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, _QuietTensorFlow())


class _QuietTensorFlow(importlib.abc.MetaPathFinder):
    """Sets the level of absl's log as TensorFlow's libraries are loaded.

    XLA, MLIR and the CUDA plug-ins log by absl, which does not read the variable, and
    TensorFlow 2.21 logs while they are loaded, before a level can be set.
    """

    def find_spec(self, fullname, path=None, target=None):
        """Find TensorFlow; nothing else, so that the next finder goes on.

        It may be called several times: packages look whether there is a TensorFlow.
        """
        if fullname != "tensorflow":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_quietly(module):
                sys.meta_path.remove(self)
                with contextlib.ExitStack() as stack:
                    with contextlib.suppress(OSError, ValueError):
                        level = int(os.environ["TF_CPP_MIN_LOG_LEVEL"])
                        if level > 0:
                            stack.enter_context(_without_log_lines(level))
                        for folder in module.__path__:
                            _set_absl_log_level(Path(folder), level)
                    load(module)

            spec.loader.exec_module = load_quietly  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _without_log_lines(level: int) -> Iterator[None]:
    """Drop absl's lines below a level, and nothing else, from standard error.

    Another process filters, so that a fatal line arrives when this one aborts.
    """
    script = f"/^[{'IWE'[:level]}]0000 /d;/^WARNING: All log messages before absl/d"
    stderr = os.dup(2)
    try:
        with subprocess.Popen(
            ["sed", "-u", script], stdin=subprocess.PIPE, stdout=stderr
        ) as sed:
            os.dup2(sed.stdin.fileno(), 2)  # type: ignore[union-attr]
            try:
                yield
            finally:
                os.dup2(stderr, 2)
    finally:
        os.close(stderr)


def _set_absl_log_level(folder: Path, level: int) -> None:
    """Call `absl::SetMinLogLevel`, whose symbol contains absl's version."""
    symbol = rb"_ZN4absl\w*?14SetMinLogLevelENS\d*_18LogSeverityAtLeastE"
    for path in folder.glob("libtensorflow_framework.*"):
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents,
        ):
            found = re.search(symbol, contents)
            name = found and found[0].decode()
        if name:
            getattr(ctypes.CDLL(str(path)), name)(level)


def _versions() -> str:
    """The versions that a bug report needs, without importing anything large."""
    import_on_first_use("keras_vit")
    from keras_vit._version import __version__

    others = ", ".join(
        f"{package} {importlib.metadata.version(package)}"
        for package in ("keras", "tensorflow")
    )
    return f"keras-vit {__version__} ({others}, Python {platform.python_version()})"


def _usage() -> str:
    lines = ["usage: keras-vit COMMAND ...", "       keras-vit --version", ""]
    for commands in COMMANDS.values():
        lines += [f"  {name:12}{about}" for name, about in commands.items()]
        lines.append("")
    return "\n".join([*lines, "COMMAND --help: more"])


def _hint(name: str) -> str:
    names = [each for commands in COMMANDS.values() for each in commands]
    similar = difflib.get_close_matches(name, names, n=1)
    if similar:
        return f" Did you mean {similar[0]!r}?"
    return f" There are: {', '.join(names)}"


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


if __name__ == "__main__":
    command_line()
