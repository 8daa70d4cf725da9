"""Which served model a command is about: its folder, config file, name and server."""

import argparse
import pathlib
import shlex
from typing import Any, NamedTuple


class Target(NamedTuple):
    """A served model: where its versions are, and what says which are served.

    Attributes:
        folder: The model's folder.
        config: The server's model config file.
        name: The model's name in it.
        rest: URL of the server's REST interface, if it is to be watched.
    """

    folder: pathlib.Path
    config: pathlib.Path
    name: str
    rest: str | None

    def command(self, version: int, label: str) -> str:
        """The command line that gives a version a label."""
        return (
            f"python -m serving promote {self.folder} --config {self.config} "
            f"--name {self.name} --version {version} --to {label}"
        )

    def serve_command(self, has_labels: bool) -> str:
        """The command line of a local server that follows the config file.

        Args:
            has_labels: Whether labels are in the file when a server starts, which takes
                one for a version that it has yet to load only if it is told to.
        """
        flags = [
            f"--model_config_file={self.config}",
            "--model_config_file_poll_wait_seconds=10",
            *(["--allow_version_labels_for_unavailable_models"] if has_labels else []),
        ]
        return shlex.join(["python", "-m", "serving", "serve", *flags])


def local_folder(text: str) -> pathlib.Path:
    """A path on this machine, for argparse."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            "must be a folder of this machine, where a version can appear in one "
            f"step. Received: {text}. Copy versions from there, saved_model.pb last"
        )
    return pathlib.Path(text)


def add_arguments(group: Any, required: bool = False) -> None:
    """Adds the flags that make a `Target`, but for --rest.

    Args:
        group: A parser or a group of one.
        required: Whether there must be a config file.
    """
    group.add_argument(
        "--config",
        type=pathlib.Path,
        required=required,
        metavar="FILE",
        help="the server's model config file (--model_config_file)",
    )
    group.add_argument(
        "--name", help="the model's name in it; default: the folder's name"
    )


def add_rest(group: Any, purpose: str) -> None:
    """Adds the address of a server to look at, and what for."""
    group.add_argument(
        "--rest",
        metavar="URL",
        help=f"the server's REST interface, such as http://127.0.0.1:8501, {purpose}",
    )


def add_served_from(group: Any) -> None:
    """Adds the flag that a model's new entry in the config file needs."""
    group.add_argument(
        "--served-from",
        metavar="PATH",
        help="the folder as the server sees it, in a container for example, where the "
        "config file has no such model yet; default: its absolute path",
    )


def target_of(arguments: argparse.Namespace, folder: pathlib.Path) -> Target:
    """The target that the flags of `add_arguments` name."""
    name = arguments.name or folder.absolute().name
    rest = getattr(arguments, "rest", None)  # not a flag of every command
    return Target(folder, arguments.config, name, rest)
