"""Lifecycle of the local server: start, version changes, labels, reload, stop."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from polling import wait_for
from served_versions import (
    ANSWERS,
    config,
    one_row,
    predict,
    reload,
    states,
    waiting,
    warmup_file,
)
from server_process import READY, addresses, check_stopped
from server_requests import local_server, prediction_stub, request
from tensorflow_serving.apis import prediction_service_pb2_grpc
from tensorflow_serving.config.model_server_config_pb2 import (
    TENSORFLOW,
    ModelServerConfig,
)

from serving.local import LocalServer
from serving.local.server import _GRACE, _bind
from serving.local.status_errors import StartError, StatusError


def serve(base_path, **flags):
    return local_server({"m": base_path}, **flags)


def test_without_polling_nothing_changes(publish):
    with serve(publish(1), file_system_poll_wait_seconds=0) as server:
        publish(2)
        time.sleep(1.5)
        assert states(server) == {1: "AVAILABLE"}


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (("name", "n"), "UNKNOWN", "1 model(s) did not become available"),
        (("base_path", "rel"), "INVALID_ARGUMENT", "have an absolute path or URI"),
        (("model_platform", "x"), "INVALID_ARGUMENT", "change a model's platform"),
        (
            ("model_platform", ""),
            "INVALID_ARGUMENT",
            "Illegal setting neither ModelServerConfig::model_type (deprecated) nor",
        ),
        (
            ("model_type", TENSORFLOW),
            "INVALID_ARGUMENT",
            "Illegal setting both ModelServerConfig::model_type (deprecated) and",
        ),
    ],
)
def test_a_refused_reload_says_why(publish, tmp_path, change, code, text):
    base_path = publish(1)
    with serve(base_path) as server:
        wanted = config(base_path)
        other = wanted.model_config_list.config[0]
        setattr(other, *change)
        if change[0] == "name":
            other.base_path = str(tmp_path)
        with pytest.raises(grpc.RpcError) as caught:
            reload(server, wanted)
        assert caught.value.code().name == code
        assert text in caught.value.details()


def test_a_reload_checks_names_then_labels_then_platforms(publish):
    base_path = publish(1)
    with serve(base_path) as server:
        wanted = config("relative")
        wanted.model_config_list.config.add().CopyFrom(
            wanted.model_config_list.config[0]
        )
        with pytest.raises(grpc.RpcError, match="Illegal to list model m multiple"):
            reload(server, wanted)
        wanted = config(base_path, labels={"stable": 9})
        other = wanted.model_config_list.config.add()
        other.CopyFrom(wanted.model_config_list.config[0])
        wanted.model_config_list.config[0].ClearField("version_labels")
        wanted.model_config_list.config[0].name = "new"
        wanted.model_config_list.config[0].model_platform = "x"
        with pytest.raises(grpc.RpcError, match="Request to assign label"):
            reload(server, wanted)


def test_a_reload_drops_models_that_it_does_not_name(publish):
    with serve(publish(1)) as server:
        empty = ModelServerConfig()
        empty.model_config_list.SetInParent()
        reload(server, empty)
        assert predict(server) == 404
        assert states(server) == {1: "END"}


def test_a_changed_configuration_file_is_adopted(publish, tmp_path):
    base_path = publish(1, 2)
    file = tmp_path / "models.config"
    file.write_text(str(config(base_path)))
    flags = {"model_config_file": str(file), "model_config_file_poll_wait_seconds": 1}
    with local_server(config(base_path), **flags) as server:
        assert predict(server) == ANSWERS[2]
        file.write_text("broken {")
        time.sleep(1.2)
        assert predict(server) == ANSWERS[2]
        file.write_text(str(config(base_path, "specific { versions: 1 }")))
        wait_for(lambda: predict(server) == ANSWERS[1])


def test_a_failing_warm_up_request_fails_the_load(publish):
    base_path = publish(1)
    warmup_file(base_path / "1", one_row("z"))
    with pytest.raises(StartError, match="Signature input alias: x"):
        serve(base_path).__enter__()
    with serve(base_path, enable_model_warmup=False) as server:
        assert predict(server) == ANSWERS[1]


def test_compiled_graphs_are_refused_as_in_tensorflow_serving(tmp_path):
    module = tf.Module()

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.float32, "x")], jit_compile=True
    )
    def compiled(x):
        return {"y": x + 1}

    path = str(tmp_path / "1")
    tf.saved_model.save(module, path, signatures={"serving_default": compiled})
    with pytest.raises(StartError, match="jit_compile=False"):
        serve(tmp_path).__enter__()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: path / "nope", "No such file or directory"),
        (lambda path: path, "no versions in"),
        (lambda path: (path / "1").mkdir() or path, "Could not find SavedModel"),
    ],
)
def test_folders_without_a_model_are_reported(tmp_path, make, text):
    with pytest.raises(StatusError, match=text):
        serve(make(tmp_path)).__enter__()


@pytest.mark.parametrize(
    ("flag", "status", "text"),
    [
        ("--model_nam=m", 2, "Did you mean --model_name?"),
        ("--enable_profiler=true", 2, "is not honored by the local server"),
        ("--model_base_path=/nope", 1, "Could not find base path /nope"),
        ("--model_config_file=/dev/null", 1, "names no model"),
    ],
)
def test_the_command_reports_mistakes_in_one_line(serve_command, flag, status, text):
    process = serve_command(flag)
    out, error = process.communicate(timeout=30)
    assert process.returncode == status
    assert out == ""
    assert error.count("\n") == 1
    assert text in error


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_prints_its_addresses_and_stops_on_a_signal(
    publish, serve_command, number
):
    process = serve_command("--model_name=m", f"--model_base_path={publish(1)}")
    line = process.stdout.readline()
    address = line.rpartition("gRPC ")[2].strip()
    assert line.startswith("serving m: REST http://127.0.0.1:")
    with grpc.insecure_channel(address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        assert stub.Predict(one_row("x")).outputs["y"].float_val == [12.0]
    os.kill(process.pid, number)
    check_stopped(process)


def test_two_servers_on_one_port(publish):
    base_path = publish(1)
    with serve(base_path) as server:
        ports = [
            int(address.rpartition(":")[2])
            for address in (server.rest_url, server.grpc_address)
        ]
        for interface, port in zip(("rest_port", "grpc_port"), ports, strict=True):
            with pytest.raises(StartError, match=f"127.0.0.1:{port} .*in use"):
                serve(base_path, **{interface: port}).__enter__()
        assert predict(server) == ANSWERS[1]


@pytest.mark.parametrize("models", ["models/digits", None, [("m", "models/m")]])
def test_models_must_be_a_mapping(models):
    with pytest.raises(TypeError, match=r"`models` must be base paths by model name"):
        LocalServer(models)


def test_a_port_is_taken_before_it_answers():
    with _bind(0, "rest_api_port") as first:
        port = first.getsockname()[1]
        assert refuses(f"127.0.0.1:{port}")
        with pytest.raises(StartError, match="--rest_api_port"):
            _bind(port, "rest_api_port")


def connect(address):
    """A connection to `host:port`, or to a URL."""
    host, _, port = address.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def refuses(address):
    try:
        connect(address).close()
    except ConnectionRefusedError:
        return True
    return False


def begin_request(connection, body, length):
    """Send a request to predict, and of its body as many bytes."""
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\n"
    connection.sendall(head + b"Content-Length: %d\r\n\r\n" % length + body)


def test_a_server_stops_when_its_block_fails(publish):
    server = serve(publish(1))
    with pytest.raises(ZeroDivisionError), server:
        print(1 / 0)
    assert refuses(server.rest_url)


def test_sigterm_finishes_accepted_requests_and_refuses_new_ones(
    publish, serve_command, tmp_path
):
    place = ("--model_name=m", f"--model_base_path={publish(1)}")
    # Each request that waits keeps one of these threads busy.
    process = serve_command(*place, "--tensorflow_inter_op_parallelism=8")
    line = process.stdout.readline()
    assert line.startswith("serving m: REST http://127.0.0.1:")
    rest, address = READY.search(line).groups()
    server = SimpleNamespace(rest_url=rest, grpc_address=address)
    begun, go = [tmp_path / f"begun{number}" for number in range(4)], tmp_path / "go"
    with ThreadPoolExecutor(2) as threads, prediction_stub(server) as stub:
        inputs = [{"begun": str(path), "go": str(go)} for path in begun[:2]]
        bodies = [json.dumps({"signature_name": "wait", "inputs": i}) for i in inputs]
        over_rest = [
            threads.submit(request, server, "POST", "/v1/models/m:predict", body)
            for body in bodies
        ]
        over_grpc = [
            stub.Predict.future(waiting(path, go), timeout=20) for path in begun[2:]
        ]
        wait_for(lambda: all(path.exists() for path in begun))
        process.terminate()
        wait_for(lambda: refuses(rest), 5)
        wait_for(lambda: refuses(address), 5)
        assert process.poll() is None
        go.touch()
        answers = [future.result() for future in over_rest]
        assert answers == [(200, {"outputs": ANSWERS[1]})] * 2
        for future in over_grpc:
            assert future.result().outputs["y"].float_val == [ANSWERS[1]]
    check_stopped(process)


@pytest.mark.slow
def test_a_second_sigterm_ends_what_is_in_flight_in_the_queue_and_on_its_way(
    publish, serve_command, tmp_path
):
    """Requests get 503; neither a body on its way nor a watcher holds up the stop."""
    place = ("--model_name=m", f"--model_base_path={publish(1)}")
    process = serve_command(
        *place,
        "--rest_api_num_threads=1",
        "--enable_grpc_healthcheck_service=true",
    )
    rest, address = addresses(process)
    begun = tmp_path / "begun"
    inputs = {"begun": str(begun), "go": str(tmp_path / "go")}
    body = json.dumps({"signature_name": "wait", "inputs": inputs})
    with (
        ThreadPoolExecutor(4) as threads,
        grpc.insecure_channel(address) as channel,
        connect(rest) as link,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(HealthCheckRequest())
        next(watch)
        begin_request(link, b"{", 9)
        ask = (SimpleNamespace(rest_url=rest), "POST", "/v1/models/m:predict", body)
        answers = [threads.submit(request, *ask) for _ in range(4)]
        wait_for(begun.exists)
        time.sleep(0.5)  # so that the others are in the queue
        process.terminate()
        wait_for(lambda: refuses(rest), 5)
        process.terminate()
        second = time.monotonic()
        assert link.recv(65536).startswith(b"HTTP/1.1 503 ")
        assert [answer.result()[0] for answer in answers] == [503] * 4
        assert time.monotonic() - second < 0.75 * _GRACE, "at once"
        check_stopped(process)


@pytest.mark.slow
def test_a_stop_that_hangs_is_ended(publish, tmp_path):
    hanging = tmp_path / "hanging"
    script = (
        "import pathlib, sys, time\n"
        "from serving.local import rest_api, serve\n"
        "def hang(*_):\n"
        f"    pathlib.Path({str(hanging)!r}).touch()\n"
        "    while True: time.sleep(1)\n"
        "rest_api.RestApp._predict = hang\n"
        "serve._STOP_LIMIT = 1\n"
        "sys.exit(serve.main(sys.argv[1:]))\n"
    )
    flags = ("--port=0", "--rest_api_port=0", "--model_name=m")
    place = f"--model_base_path={publish(1)}"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *flags, place],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rest, _ = addresses(process)
    with connect(rest) as link:
        begin_request(link, b"{}", 2)
        wait_for(hanging.exists)
        process.terminate()
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "in hang" in error
