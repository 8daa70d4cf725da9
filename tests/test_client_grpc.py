"""GrpcClient: what it sends, addresses, deadlines."""

import time

import pytest
from client_fakes import FakeServer

from serving.client import DeadlineExceeded, GrpcClient, Unavailable


@pytest.fixture
def fake():
    return FakeServer()


@pytest.fixture
def address(fake):
    server, address = fake.start()
    yield address
    server.stop(None)


def test_images_travel_as_bytes(fake, address):
    raw = bytes(range(256))
    with GrpcClient(address, "tiny_vit", version=7) as client:
        client.classify([raw, b""])
    [request] = fake.requests
    assert request.model_spec.name == "tiny_vit"
    assert request.model_spec.version.value == 7
    assert request.model_spec.signature_name == "serving_default"
    assert list(request.inputs["image_bytes"].string_val) == [raw, b""]
    assert [dim.size for dim in request.inputs["image_bytes"].tensor_shape.dim] == [2]


def test_a_label_takes_the_place_of_a_version(fake, address):
    with GrpcClient(address, "tiny_vit", label="canary") as client:
        client.status()
    assert fake.requests[0].model_spec.version_label == "canary"


def test_a_slow_server_is_given_up_after_the_deadline(fake, address):
    fake.delay = 1.0
    start = time.monotonic()
    with (
        GrpcClient(address, "tiny_vit", timeout=0.3) as client,
        pytest.raises(DeadlineExceeded, match=r"no answer from .* within 0\.\d+ s"),
    ):
        client.classify([b"1"])
    assert time.monotonic() - start < 0.9


def test_a_server_that_starts_late_is_waited_for(fake):
    server, address = fake.start()
    server.stop(None).wait()
    with GrpcClient(address, "tiny_vit") as client:
        with pytest.raises(Unavailable):
            client.status()
        revived, _ = fake.start(address)
        client.wait_ready(timeout=10)
    revived.stop(None)
    assert fake.calls[-1] == "metadata"


@pytest.mark.parametrize("address", ["http://127.0.0.1:8500", ""])
def test_addresses_that_are_none_are_refused(address):
    with pytest.raises(ValueError, match=r"`address` must look like 127\.0\.0\.1:8500"):
        GrpcClient(address, "tiny_vit")
