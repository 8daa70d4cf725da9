"""Small requests that announce much: refused before they take memory or time.

Each attack runs in a process of its own, with a limit of memory and of CPU time.
"""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from served_versions import wait_for
from server_requests import request

from serving.local import LocalServer, rest_api
from serving.local.flags import ServerOptions
from serving.local.inference_service import InferenceService
from serving.local.metrics import Counter, Histogram
from serving.local.rest_api import RestApp
from serving.local.status_errors import InvalidArgument, ServingError

SCRIPT = """
import resource, sys
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
import tensorflow as tf
from serving.local.json_document import parse
from serving.local.status_errors import InvalidArgument
from serving.local.tensor_proto import arrays_from_protos

def tensor(kind, *shape, **values):
    dims = [TensorShapeProto.Dim(size=size) for size in shape]
    dtype = types_pb2.DataType.Value(f"DT_{kind}")
    return TensorProto(dtype=dtype, tensor_shape=TensorShapeProto(dim=dims), **values)

tf.io.parse_tensor(tensor("FLOAT", 1).SerializeToString(), tf.float32).numpy()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, 2 * (used + 2**30,))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
try:
    ATTACK
except InvalidArgument as error:
    print("refused:", error)
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
    "a negative size": 'arrays_from_protos({"x": tensor("STRING", -(10**9), -1)})',
    "a key twice": 'parse(b"{" + b",".join(b\'"%d":0\' % i for i in range(10**6)) '
    "+ b',\"999999\":0}')",
    "keys twice in objects": "parse(b'{\"a\":[' + b',' .join([b'{\"b\":0,\"b\":0}'] * "
    "10**5) + b']}')",
    "deep lists": "parse(b'{\"a\":' + b'[' * 10**7)",
    "long numbers": "parse(b'{\"a\":1e' + b'9' * 10**7 + b'}')",
}


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_an_announcement_takes_neither_memory_nor_time(attack):
    script = SCRIPT.replace("ATTACK", attack)
    child = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert child.stdout.startswith(b"refused: "), child.stderr[-2000:]
    assert child.returncode == 0


@pytest.fixture
def service(base_path):
    return InferenceService(ServerOptions())


def test_large_documents_are_read_one_at_a_time(base_path, monkeypatch):
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
    body = b" " * (2**20 + 1)
    with (
        LocalServer({"m": base_path}, rest_port=0, grpc_port=0) as server,
        ThreadPoolExecutor(3) as threads,
    ):
        ask = (server, "POST", "/v1/models/m:predict", body)
        answers = [threads.submit(request, *ask) for _ in range(3)]
        assert {answer.result()[0] for answer in answers} == {400}
    assert most == [1, 1, 1]


def test_a_large_document_is_read_while_another_one_runs(publish, tmp_path):
    begun, go = tmp_path / "begun", tmp_path / "go"
    padding = " " * 2**20
    waiting = {"inputs": {"begun": str(begun), "go": str(go)}}
    with (
        LocalServer({"m": publish(1)}, rest_port=0, grpc_port=0) as server,
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
    models = {"m": base_path}
    with LocalServer(models, rest_port=0, grpc_port=0, **flags) as server:
        body = '{"instances": [1.0]}'
        answer = request(server, "POST", "/v1/models/m:predict", body, headers)
    assert answer[0] == status


def test_a_document_that_gets_no_turn_is_refused(service):
    service.options = ServerOptions(rest_api_timeout_in_ms=50)
    app = RestApp(service, None)
    body = b" " * (2**20 + 1)
    with app._turn(body), app._turn(b"small"), pytest.raises(ServingError) as caught:
        app._turn(body).__enter__()
    assert caught.value.code == "DEADLINE_EXCEEDED"
    with app._turn(body):
        pass


@pytest.mark.parametrize("kind", [Counter, lambda *a: Histogram(*a[:1], [1.0], *a[1:])])
def test_names_that_clients_make_up_do_not_fill_the_metrics(kind):
    metric = kind("/requests", "model_name", "status")
    for number in range(2000):
        metric.add(1, f"made up {number}", "NOT_FOUND")
    metric.add(1, "made up 7", "NOT_FOUND")
    lines = metric.lines("requests")
    counted = [line for line in lines if "_bucket" not in line and "_sum" not in line]
    assert len(counted) == 1001
    assert next(c for c in counted if 'model_name=""' in c).endswith(" 1000")
    assert next(c for c in counted if '"made up 7"' in c).endswith(" 2")


@pytest.mark.parametrize(
    "error", [InvalidArgument("Shape of tensor"), KeyError("x"), ServingError("closed")]
)
def test_whatever_fails_once_the_server_stops_is_unavailable(service, error):
    counted = service.counted("m", "predict", "REST")
    counted.__enter__()
    service.stop()
    with pytest.raises(ServingError) as caught:
        counted.__exit__(type(error), error, None)
    assert caught.value.code == "UNAVAILABLE"
    with pytest.raises(ServingError), service.counted("m", "predict", "REST"):
        raise AssertionError("the request was run")
