"""Small requests that announce much: refused before they take memory or time.

The attacks run in a process of their own, each with a limit of memory and of CPU time.
"""

import gzip
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from polling import wait_for
from server_requests import local_server, predict_request, prediction_stub, request

from serving.local import rest_api
from serving.local.flags import ServerOptions
from serving.local.inference_service import InferenceService
from serving.local.metrics import Counter, Histogram
from serving.local.status_errors import InvalidArgument, StatusError

SCRIPT = """
import json, resource, sys, time
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
import tensorflow as tf
from tensorflow_serving.apis.input_pb2 import Input
from serving.local.classify_regress import _serialized
from serving.local.json_document import parse
from serving.local.status_errors import InvalidArgument
from serving.local.tensor_proto import arrays_from_protos

def bytes_list(size):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes(size)]))

def serialized(context, count):
    listed = Input()
    listed.example_list_with_context.context.CopyFrom(context)
    for _ in range(count):
        listed.example_list_with_context.examples.add()
    _serialized(listed)

def tensor(kind, *shape, **values):
    dims = [TensorShapeProto.Dim(size=size) for size in shape]
    dtype = types_pb2.DataType.Value(f"DT_{kind}")
    return TensorProto(dtype=dtype, tensor_shape=TensorShapeProto(dim=dims), **values)

tf.io.parse_tensor(tensor("FLOAT", 1).SerializeToString(), tf.float32).numpy()
for name, attack in json.load(sys.stdin).items():
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, resource.RLIM_INFINITY))
    seconds = int(time.process_time()) + 60
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    try:
        exec(attack)
        outcome = "accepted"
    except InvalidArgument as error:
        outcome = "refused"
    except BaseException as error:
        outcome = repr(error)
    print(json.dumps([name, outcome]), flush=True)
"""

ATTACKS = {
    "strings in 8 bytes": 'arrays_from_protos({"x": tensor("STRING", 10**9, '
    "tensor_content=bytes(8))})",
    "empty strings": 'arrays_from_protos({"x": tensor("STRING", 2**24)})',
    "strings as bytes": 'arrays_from_protos({"x": tensor("STRING", 2**24, '
    "tensor_content=bytes(2**24))})",
    "a long string repeated": 'arrays_from_protos({"x": tensor("STRING", 10**5, '
    'string_val=[b"x" * 10**6])})',
    "a number repeated": 'arrays_from_protos({"x": tensor("FLOAT", 2**20, 2**10, '
    "float_val=[1.0])})",
    "half of the numbers": 'arrays_from_protos({"x": tensor("COMPLEX128", 2**26, '
    "dcomplex_val=[1.0, 2.0])})",
    "many inputs": "arrays_from_protos({str(i): "
    'tensor("DOUBLE", 2**23) for i in range(100)})',
    "a size beyond 64 bits": 'arrays_from_protos({"x": tensor("FLOAT", 2**62, 8, '
    "float_val=[1.0])})",
    "many sizes": 'arrays_from_protos({"x": tensor("FLOAT", *[2**62] * 200000)})',
    "many examples of a long context": "serialized(tf.train.Example(features="
    'tf.train.Features(feature={"a": bytes_list(10**6)})), 10**5)',
    "many objects": 'parse(b\'{"a":[\' + b"{}," * 2**22 + b"0]}")',
    "many lists": 'parse(b\'{"a":[\' + b"[]," * 2**24 + b"0]}")',
    "a negative size": 'arrays_from_protos({"x": tensor("STRING", -(10**9), -1)})',
    "a key twice": 'parse(b"{" + b",".join(b\'"%d":0\' % i for i in range(10**6)) '
    "+ b',\"999999\":0}')",
    "keys twice in objects": "parse(b'{\"a\":[' + b',' .join([b'{\"b\":0,\"b\":0}'] * "
    "10**5) + b']}')",
    "deep lists": "parse(b'{\"a\":' + b'[' * 10**7)",
    "long numbers": "parse(b'{\"a\":1e' + b'9' * 10**7 + b'}')",
}


@pytest.mark.slow
def test_an_announcement_takes_neither_memory_nor_time():
    child = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(ATTACKS),
        capture_output=True,
        text=True,
    )
    outcomes = dict(map(json.loads, child.stdout.splitlines()))
    assert outcomes == dict.fromkeys(ATTACKS, "refused"), child.stderr[-2000:]
    assert child.returncode == 0


@pytest.mark.parametrize("verb", ["predict", "classify"])
def test_large_documents_are_read_one_at_a_time(base_path, monkeypatch, verb):
    reading, most, both = [], [], threading.Barrier(2)

    def parse(body):
        reading.append(body)
        most.append(len(reading))
        with pytest.raises(threading.BrokenBarrierError):
            both.wait(0.3)  # for the other one, which must not come
        both.reset()
        reading.pop()
        raise InvalidArgument("read")

    monkeypatch.setattr(rest_api, "parse", parse)
    large = b" " * (2**20 + 1)
    with (
        local_server({"m": base_path}) as server,
        ThreadPoolExecutor(3) as threads,
    ):
        ask = (server, "POST", f"/v1/models/m:{verb}")
        packed = (gzip.compress(large), {"Content-Encoding": "gzip"})
        answers = [threads.submit(request, *ask, *packed)]
        answers += [threads.submit(request, *ask, large) for _ in range(2)]
        assert {answer.result()[0] for answer in answers} == {400}
    assert most == [1, 1, 1]


def test_a_document_that_waits_holds_no_thread_and_not_forever(base_path, monkeypatch):
    began, go = threading.Event(), threading.Event()

    def parse(body):
        began.set()
        go.wait(60)
        raise InvalidArgument("read")

    monkeypatch.setattr(rest_api, "parse", parse)
    body = b" " * (2**20 + 1)
    flags = {"rest_api_num_threads": 2, "rest_api_timeout_in_ms": 2000}
    with (
        local_server({"m": base_path}, **flags) as server,
        ThreadPoolExecutor(5) as threads,
    ):
        ask = (server, "POST", "/v1/models/m:predict", body)
        answers = [threads.submit(request, *ask) for _ in range(5)]
        began.wait(60)
        assert request(server, "GET", "/v1/models/m")[0] == 200
        assert {answer.result()[0] for answer in answers} == {504}
        go.set()
        wait_for(lambda: request(*ask)[0] == 400)


def test_a_body_that_inflates_too_far_is_refused(base_path):
    packed = gzip.compress(bytes(rest_api.BODY_LIMIT + 1))
    with local_server({"m": base_path}) as server:
        ask = ("POST", "/v1/models/m:predict", packed, {"Content-Encoding": "gzip"})
        answer = request(server, *ask)
    assert answer[0] == 400
    assert "inflates to more than" in answer[1]["error"]


def test_inputs_that_the_signature_lacks_are_not_read(base_path):
    message = predict_request("m", x=[1.0])
    for number in range(1000):
        message.inputs[f"more {number}"].dtype = 99  # could not be read
    with (
        local_server({"m": base_path}) as server,
        prediction_stub(server) as stub,
        pytest.raises(grpc.RpcError) as caught,
    ):
        stub.Predict(message, timeout=60)
    assert "input size does not match signature: 1001!=1" in caught.value.details()


def test_a_large_document_is_read_while_another_one_runs(publish, tmp_path):
    begun, go = tmp_path / "begun", tmp_path / "go"
    padding = " " * 2**20
    waiting = {"inputs": {"begun": str(begun), "go": str(go)}}
    with (
        local_server({"m": publish(1)}) as server,
        ThreadPoolExecutor(1) as threads,
    ):
        ask = (server, "POST", "/v1/models/m:predict")
        body = json.dumps({"signature_name": "wait", **waiting}) + padding
        first = threads.submit(request, *ask, body)
        wait_for(begun.exists)
        answer = request(*ask, '{"instances": [1.0]}' + padding)
        go.touch()
        assert first.result()[0] == 200
    assert answer[0] == 200


@pytest.mark.parametrize(
    ("flags", "headers", "status"),
    [
        ({}, {"Host": "evil.example"}, 403),
        ({"allowed_host": ("models",)}, {"Host": "models:8501"}, 200),
        ({}, {"Origin": "http://evil.example"}, 403),
        (
            {"rest_api_enable_cors_support": True},
            {"Origin": "http://evil.example"},
            200,
        ),
    ],
)
def test_requests_for_other_sites_are_refused(base_path, flags, headers, status):
    with local_server({"m": base_path}, **flags) as server:
        body = '{"instances": [1.0]}'
        answer = request(server, "POST", "/v1/models/m:predict", body, headers)
    assert answer[0] == status


@pytest.mark.parametrize("kind", [Counter, lambda *a: Histogram(*a[:1], [1.0], *a[1:])])
def test_names_that_clients_make_up_do_not_fill_the_metrics(kind):
    metric = kind("/requests", "model_name", "status")
    for number in range(2000):
        metric.add(1, f"made up {number}", "NOT_FOUND")
    metric.add(1, "made up 7", "NOT_FOUND")
    metric.add(1, "x" * 10**6, "NOT_FOUND")
    lines = metric.lines("requests")
    counted = [line for line in lines if "_bucket" not in line and "_sum" not in line]
    assert len(counted) == 1001
    assert next(c for c in counted if 'model_name=""' in c).endswith(" 1001")
    assert next(c for c in counted if '"made up 7"' in c).endswith(" 2")


def test_long_names_are_cut_in_the_metrics():
    metric = Counter("/requests", "model_name")
    metric.add(1, "x" * 10**6)
    assert len(metric.lines("requests")[0]) < 400


@pytest.mark.parametrize(
    "error", [InvalidArgument("Shape of tensor"), KeyError("x"), StatusError("closed")]
)
def test_whatever_fails_once_the_server_stops_is_unavailable(error):
    service = InferenceService(ServerOptions())
    counted = service.counted("m", "predict", "REST")
    counted.__enter__()
    service.stop()
    with pytest.raises(StatusError) as caught:
        counted.__exit__(type(error), error, None)
    assert caught.value.code == "UNAVAILABLE"
    with pytest.raises(StatusError), service.counted("m", "predict", "REST"):
        raise AssertionError("the request was run")
