"""The local server's flags and configuration files: TensorFlow Serving's own."""

import dataclasses

import pytest
from google.protobuf import text_format

from serving.local.config import (
    ModelConfig,
    aspired_versions,
    config_of,
    folder_of,
    metrics_path,
)
from serving.local.errors import InvalidArgument, ServingError, StartError, UsageError
from serving.local.flags import NOT_HONOURED, ServerOptions, parse_flags

# `tensorflow_model_server --help` of 2.20.0.
ALL_FLAGS = """
port grpc_socket_path rest_api_port rest_api_num_threads rest_api_timeout_in_ms
rest_api_enable_cors_support enable_batching
allow_version_labels_for_unavailable_models batching_parameters_file
enable_per_model_batching_parameters model_config_file
model_config_file_poll_wait_seconds model_name model_base_path num_load_threads
num_unload_threads max_num_load_retries load_retry_interval_micros
file_system_poll_wait_seconds flush_filesystem_caches tensorflow_session_parallelism
tensorflow_session_config_file tensorflow_intra_op_parallelism
tensorflow_inter_op_parallelism use_alts_credentials ssl_config_file
platform_config_file per_process_gpu_memory_fraction saved_model_tags
grpc_channel_arguments grpc_max_threads enable_model_warmup
num_request_iterations_for_warmup version monitoring_config_file
remove_unused_fields_from_bundle_metagraph prefer_tflite_model num_tflite_pools
num_tflite_interpreters_per_pool enable_signature_method_name_check
xla_cpu_compilation_enabled xla_gpu_compilation_enabled enable_profiler
thread_pool_factory_config_file mixed_precision skip_initialize_tpu
enable_grpc_healthcheck_service enable_serialization_as_tensor_content
"""


def test_every_flag_of_tensorflow_serving_is_known_and_no_other():
    honoured = [field.name for field in dataclasses.fields(ServerOptions)]
    assert sorted([*honoured, *NOT_HONOURED]) == sorted(ALL_FLAGS.split())


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
    ("argument", "text"),
    [
        ("--model_nam=x", "unknown flag --model_nam; close to it: --model_name"),
        ("--zzz", "unknown flag --zzz. The flags"),
        ("digits", "every argument is a --flag=value. Received: digits"),
        ("--port=abc", "invalid int value: 'abc'"),
        ("--port=70000", "--port must be a port, 0 to 65535. Received: 70000"),
        ("--rest_api_num_threads=0", "must be 1 or more. Received: 0"),
        ("--enable_model_warmup=maybe", "wanted true or false. Received: maybe"),
        ("--enable_batching", "--enable_batching is not honoured by the local server"),
    ],
)
def test_wrong_flags_are_told(argument, text):
    with pytest.raises(UsageError) as caught:
        parse_flags([argument])
    assert text in str(caught.value)


@pytest.mark.parametrize("name", NOT_HONOURED)
def test_flags_that_are_not_honoured_pass_with_their_harmless_value(name):
    harmless = NOT_HONOURED[name].harmless
    text = str(harmless).lower() if isinstance(harmless, bool) else str(harmless)
    assert parse_flags([f"--{name}={text}"]) == ServerOptions()


def test_session_threads_are_given_once():
    with pytest.raises(UsageError, match="tensorflow_session_parallelism"):
        parse_flags(
            [
                "--tensorflow_session_parallelism=1",
                "--tensorflow_intra_op_parallelism=1",
            ]
        )


def config(text):
    return text_format.Parse(text, ModelConfig(name="m"))


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", [12]),
        ("latest {}", [12]),
        ("latest { num_versions: 2 }", [7, 12]),
        ("all {}", [1, 7, 12]),
        ("specific { versions: 7 versions: 99 }", [7]),
    ],
)
def test_policies_choose_among_the_numbered_folders(tmp_path, policy, versions):
    for name in ("1", "0007", "12", ".staging-13", "v14", "15x"):
        (tmp_path / name).mkdir()
    model = config(f'base_path: "{tmp_path}" model_version_policy {{ {policy} }}')
    assert aspired_versions(model) == versions
    assert folder_of(str(tmp_path), 7) == str(tmp_path / "0007")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("model_config_list {", StartError, "Error parsing text-format"),
        ("", StartError, "names no model"),
        (
            'model_config_list { config { name: "a" base_path: "rel" } }',
            InvalidArgument,
            "Expected model a to have an absolute path or URI; got base_path()=rel",
        ),
        (
            'model_config_list { config { name: "a" base_path: "/a" } '
            'config { name: "a" base_path: "/b" } }',
            InvalidArgument,
            "Illegal to list model a multiple times in config list",
        ),
    ],
)
def test_configuration_files_that_are_refused(tmp_path, text, error, message):
    path = tmp_path / "models.config"
    path.write_text(text)
    with pytest.raises(error) as caught:
        config_of(ServerOptions(model_config_file=str(path)))
    assert message in str(caught.value)


def test_missing_files_are_named():
    with pytest.raises(ServingError, match="cannot read /nope/models.config"):
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
