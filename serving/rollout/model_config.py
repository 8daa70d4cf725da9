"""TensorFlow Serving's model config file: read, changed by one writer, replaced whole.

The file is the only place that says which versions are served and where labels point.
It is replaced by a rename, so that a server reads the old one or the new one. In a
container mount its folder: a mounted file would stay the old one.
"""

import contextlib
import os
import pathlib
import re
import shutil
from collections.abc import Iterator

from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import (
    ModelConfig,
    ModelServerConfig,
)

from ..errors import ExportError
from .versions import flush, one_writer

PLATFORM = "tensorflow"


def read(path: pathlib.Path) -> ModelServerConfig:
    """Reads a model config file; one that does not exist is empty.

    Raises:
        ExportError: It is none, or cannot be read.
    """
    return _parse(path, _text(path))


@contextlib.contextmanager
def changing(path: pathlib.Path) -> Iterator[ModelServerConfig]:
    """Gives the file's message to change; it is written when the block ends well.

    Comments at the head of the file stay.

    Args:
        path: The file; made when it does not exist.

    Raises:
        ExportError: It is no model config file, has comments that would be lost, or
            cannot be written.
    """
    path = pathlib.Path(os.path.realpath(path))  # a link stays one
    try:
        with one_writer(path.parent):
            text = _text(path)
            config = _parse(path, text)
            before = config.SerializeToString(deterministic=True)
            yield config
            if config.SerializeToString(deterministic=True) != before:
                if not path.exists():
                    print(f"{path}: a new file, for a server's --model_config_file")
                _replace(path, _head(path, text) + text_format.MessageToString(config))
    except OSError as error:
        raise ExportError(f"{path}: cannot be written: {error.strerror}") from None


def entry(config: ModelServerConfig, name: str) -> ModelConfig | None:
    """A model's entry; None if there is none."""
    for model in config.model_config_list.config:
        if model.name == name:
            return model
    return None


def add_entry(config: ModelServerConfig, name: str, base_path: str) -> ModelConfig:
    """A new entry of a model, of which the newest version is served."""
    return config.model_config_list.config.add(
        name=name, base_path=base_path, model_platform=PLATFORM
    )


def put_entry(config: ModelServerConfig, name: str, model: ModelConfig | None) -> None:
    """Gives a model this entry, or none."""
    entries = config.model_config_list.config
    present = entry(config, name)
    if model is not None:
        (present or entries.add()).CopyFrom(model)
    elif present is not None:
        entries.remove(present)


def served(model: ModelConfig, versions: list[int]) -> list[int]:
    """The versions that an entry's policy has a server load.

    Args:
        model: The entry.
        versions: Those on the disk, ascending.
    """
    policy = model.model_version_policy
    match policy.WhichOneof("policy_choice"):
        case "all":
            return versions
        case "specific":
            return sorted(policy.specific.versions)
    return versions[-(policy.latest.num_versions or 1) :]


def serve(model: ModelConfig, versions: set[int]) -> None:
    """Has a server load these versions and no others; the policy `all` stays."""
    policy = model.model_version_policy
    if policy.WhichOneof("policy_choice") != "all":
        policy.specific.ClearField("versions")
        policy.specific.versions.extend(sorted(versions))


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{path}: cannot be read: {error}") from None


def _parse(path: pathlib.Path, text: str) -> ModelServerConfig:
    try:
        config = text_format.Parse(text, ModelServerConfig())
    except text_format.ParseError as error:
        reason = " ".join(str(error).split())
        raise ExportError(f"{path}: no model config file: {reason}") from None
    if config.WhichOneof("config") == "custom_model_config":
        raise ExportError(f"{path}: has no model_config_list but a custom config")
    return config


def _head(path: pathlib.Path, text: str) -> str:
    """The comments and empty lines that the file begins with."""
    match = re.match(r"(?:[ \t]*(?:#.*)?\n)*", text)
    head = match[0] if match else ""
    # Without what stands in quotes, where # is a character as any other.
    rest = re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', "", text[len(head) :])
    if "#" in rest:
        raise ExportError(
            f"{path}: has comments between its fields, which would be lost; move them "
            "to the head of the file"
        )
    return head


def _replace(path: pathlib.Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        if path.exists():
            shutil.copymode(path, beside)
        flush(beside)
        os.replace(beside, path)
        flush(path.parent)
    finally:
        beside.unlink(missing_ok=True)
