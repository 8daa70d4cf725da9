"""The local server's flags and configuration files: TensorFlow Serving's own."""

import dataclasses
import os

import pytest

from keras_vit.common.command_line import UsageError
from serving.local.config import config_of, metrics_path
from serving.local.flags import NOT_HONORED, ServerOptions, parse_flags
from serving.local.session import session_config
from serving.local.status_errors import StartError, StatusError

# Name, default and type, as `tensorflow_model_server --help` of 2.20.0 lists them.
TENSORFLOW_SERVING = """
port 8500 int32
grpc_socket_path "" string
rest_api_port 0 int32
rest_api_num_threads 4xCPUs int32
rest_api_timeout_in_ms 30000 int32
rest_api_enable_cors_support false bool
enable_batching false bool
allow_version_labels_for_unavailable_models false bool
batching_parameters_file "" string
enable_per_model_batching_parameters false bool
model_config_file "" string
model_config_file_poll_wait_seconds 0 int32
model_name "default" string
model_base_path "" string
num_load_threads 0 int32
num_unload_threads 0 int32
max_num_load_retries 5 int32
load_retry_interval_micros 60000000 int64
file_system_poll_wait_seconds 1 int32
flush_filesystem_caches true bool
tensorflow_session_parallelism 0 int64
tensorflow_session_config_file "" string
tensorflow_intra_op_parallelism 0 int64
tensorflow_inter_op_parallelism 0 int64
use_alts_credentials false bool
ssl_config_file "" string
platform_config_file "" string
per_process_gpu_memory_fraction 0.000000 float
saved_model_tags "serve" string
grpc_channel_arguments "" string
grpc_max_threads 4xCPUs int32
enable_model_warmup true bool
num_request_iterations_for_warmup 0 int32
version false bool
monitoring_config_file "" string
remove_unused_fields_from_bundle_metagraph true bool
prefer_tflite_model false bool
num_tflite_pools 2 int32
num_tflite_interpreters_per_pool 1 int32
enable_signature_method_name_check false bool
xla_cpu_compilation_enabled false bool
xla_gpu_compilation_enabled false bool
enable_profiler true bool
thread_pool_factory_config_file "" string
mixed_precision "" string
skip_initialize_tpu false bool
enable_grpc_healthcheck_service false bool
enable_serialization_as_tensor_content false bool
"""
TYPES = {"int32": int, "int64": int, "bool": bool, "string": str, "float": float}
# Ours differ: REST is on, as in the image; while the server starts nothing is retried.
OWN_DEFAULTS = {"rest_api_port": 8501, "max_num_load_retries": None}
OWN_FLAGS = {"allowed_host": ()}


def test_every_flag_of_tensorflow_serving_is_known_with_its_default_and_type():
    ours = {field.name: field.default for field in dataclasses.fields(ServerOptions)}
    ours |= {name: flag.default for name, flag in NOT_HONORED.items()}
    assert OWN_FLAGS.items() <= ours.items()
    lines = [line.split() for line in TENSORFLOW_SERVING.strip().splitlines()]
    assert sorted(ours) == sorted([*OWN_FLAGS, *(name for name, _, _ in lines)])
    for name, default, kind in lines:
        if name in OWN_DEFAULTS:
            assert ours[name] == OWN_DEFAULTS[name]
            continue
        assert type(ours[name]) is TYPES[kind], name
        if default == "4xCPUs":
            assert ours[name] == max(32, 4 * os.cpu_count())
        elif kind == "bool":
            assert ours[name] is (default == "true"), name
        else:
            assert ours[name] == TYPES[kind](default.strip('"')), name


@pytest.mark.parametrize("spins_not", [True, False])
def test_a_session_config_overrides_the_servers_own(tmp_path, spins_not):
    """`experimental` too, of which the server has settings itself."""
    file = tmp_path / "session.config"
    file.write_text(
        "intra_op_parallelism_threads: 3 inter_op_parallelism_threads: 5\n"
        f"experimental {{ disable_thread_spinning: {str(spins_not).lower()} }}"
    )
    flags = [f"--tensorflow_session_config_file={file}"]
    config = session_config(
        parse_flags([*flags, "--tensorflow_intra_op_parallelism=2"])
    )
    assert config.experimental.disable_thread_spinning is spins_not
    assert config.intra_op_parallelism_threads == 2
    assert config.inter_op_parallelism_threads == 5


def test_threads_do_not_spin_by_default(tmp_path):
    file = tmp_path / "session.config"
    file.write_text("inter_op_parallelism_threads: 5")
    for flags in ([], [f"--tensorflow_session_config_file={file}"]):
        assert session_config(parse_flags(flags)).experimental.disable_thread_spinning


@pytest.mark.parametrize(
    "arguments",
    [
        ["--port=1", "--enable_model_warmup=false", "--version"],
        ["--port", "1", "--enable_model_warmup", "false", "--version=true"],
    ],
)
def test_values_after_an_equals_sign_or_a_blank(arguments):
    options = parse_flags(arguments)
    assert (options.port, options.enable_model_warmup, options.version) == (
        1,
        False,
        True,
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--model_nam=x", "no --model_nam. Did you mean --model_name?"),
        ("--zzz", "there is no --zzz (--help"),
        ("digits", "one argument too many: 'digits'"),
        ("--port=abc", "invalid int value: 'abc'"),
        ("--port=70000", "--port must be a port, 0 to 65535. Received: 70000"),
        ("--rest_api_num_threads=0", "must be 1 or more. Received: 0"),
        ("--enable_model_warmup=maybe", "wanted true or false. Received: maybe"),
        ("--rest_api_timeout_in_ms=0", "must be > 0. Received: 0"),
        ("--grpc_channel_arguments=abc", "must be name=value, separated by commas"),
        ("--mixed_precision=bfloat16", "--mixed_precision is not honored by the"),
        (
            "--tensorflow_session_parallelism=1 --tensorflow_intra_op_parallelism=1",
            "tensorflow_session_parallelism",
        ),
        (
            "--batching_parameters_file=/a",
            "server_options.batching_parameters_file is set without setting "
            "server_options.enable_batching to true.",
        ),
    ],
)
def test_invalid_flags_are_reported(arguments, text):
    with pytest.raises(UsageError) as caught:
        parse_flags(arguments.split())
    assert text in str(caught.value)


def on_the_command_line(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("name", NOT_HONORED)
def test_a_flag_that_is_not_honored_is_accepted_with_its_harmless_value(name):
    flag = NOT_HONORED[name]
    value = flag.default if flag.harmless is None else flag.harmless
    argument = f"--{name}={on_the_command_line(value)}"
    assert parse_flags([argument]) == ServerOptions()


@pytest.mark.parametrize(
    "name", [name for name, flag in NOT_HONORED.items() if flag.harmless is not None]
)
def test_a_flag_that_is_not_honored_is_refused_with_a_reason(name):
    flag = NOT_HONORED[name]
    other = not flag.harmless if isinstance(flag.harmless, bool) else "something"
    with pytest.raises(UsageError) as caught:
        parse_flags([f"--{name}={on_the_command_line(other)}"])
    assert f"--{name} is not honored by the local server" in str(caught.value)
    assert flag.reason in str(caught.value)


def test_help_lists_honored_and_refused_flags(capsys):
    with pytest.raises(SystemExit):
        parse_flags(["--help"])
    honored, rest = capsys.readouterr().out.split("accepted without effect:")
    accepted, refused = rest.split("not honored: an error, but for one value:")
    assert "--num_unload_threads" in honored
    assert "--flush_filesystem_caches" in accepted
    assert "--mixed_precision" in refused


@pytest.mark.parametrize("path", ["models/m", "./models/m/", "../here/models/m"])
def test_a_relative_base_path_is_resolved_from_the_working_directory(
    tmp_path, monkeypatch, caplog, path
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    absolute = str(tmp_path / "here" / "models" / "m")
    with caplog.at_level("INFO", "serving.local"):
        config = config_of(ServerOptions(model_name="m", model_base_path=path))
    assert config.model_config_list.config[0].base_path == absolute
    assert caplog.messages == [
        f"--model_base_path: TensorFlow Serving needs it as {absolute}"
    ]


def test_missing_files_are_named():
    with pytest.raises(StatusError, match="cannot read /nope/models.config"):
        config_of(ServerOptions(model_config_file="/nope/models.config"))
    with pytest.raises(StartError, match="nothing to serve"):
        config_of(ServerOptions())


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("prometheus_config { enable: true }", "/monitoring/prometheus/metrics"),
        ('prometheus_config { enable: true path: "/m" }', "/m"),
        ('prometheus_config { enable: false path: "/m" }', None),
        ("", None),
    ],
)
def test_monitoring_files_name_the_metrics_page(tmp_path, text, path):
    file = tmp_path / "monitoring.config"
    file.write_text(text)
    assert metrics_path(str(file)) == path
