"""GrpcClient: requests, limits, TLS, addresses, deadlines, reloading."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import tensorflow as tf
from client_fakes import (
    Failure,
    Outputs,
    Predictions,
    connected,
    make_certificate,
)
from google.protobuf import text_format
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from serving.client import (
    DeadlineExceeded,
    FailedPrecondition,
    GrpcClient,
    MessageTooLarge,
    Unavailable,
)
from serving.client.grpc_protocol import GrpcProtocol
from serving.client.protocol import Target


@pytest.fixture
def address(fake):
    server, address = fake.start()
    yield address
    server.stop(None)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_images_are_sent_as_bytes(fake, address):
    raw = bytes(range(256))
    with GrpcClient(address, "tiny_vit", version=7) as client:
        client.classify([raw, b""])
    [request] = fake.requests
    assert request.model_spec.name == "tiny_vit"
    assert request.model_spec.version.value == 7
    assert request.model_spec.signature_name == "serving_default"
    assert list(request.inputs["image_bytes"].string_val) == [raw, b""]
    assert [dim.size for dim in request.inputs["image_bytes"].tensor_shape.dim] == [2]


def test_a_label_is_sent_instead_of_a_version(fake, address):
    with GrpcClient(address, "tiny_vit", label="canary") as client:
        client.status()
    assert fake.requests[0].model_spec.version_label == "canary"


@pytest.mark.parametrize("kind", ["grpc", "grpc-asyncio"])
def test_a_timeout_after_a_refusal_reports_both(kind, fake, address):
    fake.answers = [Failure("UNAVAILABLE", "The queue is full")]
    fake.slow_after = 1
    with (
        connected(kind, address, timeout=0.5) as client,
        pytest.raises(DeadlineExceeded, match="no answer from .*: The queue is full"),
    ):
        client.classify([b"1"])


def test_wait_ready_waits_for_a_restarted_server(fake):
    server, address = fake.start()
    server.stop(None).wait()
    with GrpcClient(address, "tiny_vit", timeout=0.5) as client:
        with pytest.raises(Unavailable):
            client.status()
        revived, _ = fake.start(address)
        client.wait_ready(timeout=10)
    revived.stop(None)
    assert fake.calls[-1] == "metadata"


def test_metadata_is_sent_with_each_request(fake):
    seen = []
    usual = Predictions.Predict

    class Watching(Predictions):
        def Predict(self, request, context):
            seen.append(dict(context.invocation_metadata())["authorization"])
            return usual(self, request, context)

    server = grpc.server(ThreadPoolExecutor(2))
    add = prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server
    add(Watching(fake), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    for kind in ("grpc", "grpc-asyncio"):
        metadata = {"authorization": f"Bearer {kind}"}
        with connected(kind, address, metadata=metadata) as client:
            client.classify([b"1", b"2"])
    server.stop(None)
    assert seen == ["Bearer grpc", "Bearer grpc-asyncio"]


@pytest.mark.parametrize("kind", ["grpc", "grpc-asyncio"])
def test_tls_needs_credentials(kind, fake, certificate):
    server, address = fake.start(certificate=certificate)
    address = address.replace("127.0.0.1", "localhost")
    trusting = grpc.ssl_channel_credentials(certificate.path.read_bytes())
    with connected(kind, address, credentials=trusting) as client:
        assert client.classify([b"1", b"2"])[0].label == "bee"
    for others in (None, grpc.ssl_channel_credentials()):
        with (
            connected(kind, address, credentials=others, timeout=2) as client,
            pytest.raises(Unavailable),
        ):
            client.classify([b"1", b"2"])
    server.stop(None)


@pytest.mark.parametrize("kind", ["grpc", "grpc-asyncio"])
def test_the_limit_on_answers_is_64_mib_or_an_option(kind, fake, address):
    values = np.zeros((1, 5 * 2**20), "float32")  # above gRPC's own 4 MiB
    fake.answers = [Outputs("", {"embedding": values})]
    with connected(kind, address) as client:
        assert client.embed([b"1"]).shape == values.shape
    options = {"grpc.max_receive_message_length": 2**20}
    with (
        connected(kind, address, options=options) as client,
        pytest.raises(MessageTooLarge, match="larger than max"),
    ):
        client.embed([b"1"])
    assert fake.calls == ["predict"] * 2


def test_strings_are_read_from_tensor_content():
    proto = tf.make_tensor_proto([[b"one"], [b"\xff\x00" * 100]])
    whole = tf.io.parse_tensor(proto.SerializeToString(), tf.string)
    proto.ClearField("string_val")
    sizes, content = b"", b""
    for item in (b"one", b"\xff\x00" * 100):  # varints of the lengths, then the bytes
        sizes += bytes([len(item)]) if len(item) < 128 else b"\xc8\x01"
        content += item
    proto.tensor_content = sizes + content
    protocol = GrpcProtocol(Target("tiny_vit"))
    reply = predict_pb2.PredictResponse(outputs={"s": proto})
    read = protocol.predict("", {}, {}).read(reply)["s"]
    np.testing.assert_array_equal(read, whole.numpy())


CONFIG = """model_config_list {
    config { name: "digits" base_path: "/models/digits" model_platform: "tensorflow" }
}"""


@pytest.mark.parametrize("kind", ["grpc", "grpc-asyncio"])
def test_reload_config_sends_the_list_of_models(kind, fake, address):
    message = text_format.Parse(CONFIG, ModelServerConfig())
    with connected(kind, address) as client:
        client.reload_config(CONFIG)
        client.reload_config(message)
    assert [request.config for request in fake.requests] == [message] * 2


def test_reload_config_refuses_invalid_text(fake, address):
    with (
        GrpcClient(address, "tiny_vit") as client,
        pytest.raises(ValueError, match="`config` must be a ModelServerConfig: 1:1"),
    ):
        client.reload_config("nonsense")
    assert fake.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        Failure("FAILED_PRECONDITION", "Request to assign label to version 9"),
        {"status": {"error_code": "FAILED_PRECONDITION", "error_message": "Request"}},
    ],
)
def test_reload_config_raises_the_server_s_error(fake, address, answer):
    fake.others = [answer]
    with (
        GrpcClient(address, "tiny_vit") as client,
        pytest.raises(FailedPrecondition, match="Request"),
    ):
        client.reload_config(CONFIG)


@pytest.mark.parametrize("address", ["http://127.0.0.1:8500", ""])
def test_invalid_addresses_are_refused(address):
    with pytest.raises(ValueError, match=r"`address` must look like 127\.0\.0\.1:8500"):
        GrpcClient(address, "tiny_vit")
