"""What holds for both clients alike; each test runs over REST and over gRPC."""

import time

import httpx2
import numpy as np
import pytest
from client_fakes import CLASSIFIED, FOUR_TYPES, Failure, FakeServer, Outputs

from serving import client as clients
from serving.client import (
    DeadlineExceeded,
    FailedPrecondition,
    GrpcClient,
    InvalidArgument,
    NotFound,
    Prediction,
    ResourceExhausted,
    RestClient,
    ServingError,
    TensorInfo,
    Unavailable,
    Unimplemented,
    VersionStatus,
)
from serving.client.tensors import input_array

BUSY = Failure("UNAVAILABLE", "The batch scheduling queue is full")


@pytest.fixture
def fake():
    return FakeServer()


@pytest.fixture(params=["rest", "grpc"])
def connect(request, fake):
    """Builds a client of the fake server."""
    opened = []
    if request.param == "grpc":
        server, address = fake.start()

    def build(**kwargs):
        if request.param == "grpc":
            opened.append(GrpcClient(address, "tiny_vit", **kwargs))
        else:
            transport = httpx2.MockTransport(fake.rest)
            opened.append(
                RestClient("http://server", "tiny_vit", transport=transport, **kwargs)
            )
        return opened[-1]

    yield build
    for client in opened:
        client.close()
    if request.param == "grpc":
        server.stop(None)


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that the clients asked for, not waited."""
    asked = []
    monkeypatch.setattr("serving.client.base.time.sleep", asked.append)
    return asked


def test_classify_gives_every_class_of_every_image(connect):
    first, second = connect().classify([b"one", b"two"])
    assert first.labels == ("bee", "cat", "ant")
    assert first.class_ids == (1, 2, 0)
    assert second.scores == tuple(
        float(np.float32(score)) for score in (0.654183328, 0.296734244, 0.0225202795)
    )
    assert (second.label, second.class_id) == ("ant", 0)


def test_both_clients_return_equal_predictions(fake):
    server, address = fake.start()
    transport = httpx2.MockTransport(fake.rest)
    with (
        RestClient("http://server", "tiny_vit", transport=transport) as rest,
        GrpcClient(address, "tiny_vit") as grpc,
    ):
        assert rest.classify([b"1", b"2"]) == grpc.classify([b"1", b"2"])
        assert rest.metadata() == grpc.metadata()
        assert rest.status() == grpc.status()
    server.stop(None)


def test_classify_keeps_the_best_classes(connect):
    assert [p.labels for p in connect().classify([b"1", b"2"], top_k=2)] == [
        ("bee", "cat"),
        ("ant", "bee"),
    ]


def test_classify_of_no_images_asks_nothing(connect, fake):
    assert connect().classify([]) == []
    assert fake.calls == []


def test_classify_refuses_top_k_zero(connect):
    with pytest.raises(ValueError, match="`top_k` must be at least 1"):
        connect().classify([b"1"], top_k=0)


def test_classify_tells_when_the_model_is_no_classifier(connect, fake):
    fake.answers = [Outputs('{"outputs": [2.5]}', {"y": np.float32([2.5])})]
    with pytest.raises(ServingError):
        connect().classify([b"1"])


def test_classify_tells_when_the_answer_is_for_other_images(connect):
    with pytest.raises(ServingError, match=r"every output as \[3, K\]"):
        connect().classify([b"1", b"2", b"3"])


def test_labels_that_are_not_utf8_do_not_fail(connect, fake):
    arrays = {
        "classes": np.array([[b"caf\xe9"]], dtype=object),
        "scores": np.float32([[1.0]]),
        "class_ids": np.array([[0]]),
    }
    fake.answers = [Outputs("", arrays)]
    # As TensorFlow Serving writes it: the bytes as they are, which is not legal JSON.
    content = b'{"outputs": {"classes": [["caf\xe9"]], "scores": [[1.0]], '
    content += b'"class_ids": [[0]]}}'
    client = connect()
    if isinstance(client, RestClient):
        transport = httpx2.MockTransport(
            lambda _: httpx2.Response(200, content=content)
        )
        client = RestClient("http://server", "tiny_vit", transport=transport)
    assert client.classify([b"1"]) == [Prediction(("caf�",), (1.0,), (0,))]


def test_predict_returns_arrays_in_the_types_of_the_signature(connect, fake):
    text = '{"outputs": {"d": [0.1], "b": ["x"], "a": [1], "c": [1.1]}}'
    arrays = {"a": np.int32([1]), "c": np.float32([1.1]), "d": np.float64([0.1])}
    arrays["b"] = np.array([b"x"], dtype=object)
    fake.answers = [Outputs(text, arrays)]
    outputs = connect().predict({"a": [1], "b": ["x"], "c": [1.1], "d": [0.1]}, "multi")
    assert set(outputs) == set(FOUR_TYPES)
    for name, array in arrays.items():
        assert outputs[name].dtype == array.dtype
        np.testing.assert_array_equal(outputs[name], array)


def test_predict_reads_nan_and_infinities_of_a_single_output(connect, fake):
    row = np.float32([[1.0, np.nan, np.inf, -np.inf]])
    text = '{"outputs": [[1.0, NaN, Infinity, -Infinity]]}'
    fake.answers = [Outputs(text, {"y": row})]
    outputs = connect().predict({"x": [1.0]}, "nan_out")
    np.testing.assert_array_equal(outputs["y"], row)


def test_predict_returns_bytes_of_any_value(connect, fake):
    raw = np.array([b"hello", b"\xff\x00"], dtype=object)
    text = '{"outputs": [{"b64": "aGVsbG8="}, {"b64": "/wA="}]}'
    fake.answers = [Outputs(text, {"blob_bytes": raw})]
    outputs = connect().predict({"x": [b"hello", b"\xff\x00"]}, "echo_bytes")
    assert outputs["blob_bytes"].tolist() == [b"hello", b"\xff\x00"]


def test_predict_asks_for_the_signatures_once(connect, fake):
    client = connect()
    client.predict({"image_bytes": [b"1", b"2"]})
    client.predict({"image_bytes": [b"1", b"2"]})
    assert fake.calls == ["metadata", "predict", "predict"]


@pytest.mark.parametrize(
    "inputs", [{"a": [1.5]}, {"a": [2**40]}, {"a": "text"}, {"c": [[1.0], [2.0, 3.0]]}]
)
def test_predict_refuses_values_that_are_not_of_the_type(connect, fake, inputs):
    with pytest.raises(InvalidArgument, match=r"`inputs\['[ac]'\]` must be"):
        connect().predict(inputs, "multi")
    assert "predict" not in fake.calls


def test_strings_keep_zero_bytes_at_their_end():
    array = input_array("x", [b"a\x00", "é"], TensorInfo("string", (None,)))
    assert array.tolist() == [b"a\x00", "é".encode()]


def test_an_empty_list_has_the_type_of_the_signature():
    assert input_array("x", [], TensorInfo("int32", (None,))).dtype == "int32"


def test_predict_accepts_an_empty_list(connect, fake):
    fake.answers = [Outputs('{"outputs": []}', {"y": np.zeros((0, 4), "float32")})]
    assert connect().predict({"x": []}, "nan_out")["y"].size == 0


def test_status_lists_versions_newest_first(connect):
    assert connect().status() == [
        VersionStatus(124, "END", "NOT_FOUND", "Could not find SavedModel"),
        VersionStatus(123, "AVAILABLE", "OK", ""),
    ]


def test_metadata_tells_types_and_shapes(connect):
    metadata = connect().metadata()
    assert (metadata.model, metadata.version) == ("tiny_vit", 1)
    signature = metadata.signatures["serving_default"]
    assert signature.inputs == {"image_bytes": TensorInfo("string", (None,))}
    assert signature.outputs["scores"] == TensorInfo("float32", (None, 3))


@pytest.mark.parametrize(
    ("code", "words", "wanted"),
    [
        (
            "INVALID_ARGUMENT",
            "Unknown image file format. One of JPEG, PNG, GIF, BMP, WebP required.",
            InvalidArgument,
        ),
        (
            "FAILED_PRECONDITION",
            'Serving signature name: "nope" not found in signature def',
            FailedPrecondition,
        ),
        ("NOT_FOUND", "Servable not found for request: Latest(nope)", NotFound),
        ("RESOURCE_EXHAUSTED", "too large", ResourceExhausted),
        ("UNIMPLEMENTED", "Conversion of JSON Value: 1 to type: half", Unimplemented),
        ("UNAVAILABLE", "The batch scheduling queue is full", Unavailable),
        ("DEADLINE_EXCEEDED", "Timed out waiting for notification", DeadlineExceeded),
        ("INTERNAL", "something else", ServingError),
    ],
)
def test_errors_have_one_class_and_the_servers_words(
    connect, fake, pauses, code, words, wanted
):
    fake.answers = [Failure(code, words)]
    with pytest.raises(ServingError) as caught:
        connect().classify([b"1"])
    assert type(caught.value) is wanted
    assert str(caught.value) == words


@pytest.mark.parametrize(
    "code",
    ["INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"],
)
def test_refused_requests_are_sent_once(connect, fake, pauses, code):
    fake.answers = [Failure(code, "no")]
    with pytest.raises(ServingError):
        connect().classify([b"1"])
    assert fake.calls == ["predict"]
    assert pauses == []


def test_an_overloaded_server_is_asked_again(connect, fake, pauses):
    fake.answers = [BUSY, BUSY, CLASSIFIED]
    assert connect().classify([b"1", b"2"])[0].label == "bee"
    assert fake.calls == ["predict"] * 3
    assert 0.05 <= pauses[0] <= 0.15 <= pauses[1] <= 0.45


def test_an_overloaded_server_is_asked_three_times_at_most(connect, fake, pauses):
    fake.answers = [BUSY]
    with pytest.raises(Unavailable):
        connect().classify([b"1"])
    assert fake.calls == ["predict"] * 3


def test_no_retry_begins_after_the_deadline(connect, fake):
    fake.answers = [BUSY]
    with pytest.raises(Unavailable):
        connect(timeout=0.04).classify([b"1"])
    assert fake.calls == ["predict"]


def test_wait_ready_returns_when_the_model_is_there(connect, fake, pauses):
    fake.others = [BUSY, Failure("NOT_FOUND", "Servable not found for request: x")]
    connect().wait_ready(timeout=30)
    assert fake.calls == ["metadata"] * 3
    assert len(pauses) == 2


def test_wait_ready_ends_with_the_reason(connect, fake):
    fake.others = [Failure("NOT_FOUND", "Servable not found for request: x")] * 99
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"within 0\.5 s: Servable not found"):
        connect().wait_ready(timeout=0.5)
    assert time.monotonic() - start < 2


def test_wait_ready_does_not_wait_for_an_unknown_label(connect, fake):
    words = "Unrecognized servable version label: nolabel"
    fake.others = [Failure("INVALID_ARGUMENT", words)]
    with pytest.raises(InvalidArgument, match="nolabel"):
        connect(label="nolabel").wait_ready()


def test_version_and_label_exclude_each_other(connect):
    with pytest.raises(ValueError, match="Only one of `version` and `label`"):
        connect(version=1, label="stable")


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_deadlines_are_finite(connect, timeout):
    with pytest.raises(ValueError, match="`timeout` must be a positive number"):
        connect(timeout=timeout)


def test_every_public_name_exists():
    assert all(hasattr(clients, name) for name in clients.__all__)
