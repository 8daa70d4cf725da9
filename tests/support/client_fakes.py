"""A fake model server with predefined answers, and the four clients.

`FakeServer.rest` is a handler for httpx2.MockTransport; `start` serves gRPC on a
loopback port. The answers are those of TensorFlow Serving 2.20.0. `connected` builds
any of the four clients, the asyncio ones behind blocking methods.
"""

import asyncio
import contextlib
import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import grpc
import httpx2
import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from serving.client import AsyncGrpcClient, AsyncRestClient, GrpcClient, RestClient

KINDS = {
    "rest": RestClient,
    "grpc": GrpcClient,
    "rest-asyncio": AsyncRestClient,
    "grpc-asyncio": AsyncGrpcClient,
}
HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


def info(dtype, *sizes):
    dim = [{"size": str(size), "name": ""} for size in sizes]
    return {
        "name": "StatefulPartitionedCall:0",
        "dtype": dtype,
        "tensor_shape": {"dim": dim, "unknown_rank": False},
    }


def signature(inputs, outputs):
    return {
        "inputs": inputs,
        "outputs": outputs,
        "method_name": "tensorflow/serving/predict",
        "defaults": {},
    }


FOUR_TYPES = {
    "a": info("DT_INT32", -1),
    "b": info("DT_STRING", -1),
    "c": info("DT_FLOAT", -1),
    "d": info("DT_DOUBLE", -1),
}
SIGNATURES = {
    "serving_default": signature(
        {"image_bytes": info("DT_STRING", -1)},
        {
            "class_ids": info("DT_INT64", -1, 3),
            "classes": info("DT_STRING", -1, 3),
            "scores": info("DT_FLOAT", -1, 3),
        },
    ),
    "multi": signature(FOUR_TYPES, FOUR_TYPES),
    "nan_out": signature({"x": info("DT_FLOAT", -1)}, {"y": info("DT_FLOAT", -1, 4)}),
    # TensorFlow's own entry, which clients hide.
    "__saved_model_init_op": signature({}, {"op": info("DT_INVALID")}),
    "echo_bytes": signature(
        {"x": info("DT_STRING", -1)}, {"blob_bytes": info("DT_STRING", -1)}
    ),
}
METADATA = {
    "model_spec": {"name": "tiny_vit", "version": "1", "signature_name": ""},
    "metadata": {"signature_def": {"signature_def": SIGNATURES}},
}
STATUS = {
    "model_version_status": [
        {
            "version": version,
            "state": state,
            "status": {"error_code": code, "error_message": words},
        }
        for version, state, code, words in (
            ("123", "AVAILABLE", "OK", ""),
            ("124", "END", "NOT_FOUND", "Could not find SavedModel"),
        )
    ]
}
# Two images.
CLASSIFY_JSON = """{"outputs": {
    "classes": [["bee", "cat", "ant"], ["ant", "bee", "elk"]],
    "scores": [[0.596967518, 0.2883856, 0.0480575264],
               [0.654183328, 0.296734244, 0.0225202795]],
    "class_ids": [[1, 2, 0], [0, 1, 4]]}}"""
CLASSIFY_ARRAYS = {
    "classes": np.array([["bee", "cat", "ant"], ["ant", "bee", "elk"]], dtype=object),
    "scores": np.array(
        [[0.5969675, 0.2883856, 0.048057526], [0.6541833, 0.29673424, 0.02252028]],
        dtype="float32",
    ),
    "class_ids": np.array([[1, 2, 0], [0, 1, 4]]),
}


ROLLOUT = np.float32([[[0.5, 0.25, 0.0], [0.125, 0.0625, 0.0625]]])
SEEN = b"\x89PNG\x00\xff"
ATTENTION_JSON = """{"outputs": {
    "rollout": [[[0.5, 0.25, 0.0], [0.125, 0.0625, 0.0625]]],
    "seen_bytes": [{"b64": "iVBORwD/"}]}}"""


class Failure:
    """An error as answer: canonical code and message."""

    def __init__(self, code, words):
        self.code, self.words = code, words


class Outputs:
    """An answer of predict: JSON text for REST, and the same arrays for gRPC."""

    def __init__(self, text, arrays):
        self.text, self.arrays = text, arrays


CLASSIFIED = Outputs(CLASSIFY_JSON, CLASSIFY_ARRAYS)
ATTENDED = Outputs(
    ATTENTION_JSON,
    {"rollout": ROLLOUT, "seen_bytes": np.array([SEEN], dtype=object)},
)
EMBEDDED = Outputs(
    '{"outputs": [[0.1, 0.25, -3.0], [1e-7, 0.0, 2.0]]}',
    {"embedding": np.float32([[0.1, 0.25, -3.0], [1e-7, 0.0, 2.0]])},
)


class FakeServer:
    """Answers predict with `answers`, in order; the last one is repeated.

    `others` precede the usual answers of status and metadata. `calls` holds the names
    of the calls, `requests` the requests; predict answers a second later in calls
    after the first `slow_after`.
    """

    def __init__(self):
        self.answers = [CLASSIFIED]
        self.others = []
        self.slow_after = None
        self.calls = []
        self.requests = []

    def next_answer(self):
        self.calls.append("predict")
        slow = self.slow_after is not None and len(self.calls) > self.slow_after
        time.sleep(slow)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def next_other(self, name, usual):
        self.calls.append(name)
        return self.others.pop(0) if self.others else usual

    def rest(self, request):
        self.requests.append(request)
        if request.url.path.endswith(":predict"):
            answer = self.next_answer()
        elif request.url.path.endswith("/metadata"):
            answer = self.next_other("metadata", METADATA)
        else:
            answer = self.next_other("status", STATUS)
        if isinstance(answer, Failure):
            return httpx2.Response(
                HTTP_STATUS[answer.code], json={"error": answer.words}
            )
        text = answer.text if isinstance(answer, Outputs) else json.dumps(answer)
        content = text if isinstance(text, bytes) else text.encode()
        return httpx2.Response(200, content=content)

    def start(self, address="127.0.0.1:0", certificate=None):
        """Start a grpc.Server, with TLS or without; returns it and its address."""
        server = grpc.server(ThreadPoolExecutor(16))
        add = prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server
        add(Predictions(self), server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(Models(self), server)
        if certificate is None:
            port = server.add_insecure_port(address)
        else:
            pair = (certificate.key.read_bytes(), certificate.path.read_bytes())
            port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        server.start()
        return server, f"127.0.0.1:{port}"


def abort_if_failure(answer, context):
    if isinstance(answer, Failure):
        context.abort(grpc.StatusCode[answer.code], answer.words)


class Predictions(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, fake):
        self.fake = fake

    def Predict(self, request, context):
        self.fake.requests.append(request)
        answer = self.fake.next_answer()
        abort_if_failure(answer, context)
        tensors = {n: tf.make_tensor_proto(a) for n, a in answer.arrays.items()}
        return predict_pb2.PredictResponse(outputs=tensors)

    def GetModelMetadata(self, request, context):
        self.fake.requests.append(request)
        abort_if_failure(self.fake.next_other("metadata", METADATA), context)
        signatures = json_format.ParseDict(
            METADATA["metadata"]["signature_def"],
            get_model_metadata_pb2.SignatureDefMap(),
        )
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        json_format.ParseDict(METADATA["model_spec"], response.model_spec)
        response.metadata["signature_def"].Pack(signatures)
        return response


class Models(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, fake):
        self.fake = fake

    def GetModelStatus(self, request, context):
        self.fake.requests.append(request)
        abort_if_failure(self.fake.next_other("status", STATUS), context)
        return json_format.ParseDict(
            STATUS, get_model_status_pb2.GetModelStatusResponse()
        )

    def HandleReloadConfigRequest(self, request, context):
        self.fake.requests.append(request)
        answer = self.fake.next_other("reload", {})
        abort_if_failure(answer, context)
        return json_format.ParseDict(
            answer, model_management_pb2.ReloadConfigResponse()
        )


class Certificate(NamedTuple):
    """Paths of a self-signed certificate of localhost, and of its key."""

    path: Path
    key: Path


def make_certificate(folder):
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    command = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    files = ["-out", str(made.path), "-keyout", str(made.key)]
    subprocess.run(
        [*command.split(), "-subj", "/CN=localhost", "-addext", names, *files],
        check=True,
        capture_output=True,
    )
    return made


class Awaited:
    """An asyncio client behind blocking methods, with an event loop of its own."""

    def __init__(self, build):
        self.runner = asyncio.Runner()
        self.client = self.runner.run(self.built(build))

    async def built(self, build):
        return build()

    def __getattr__(self, name):
        method = getattr(self.client, name)

        def call(*args, **kwargs):
            outcome = method(*args, **kwargs)
            if hasattr(outcome, "__aiter__"):
                return self.iterated(outcome)
            return self.runner.run(outcome)

        return call

    def iterated(self, stream):
        try:
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    yield self.runner.run(anext(stream))
        finally:
            self.runner.run(stream.aclose())

    def close(self):
        self.runner.run(self.client.close())
        self.runner.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


def connected(kind, where, model="tiny_vit", **kwargs):
    """Create a client of one of the kinds, with blocking methods."""
    if kind.endswith("asyncio"):
        return Awaited(lambda: KINDS[kind](where, model, **kwargs))
    return KINDS[kind](where, model, **kwargs)
