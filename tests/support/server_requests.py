"""Requests to a local server over REST, and messages for gRPC."""

import http.client
import json
import urllib.parse

import tensorflow as tf
from tensorflow_serving.apis.predict_pb2 import PredictRequest


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


def predict_request(model, signature="", **inputs):
    """A PredictRequest with arrays."""
    message = PredictRequest()
    message.model_spec.name = model
    message.model_spec.signature_name = signature
    for alias, value in inputs.items():
        message.inputs[alias].CopyFrom(tf.make_tensor_proto(value))
    return message
