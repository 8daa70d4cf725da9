"""Versions of a small model `m`, their publication, and requests to their server."""

import shutil

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import text_format
from server_requests import predict_request, request
from tensorflow_serving.apis import model_service_pb2_grpc, prediction_log_pb2
from tensorflow_serving.apis.model_management_pb2 import ReloadConfigRequest
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

# What each saved version answers at 0.
ANSWERS = {1: 11.0, 2: 12.0, 3: 13.0}


class Adder(tf.Module):
    """Answers x + 10 + version; `wait` begins with one file and ends with another."""

    def __init__(self, version):
        super().__init__()
        self.offset = tf.Variable(10.0 + version)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def add(self, x):
        return {"y": x + self.offset}

    @tf.function(
        input_signature=[tf.TensorSpec([], tf.string, name) for name in ("begun", "go")]
    )
    def wait(self, begun, go):
        tf.io.write_file(begun, "")
        loops = tf.while_loop(
            lambda i: tf.size(tf.io.matching_files(go)) == 0, lambda i: [i + 1], [0.0]
        )
        return {"y": self.offset + 0 * loops[0]}


def save_versions(folders):
    for version in ANSWERS:
        adder = Adder(version)
        signatures = {"serving_default": adder.add, "wait": adder.wait}
        tf.saved_model.save(adder, str(folders / str(version)), signatures=signatures)
    return folders


def saved_version(number):
    """The saved version that is published under a number: 1, 2, 3, 1, 2, ..."""
    return (number - 1) % len(ANSWERS) + 1


def answer_of(number):
    return ANSWERS[saved_version(number)]


class Publisher:
    """Publishes versions under a base path.

    Args:
        path: The base path.
        versions: Folder of the saved versions.
    """

    def __init__(self, path, versions):
        self.path = path
        self.versions = versions

    def __call__(self, *numbers, damage=None):
        """Publish each with one rename; `damage` changes its folder before."""
        for number in numbers:
            staged = self.path / ".staging"
            shutil.copytree(self.versions / str(saved_version(number)), staged)
            if damage:
                damage(staged)
            staged.rename(self.path / str(number))
        return self.path


def config(path, policy="", labels=None, more=""):
    """The server's configuration for a base path.

    Args:
        policy: The version policy, in text format.
        labels: Versions by label.
        more: Entries of other models, in text format.
    """
    pairs = "".join(
        f'version_labels {{ key: "{label}" value: {number} }} '
        for label, number in (labels or {}).items()
    )
    return text_format.Parse(
        f'model_config_list {{ config {{ name: "m" base_path: "{path}" '
        f'model_platform: "tensorflow" model_version_policy {{ {policy} }} '
        f"{pairs} }} {more} }}",
        ModelServerConfig(),
    )


def reload(server, wanted):
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        return stub.HandleReloadConfigRequest(ReloadConfigRequest(config=wanted))


def states(server):
    _, answer = request(server, "GET", "/v1/models/m")
    return {int(one["version"]): one["state"] for one in answer["model_version_status"]}


def load_error(server, number):
    """The status of a version: error_code and error_message."""
    _, answer = request(server, "GET", f"/v1/models/m/versions/{number}")
    return answer["model_version_status"][0]["status"]


def predict(server, name="m"):
    """The answer at 0, or the status of a refusal."""
    body = '{"inputs": [0.0]}'
    status, answer = request(server, "POST", f"/v1/models/{name}:predict", body)
    return answer["outputs"][0] if status == 200 else status


def one_row(alias):
    """A request with one row of an input."""
    return predict_request("m", **{alias: np.float32([1])})


def waiting(begun, go):
    """A request that writes one file and waits for another."""
    return predict_request("m", "wait", begun=str(begun), go=str(go))


def warmup_file(folder, *messages):
    """Write the warm-up file of a version with these requests."""
    (folder / "assets.extra").mkdir()
    path = str(folder / "assets.extra" / "tf_serving_warmup_requests")
    with tf.io.TFRecordWriter(path) as writer:
        for message in messages:
            log = prediction_log_pb2.PredictionLog()
            log.predict_log.request.CopyFrom(message)
            writer.write(log.SerializeToString())
