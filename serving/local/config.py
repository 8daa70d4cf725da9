"""Read and check TensorFlow Serving's configuration files.

Does not import TensorFlow, so that mistakes are reported at once. `StartError` is for a
missing or invalid file, `InvalidArgument` for what TensorFlow Serving refuses as well.
"""

import logging
import os
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import (
    MODEL_TYPE_UNSPECIFIED,
    TENSORFLOW,
    ModelConfig,
    ModelServerConfig,
)

from ..batching_parameters import message_class
from .flags import ServerOptions
from .status_errors import InvalidArgument, NotFound, StartError, StatusError

logger = logging.getLogger(__name__)

PLATFORM = "tensorflow"
METRICS_PATH = "/monitoring/prometheus/metrics"
# Missing from tensorflow-serving-api.
_MONITORING_CONFIG = """
name: "monitoring_config.proto" package: "tensorflow.serving" syntax: "proto3"
message_type {
  name: "PrometheusConfig"
  field { name: "enable" number: 1 type: TYPE_BOOL label: LABEL_OPTIONAL }
  field { name: "path" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
}
message_type {
  name: "MonitoringConfig"
  field { name: "prometheus_config" number: 1 type: TYPE_MESSAGE label: LABEL_OPTIONAL
          type_name: ".tensorflow.serving.PrometheusConfig" }
}
"""


def model_config(name: str, base_path: str) -> ModelConfig:
    """The configuration of a model whose newest version is served."""
    return ModelConfig(name=name, base_path=base_path, model_platform=PLATFORM)


def config_of(options: ServerOptions) -> ModelServerConfig:
    """The configuration that the flags name."""
    if options.model_config_file:
        return read_model_config(options.model_config_file)
    if not options.model_base_path:
        raise StartError(
            "nothing to serve: give --model_name and --model_base_path, "
            "or --model_config_file"
        )
    base_path = options.model_base_path
    if "://" not in base_path and not os.path.isabs(base_path):
        base_path = os.path.abspath(base_path)
        logger.info("--model_base_path: TensorFlow Serving needs it as %s", base_path)
    config = ModelServerConfig()
    config.model_config_list.config.append(model_config(options.model_name, base_path))
    check_config(config)
    return config


def read_model_config(path: str) -> ModelServerConfig:
    """Read a `--model_config_file`, a ModelServerConfig in text format."""
    config = read_text_proto(path, ModelServerConfig())
    if not config.model_config_list.config:
        raise StartError(f"{path} names no model: its model_config_list is empty")
    check_config(config)
    return config


def check_config(config: ModelServerConfig) -> None:
    """Check a configuration: each name once, base paths local and absolute."""
    if config.WhichOneof("config") != "model_config_list":
        raise InvalidArgument(
            "ServerModelConfig type not supported by HandleReloadConfigRequest. "
            "Only ModelConfigList is currently supported"
        )
    names = set()
    for model in config.model_config_list.config:
        if model.name in names:
            raise InvalidArgument(
                f"Illegal to list model {model.name} multiple times in config list"
            )
        names.add(model.name)
    for model in config.model_config_list.config:
        if "://" in model.base_path:
            raise InvalidArgument(
                f"model {model.name}: the local server reads local folders only; "
                f"copy the model to this machine. Received: {model.base_path}"
            )
        if not os.path.isabs(model.base_path):
            raise InvalidArgument(
                f"Expected model {model.name} to have an absolute path or URI; "
                f"got base_path()={model.base_path}"
            )


def check_platform(model: ModelConfig) -> None:
    """Check that a model's platform is TensorFlow."""
    platform = platform_of(model)
    if platform != PLATFORM:
        raise InvalidArgument(
            f"Model {model.name} requests unsupported platform {platform}"
        )


def platform_of(model: ModelConfig) -> str:
    """The platform's name; the old field `model_type` counts too."""
    if model.model_type and model.model_platform:
        raise InvalidArgument(
            "Illegal setting both ModelServerConfig::model_type (deprecated) "
            "and ModelServerConfig::model_platform."
        )
    if model.model_type not in (MODEL_TYPE_UNSPECIFIED, TENSORFLOW):
        raise InvalidArgument(
            f"ModelServerConfig::model_type choice {model.model_type} not supported."
        )
    platform = PLATFORM if model.model_type else model.model_platform
    if not platform:
        raise InvalidArgument(
            "Illegal setting neither ModelServerConfig::model_type (deprecated) "
            "nor ModelServerConfig::model_platform."
        )
    return platform


def version_folders(base_path: str) -> dict[int, str]:
    """The names of the version folders by number, ascending; others are ignored."""
    try:
        names = os.listdir(base_path)
    except OSError as error:
        text = f"Could not find base path {base_path}: {error.strerror}"
        raise NotFound(text) from error
    numbered = [n for n in names if n.isascii() and n.isdigit() and int(n) < 2**63]
    # A name may have leading zeros; of several, the shortest counts.
    return {int(n): n for n in sorted(numbered, key=lambda n: (int(n), -len(n)))}


def aspired_versions(model: ModelConfig) -> list[int]:
    """The versions on disk that the policy selects, ascending."""
    versions = list(version_folders(model.base_path))
    policy = model.model_version_policy
    match policy.WhichOneof("policy_choice"):
        case "all":
            return versions
        case "specific":
            wanted = set(policy.specific.versions)
            return [version for version in versions if version in wanted]
    newest = policy.latest.num_versions or 1
    return versions[-newest:]


def metrics_path(monitoring_config_file: str) -> str | None:
    """The path of the metrics page that a monitoring config file enables, if any."""
    if not monitoring_config_file:
        return None
    config = read_text_proto(
        monitoring_config_file, message_class(_MONITORING_CONFIG, "MonitoringConfig")()
    )
    if not config.prometheus_config.enable:
        return None
    return config.prometheus_config.path or METRICS_PATH


def read_text_proto(path: str, message: Any) -> Any:
    """Read a message in text format."""
    kind = message.DESCRIPTOR.full_name
    try:
        return text_format.Parse(Path(path).read_text(encoding="utf-8"), message)
    except OSError as error:
        raise StartError(f"cannot read {path}: {error.strerror}") from error
    except (text_format.ParseError, UnicodeDecodeError) as error:
        text = " ".join(str(error).split())
        text = f"Error parsing text-format {kind} in {path}: {text}"
        raise StartError(text) from error


def check_start(config: ModelServerConfig) -> None:
    """Check platforms and base paths, before anything is loaded."""
    for model in config.model_config_list.config:
        check_platform(model)
        _check_base_path(model)


def _check_base_path(model: ModelConfig) -> None:
    try:
        versions = version_folders(model.base_path)
    except StatusError as error:
        raise StartError(f"model {model.name}: {error}") from error
    if not versions:
        raise StartError(
            f"model {model.name}: no versions in {model.base_path}; "
            "a version is a folder whose name is a number, such as 1/"
        )
    if not aspired_versions(model):
        wanted = ", ".join(map(str, model.model_version_policy.specific.versions))
        raise StartError(
            f"model {model.name}: none of the versions {wanted} is in "
            f"{model.base_path}. Received: {', '.join(map(str, versions))}"
        )
