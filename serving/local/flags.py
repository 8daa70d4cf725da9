"""The flags of `keras-vit serve`: TensorFlow Serving's own names and types.

A field of `ServerOptions` is a flag that is honored. `NOT_HONORED` holds the other
flags of tensorflow_model_server 2.20: some have no effect here and are accepted; the
others are refused with a reason, except for the value with which TensorFlow Serving
behaves as the local server.
"""

import argparse
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from keras_vit.common.command_line import Parser

from ..http_limits import is_host_name
from .status_errors import UsageError

# A thread is blocked while its request runs.
_REQUESTS = max(32, 4 * (os.cpu_count() or 1))


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """The flags of the local server, with TensorFlow Serving's defaults.

    `allowed_host` is our own: names under which clients reach this server, besides
    localhost.

    Four defaults differ: `rest_api_num_threads` and `grpc_max_threads` are at least 32,
    as on eight cores, so that the graph can batch requests on small machines, too;
    `rest_api_port` is 8501 as in TensorFlow Serving's container image (the bare binary
    has REST off); port 0 means a free port; and at start-up a failed load is retried
    only if `max_num_load_retries` is given, since TensorFlow Serving would keep both
    ports closed for five minutes.
    """

    port: int = 8500
    grpc_socket_path: str = ""
    rest_api_port: int = 8501
    rest_api_num_threads: int = _REQUESTS
    rest_api_timeout_in_ms: int = 30_000
    rest_api_enable_cors_support: bool = False
    enable_batching: bool = False
    batching_parameters_file: str = ""
    enable_per_model_batching_parameters: bool = False
    allow_version_labels_for_unavailable_models: bool = False
    model_config_file: str = ""
    model_config_file_poll_wait_seconds: int = 0
    model_name: str = "default"
    model_base_path: str = ""
    num_load_threads: int = 0
    num_unload_threads: int = 0
    max_num_load_retries: int | None = None
    load_retry_interval_micros: int = 60_000_000
    file_system_poll_wait_seconds: int = 1
    tensorflow_session_parallelism: int = 0
    tensorflow_session_config_file: str = ""
    tensorflow_intra_op_parallelism: int = 0
    tensorflow_inter_op_parallelism: int = 0
    per_process_gpu_memory_fraction: float = 0.0
    saved_model_tags: str = "serve"
    grpc_channel_arguments: str = ""
    grpc_max_threads: int = _REQUESTS
    enable_model_warmup: bool = True
    num_request_iterations_for_warmup: int = 0
    version: bool = False
    monitoring_config_file: str = ""
    enable_grpc_healthcheck_service: bool = False
    enable_serialization_as_tensor_content: bool = False
    allowed_host: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse invalid values and combinations."""
        for name in ("port", "rest_api_port"):
            _need(self, name, 0 <= getattr(self, name) < 65536, "a port, 0 to 65535")
        for name in ("rest_api_num_threads", "grpc_max_threads"):
            _need(self, name, getattr(self, name) > 0, "1 or more")
        _need(self, "rest_api_timeout_in_ms", self.rest_api_timeout_in_ms > 0, "> 0")
        hosts = all(map(is_host_name, self.allowed_host))
        _need(self, "allowed_host", hosts, "a host name without a port")
        for argument in filter(None, self.grpc_channel_arguments.split(",")):
            wanted = "name=value, separated by commas"
            _need(self, "grpc_channel_arguments", argument.find("=") > 0, wanted)
        if self.batching_parameters_file and not self.enable_batching:
            raise UsageError(
                "server_options.batching_parameters_file is set without setting "
                "server_options.enable_batching to true."
            )
        if self.tensorflow_session_parallelism and (
            self.tensorflow_intra_op_parallelism or self.tensorflow_inter_op_parallelism
        ):
            raise UsageError(
                "--tensorflow_session_parallelism sets the intra-op and the inter-op "
                "threads: give either it or --tensorflow_intra_op_parallelism and "
                "--tensorflow_inter_op_parallelism"
            )


def _need(options: ServerOptions, name: str, holds: bool, wanted: str) -> None:
    if not holds:
        received = getattr(options, name)
        raise UsageError(f"--{name} must be {wanted}. Received: {received}")


@dataclasses.dataclass(frozen=True)
class NotHonored:
    """A flag of TensorFlow Serving that the local server does not honor.

    Attributes:
        harmless: the only value that is accepted; None if every one is.
    """

    default: bool | int | str
    reason: str
    harmless: bool | int | str | None = None


_TFLITE = "TensorFlow Lite models are not served here"
_LOOPBACK = "gRPC is plain text on loopback; put a gateway in front for TLS"
_XLA = "models run as they do with XLA off, TensorFlow Serving's default"
_THREADS = "threads are set by --tensorflow_*_parallelism only"
_NOT_READ = "the files of a model are read once"
_WHOLE = "the graph is kept as it is"
_METHOD_NAME = "the method_name of a signature is not looked at"

NOT_HONORED = {
    "flush_filesystem_caches": NotHonored(True, _NOT_READ),
    "use_alts_credentials": NotHonored(False, _LOOPBACK, False),
    "ssl_config_file": NotHonored("", _LOOPBACK, ""),
    "platform_config_file": NotHonored("", "the only platform is tensorflow", ""),
    "remove_unused_fields_from_bundle_metagraph": NotHonored(True, _WHOLE),
    "prefer_tflite_model": NotHonored(False, _TFLITE, False),
    "num_tflite_pools": NotHonored(2, _TFLITE),
    "num_tflite_interpreters_per_pool": NotHonored(1, _TFLITE),
    "xla_cpu_compilation_enabled": NotHonored(False, _XLA, False),
    "xla_gpu_compilation_enabled": NotHonored(False, _XLA, False),
    "enable_profiler": NotHonored(True, "there is no profiler service here", False),
    "thread_pool_factory_config_file": NotHonored("", _THREADS, ""),
    "enable_signature_method_name_check": NotHonored(False, _METHOD_NAME, False),
    "mixed_precision": NotHonored("", "models run in the precision they hold", ""),
    "skip_initialize_tpu": NotHonored(False, "no TPU is used here"),
}


def parse_flags(arguments: Sequence[str]) -> ServerOptions:
    """Parse `--flag=value`, `--flag value`, and `--flag` for booleans.

    Raises:
        command_line.UsageError: an unknown flag (the one meant is named), an invalid
            value, or a flag that the local server does not honor.
    """
    values: dict[str, Any] = vars(_parser().parse_args(list(arguments)))
    for name in NOT_HONORED.keys() & values.keys():
        _accept(name, values.pop(name))
    values["allowed_host"] = tuple(values.get("allowed_host", ()))
    return ServerOptions(**values)


def _parser() -> Parser:
    parser = Parser(
        prog="keras-vit serve",
        description="Serves SavedModels on loopback as TensorFlow Serving does.",
        argument_default=argparse.SUPPRESS,
    )
    honored = parser.add_argument_group("honored")
    for field in dataclasses.fields(ServerOptions):
        _add_flag(
            honored, field.name, field.default, f"default: {_text(field.default)}"
        )
    without = parser.add_argument_group("accepted without effect")
    refused = parser.add_argument_group("not honored: an error, but for one value")
    for name, flag in NOT_HONORED.items():
        if flag.harmless is None:
            _add_flag(without, name, flag.default, flag.reason)
        else:
            text = f"{flag.reason}; accepted: {_text(flag.harmless)}"
            _add_flag(refused, name, flag.default, text)
    return parser


def _accept(name: str, value: Any) -> None:
    flag = NOT_HONORED[name]
    if flag.harmless is not None and value != flag.harmless:
        raise UsageError(
            f"--{name} is not honored by the local server: {flag.reason}. "
            f"Leave it out or give --{name}={_text(flag.harmless)}"
        )


def _add_flag(
    group: argparse._ArgumentGroup, name: str, default: Any, text: str
) -> None:
    kind = int if default is None else type(default)
    if kind is tuple:
        group.add_argument(f"--{name}", action="append", metavar="STR", help=text)
    elif kind is bool:
        group.add_argument(
            f"--{name}", nargs="?", const=True, type=_truth, metavar="BOOL", help=text
        )
    else:
        group.add_argument(
            f"--{name}", type=kind, metavar=kind.__name__.upper(), help=text
        )


def _truth(text: str) -> bool:
    truths = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in truths:
        raise argparse.ArgumentTypeError(f"wanted true or false. Received: {text}")
    return truths[text.lower()]


def _text(value: Any) -> str:
    if value is None:
        return "5; 0 while the server starts"
    return str(value).lower() if isinstance(value, bool) else f"{value}" or '""'
