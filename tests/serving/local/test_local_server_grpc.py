"""gRPC: deadlines, cancellation, health, Unix sockets and shutdown."""

import os
import signal
import threading
import time

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from polling import wait_for
from server_process import addresses, check_stopped
from server_requests import local_server, predict_request
from tensorflow_serving.apis import (
    model_service_pb2_grpc,
    prediction_service_pb2_grpc,
)
from tensorflow_serving.apis.model_management_pb2 import ReloadConfigRequest
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from serving.local.session import LoadedModel
from serving.local.status_errors import StartError

FOREVER = 10**9


@pytest.fixture(scope="module")
def server(base_path):
    flags = {"grpc_max_threads": 1, "enable_grpc_healthcheck_service": True}
    with local_server({"double": base_path}, **flags) as running:
        yield running


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.grpc_address) as opened:
        yield opened


def double(channel, timeout=20):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    message = predict_request("double", x=np.float32([1.5]))
    answer = stub.Predict(message, timeout=timeout)
    return list(answer.outputs["y"].float_val)


def pause(channel, milliseconds=FOREVER, timeout=20):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    message = predict_request("double", "pause", milliseconds=np.int64(milliseconds))
    return stub.Predict.future(message, timeout=timeout)


def test_a_deadline_ends_the_run_and_frees_its_thread(channel, caplog):
    late = pause(channel, timeout=0.5)
    assert late.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert double(channel) == [3.0]  # by the only thread
    assert caplog.text == ""


def test_a_call_whose_deadline_passes_in_the_queue_is_not_run(channel):
    first = pause(channel, timeout=1.0)
    time.sleep(0.1)
    second = pause(channel, timeout=0.5)
    assert second.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert first.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert double(channel) == [3.0]


def test_a_cancelled_call_that_no_thread_has_taken_is_not_run(channel):
    first = pause(channel, timeout=1.0)
    time.sleep(0.1)
    waiting = [pause(channel, timeout=60) for _ in range(5)]
    time.sleep(0.2)
    for call in waiting:
        call.cancel()
    assert first.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert double(channel) == [3.0]


def test_health_is_watched(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for service, status in (("ModelService", "SERVING"), ("x", "SERVICE_UNKNOWN")):
        asked_for = health_pb2.HealthCheckRequest(service=service)
        watching = stub.Watch(asked_for, timeout=1)
        reported = next(watching).status
        assert reported == health_pb2.HealthCheckResponse.ServingStatus.Value(status)
        with pytest.raises(grpc.RpcError) as caught:  # not the end of the stream
            next(watching)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_bytes_that_are_not_a_message(channel):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/tensorflow.serving.PredictionService/Predict")(b"\xff")
    assert caught.value.code() is grpc.StatusCode.INTERNAL


def test_long_texts_are_cut_after_bytes(channel):
    request = predict_request("é" * 600, x=np.float32([1.5]))
    with pytest.raises(grpc.RpcError) as caught:
        prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request)
    text, half, end = caught.value.details().partition("\N{REPLACEMENT CHARACTER}")
    assert len(text.encode()) == 1023
    assert half
    assert end == "...TRUNCATED"


def test_num_unload_threads_unloads_in_parallel(base_path, monkeypatch):
    both, closed = threading.Barrier(2, timeout=10), []
    close = LoadedModel.close

    def close_together(model):
        both.wait()
        closed.append(close(model))

    models = {"double": base_path, "again": base_path}
    nothing = ModelServerConfig()
    nothing.model_config_list.SetInParent()
    with (
        local_server(models, num_unload_threads=2) as server,
        grpc.insecure_channel(server.grpc_address) as channel,
    ):
        monkeypatch.setattr(LoadedModel, "close", close_together)
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        stub.HandleReloadConfigRequest(ReloadConfigRequest(config=nothing))
    assert len(closed) == 2


def test_a_unix_socket_answers_too(base_path, tmp_path):
    path = tmp_path / "grpc.socket"
    models = {"double": base_path}
    with (
        local_server(models, grpc_socket_path=str(path)) as server,
        grpc.insecure_channel(f"unix:{path}") as channel,
    ):
        assert double(channel) == [3.0]
        with grpc.insecure_channel(server.grpc_address) as other:
            assert double(other) == [3.0]
    nowhere = str(tmp_path / "no" / "folder" / "socket")
    with pytest.raises(StartError, match=f"unix:{nowhere}"):
        local_server(models, grpc_socket_path=nowhere).__enter__()


@pytest.mark.slow
def test_sigterm_waits_for_running_calls_and_a_second_one_cancels_them(
    base_path, serve_command
):
    process = serve_command("--model_name=double", f"--model_base_path={base_path}")
    _, address = addresses(process)
    with grpc.insecure_channel(address) as channel:
        # Less than the grace, so that it would not end.
        call = pause(channel, timeout=6)
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.3)
        assert not call.done()
        os.kill(process.pid, signal.SIGTERM)
        assert call.exception().code() is grpc.StatusCode.UNAVAILABLE
        check_stopped(process)


def test_a_call_after_the_deadline_leaves_no_thread(base_path):
    before = threading.active_count()
    with (
        local_server({"double": base_path}) as server,
        grpc.insecure_channel(server.grpc_address) as channel,
    ):
        late = pause(channel, timeout=0.2)
        assert late.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_for(lambda: threading.active_count() <= before, 10)
