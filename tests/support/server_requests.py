"""Local servers, requests to them over REST, and messages for gRPC."""

import contextlib
import http.client
import json
import urllib.parse

import grpc
import tensorflow as tf
from tensorflow_serving.apis import prediction_service_pb2_grpc
from tensorflow_serving.apis.predict_pb2 import PredictRequest

from serving.local import LocalServer


def local_server(models, rest_port=0, grpc_port=0, **flags):
    """A local server on free ports."""
    return LocalServer(models, rest_port=rest_port, grpc_port=grpc_port, **flags)


def request(server, method, path, body=None, headers=None):
    """Status, and the body, parsed if it is JSON."""
    address = urllib.parse.urlsplit(server.rest_url).netloc
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    is_json = answer.headers["Content-Type"] == "application/json" and data
    return answer.status, json.loads(data) if is_json else data.decode()


@contextlib.contextmanager
def prediction_stub(server):
    """gRPC's PredictionService of a server."""
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def predict_request(model, signature="", **inputs):
    """A PredictRequest with arrays."""
    message = PredictRequest()
    message.model_spec.name = model
    message.model_spec.signature_name = signature
    for alias, value in inputs.items():
        message.inputs[alias].CopyFrom(tf.make_tensor_proto(value))
    return message
