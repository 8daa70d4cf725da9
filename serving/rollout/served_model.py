"""The served model that a command is about: folder, config file, name, server."""

import argparse
import pathlib
import shlex
from typing import Any, NamedTuple


class ServedModel(NamedTuple):
    """A served model: its versions, and the config file that says which are served.

    Attributes:
        rest: URL of the server's REST interface, to wait for it.
    """

    folder: pathlib.Path
    config: pathlib.Path
    name: str
    rest: str | None

    def command(self, version: int, label: str) -> str:
        """The command line that moves a label to a version."""
        return (
            f"keras-vit promote {self.folder} --config {self.config} "
            f"--name {self.name} --version {version} --to {label}"
        )

    def serve_command(self, has_labels: bool) -> str:
        """The command line of a local server that polls the config file.

        Args:
            has_labels: Whether the file has labels when the server starts; it accepts
                labels of versions that are not loaded yet only with a flag.
        """
        flags = [
            f"--model_config_file={self.config}",
            "--model_config_file_poll_wait_seconds=10",
            *(["--allow_version_labels_for_unavailable_models"] if has_labels else []),
        ]
        return shlex.join(["keras-vit", "serve", *flags])


def local_folder(text: str) -> pathlib.Path:
    """The type of an argument: a path on this machine."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            "must be a folder on this machine, where a version can appear atomically. "
            f"Received: {text}. Copy versions from there, saved_model.pb last"
        )
    return pathlib.Path(text)


def add_arguments(group: Any, required: bool = False) -> None:
    """Add the flags of a `ServedModel`, except --rest."""
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
    """Add the address of a server, and what it is used for."""
    group.add_argument(
        "--rest",
        metavar="URL",
        help=f"the server's REST interface, such as http://127.0.0.1:8501, {purpose}",
    )


def add_served_from(group: Any) -> None:
    """Add the flag for a model's new entry in the config file."""
    group.add_argument(
        "--served_from",
        metavar="PATH",
        help="path of the folder on the server, such as in a container, for a model "
        "that is new in the config file; default: its absolute path",
    )


def served_model_of(arguments: argparse.Namespace, folder: pathlib.Path) -> ServedModel:
    """The target that the flags of `add_arguments` describe."""
    name = arguments.name or folder.absolute().name
    rest = getattr(arguments, "rest", None)  # only some commands have this flag
    return ServedModel(folder, arguments.config, name, rest)
