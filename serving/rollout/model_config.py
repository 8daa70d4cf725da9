"""TensorFlow Serving's model config file: read and replaced atomically.

The file is the only place that says which versions are served and where labels point.
In a container mount its folder: a file that is mounted itself stays the old one.
"""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator

from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import (
    ModelConfig,
    ModelServerConfig,
)

from keras_vit.common.atomic_files import write_bytes
from keras_vit.common.command_line import CommandError

from .versions import one_writer

PLATFORM = "tensorflow"


def read(path: pathlib.Path) -> ModelServerConfig:
    """Read a model config file; a missing one is empty.

    Raises:
        CommandError: It is invalid, or cannot be read.
    """
    return _parse(path, _text(path))


@contextlib.contextmanager
def changing(path: pathlib.Path) -> Iterator[ModelServerConfig]:
    """Change the file, or a new one, in a block; written when that succeeds.

    Comments at the head of the file are kept.

    Raises:
        CommandError: It is invalid, has comments that would be lost, or
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
                text = _head(path, text) + text_format.MessageToString(config)
                write_bytes(path, text.encode())
    except OSError as error:
        raise CommandError(f"{path}: cannot be written: {error.strerror}") from None


def entry(config: ModelServerConfig, name: str) -> ModelConfig | None:
    """Find a model's entry, if any."""
    for model in config.model_config_list.config:
        if model.name == name:
            return model
    return None


def add_entry(config: ModelServerConfig, name: str, base_path: str) -> ModelConfig:
    """Add the entry of a model, whose newest version is served."""
    return config.model_config_list.config.add(
        name=name, base_path=base_path, model_platform=PLATFORM
    )


def put_entry(config: ModelServerConfig, name: str, model: ModelConfig | None) -> None:
    """Replace a model's entry, or remove it."""
    entries = config.model_config_list.config
    present = entry(config, name)
    if model is not None:
        (present or entries.add()).CopyFrom(model)
    elif present is not None:
        entries.remove(present)


def served(model: ModelConfig, versions: list[int]) -> list[int]:
    """The versions that a server loads by an entry's policy."""
    policy = model.model_version_policy
    match policy.WhichOneof("policy_choice"):
        case "all":
            return versions
        case "specific":
            return sorted(policy.specific.versions)
    return versions[-(policy.latest.num_versions or 1) :]


def serve(model: ModelConfig, versions: set[int]) -> None:
    """Make a server load exactly these versions; the policy `all` stays."""
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
        raise CommandError(f"{path}: cannot be read: {error}") from None


def _parse(path: pathlib.Path, text: str) -> ModelServerConfig:
    try:
        config = text_format.Parse(text, ModelServerConfig())
    except text_format.ParseError as error:
        reason = " ".join(str(error).split())
        raise CommandError(f"{path}: not a model config file: {reason}") from None
    if config.WhichOneof("config") == "custom_model_config":
        raise CommandError(
            f"{path}: must have a model_config_list. Received: a custom_model_config"
        )
    return config


def _head(path: pathlib.Path, text: str) -> str:
    """The comments and empty lines at the head of the file."""
    match = re.match(r"(?:[ \t]*(?:#.*)?\n)*", text)
    head = match[0] if match else ""
    # Quoted text may contain a #.
    rest = re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', "", text[len(head) :])
    if "#" in rest:
        raise CommandError(
            f"{path}: has comments between its fields, which would be lost; move them "
            "to the head of the file"
        )
    return head
