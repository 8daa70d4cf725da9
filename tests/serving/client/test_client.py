"""Behavior of all four clients: REST and gRPC, blocking and asyncio."""

import json
import time
import types

import blocking_form
import httpx2
import numpy as np
import pytest
from client_fakes import (
    ATTENDED,
    CLASSIFIED,
    EMBEDDED,
    FOUR_TYPES,
    KINDS,
    METADATA,
    ROLLOUT,
    SEEN,
    SIGNATURES,
    Failure,
    Outputs,
    connected,
    info,
    signature,
)

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
    retries,
)
from serving.client.blocking_client import BlockingClient
from serving.client.retries import READY_PAUSE
from serving.client.tensors import input_array

STRINGS = info("DT_STRING", -1)
ONE = Outputs(
    '{"outputs": {"classes": [["bee"]], "scores": [[1.0]], "class_ids": [[1]]}}',
    {
        "classes": np.array([["bee"]], dtype=object),
        "scores": np.float32([[1.0]]),
        "class_ids": np.array([[1]]),
    },
)
BUSY = Failure("UNAVAILABLE", "The batch scheduling queue is full")


@pytest.fixture(params=KINDS)
def connect(request, fake):
    """Builds a client of the fake server."""
    opened = []
    over_grpc = request.param.startswith("grpc")
    if over_grpc:
        server, address = fake.start()

    def build(**kwargs):
        if not over_grpc:
            kwargs["transport"] = httpx2.MockTransport(fake.rest)
        where = address if over_grpc else "http://server"
        opened.append(connected(request.param, where, **kwargs))
        return opened[-1]

    yield build
    for client in opened:
        client.close()
    if over_grpc:
        server.stop(None)


@pytest.fixture
def headers_name(connect, request):
    """Name of the client's argument for headers."""
    over_grpc = request.node.callspec.params["connect"].startswith("grpc")
    return "metadata" if over_grpc else "headers"


@pytest.fixture
def pauses(monkeypatch):
    """The pauses of the clients, recorded instead of waited for."""
    asked = []

    async def skip(seconds):
        asked.append(seconds)

    blocking = types.SimpleNamespace(monotonic=time.monotonic, sleep=asked.append)
    monkeypatch.setattr("serving.client.blocking_client.time", blocking)
    monkeypatch.setattr("serving.client.async_client.asyncio.sleep", skip)
    return asked


def test_classify_gives_every_class_of_every_image(connect):
    first, second = connect().classify([b"one", b"two"])
    assert first.labels == ("bee", "cat", "ant")
    assert first.class_ids == (1, 2, 0)
    assert second.scores == tuple(
        float(np.float32(score)) for score in (0.654183328, 0.296734244, 0.0225202795)
    )
    assert (second.label, second.class_id) == ("ant", 0)


def test_rest_and_grpc_return_equal_predictions(fake):
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


def test_classify_of_no_images_sends_no_request(connect, fake):
    assert connect().classify([]) == []
    assert fake.calls == []


def test_classify_refuses_top_k_zero(connect):
    with pytest.raises(ValueError, match="`top_k` must be at least 1"):
        connect().classify([b"1"], top_k=0)


def test_classify_refuses_the_answer_of_another_model(connect, fake):
    fake.answers = [Outputs('{"outputs": [2.5]}', {"y": np.float32([2.5])})]
    with pytest.raises(ServingError):
        connect().classify([b"1"])


def test_classify_refuses_an_answer_for_other_images(connect):
    with pytest.raises(ServingError, match=r"first of 3 images. Received: shape \[2"):
        connect().classify([b"1", b"2", b"3"])


def test_labels_that_are_not_utf8_do_not_fail(connect, fake):
    arrays = {
        "classes": np.array([[b"caf\xe9"]], dtype=object),
        "scores": np.float32([[1.0]]),
        "class_ids": np.array([[0]]),
    }
    # As TensorFlow Serving writes it: the bytes as they are, which is not legal JSON.
    content = b'{"outputs": {"classes": [["caf\xe9"]], "scores": [[1.0]], '
    content += b'"class_ids": [[0]]}}'
    fake.answers = [Outputs(content, arrays)]
    assert connect().classify([b"1"]) == [Prediction(("caf�",), (1.0,), (0,))]


def test_embed_gives_one_row_for_each_image(connect, fake):
    fake.answers = [EMBEDDED]
    embeddings = connect().embed([b"1", b"2"])
    np.testing.assert_array_equal(embeddings, EMBEDDED.arrays["embedding"])
    assert embeddings.dtype == "float32"


def test_embed_of_no_images_sends_no_request(connect, fake):
    embeddings = connect().embed(iter([]))
    assert (embeddings.shape, embeddings.dtype) == ((0, 0), "float32")
    assert fake.calls == []


def test_attention_gives_the_map_and_the_image_as_seen(connect, fake):
    fake.answers = [ATTENDED]
    [attention] = connect().attention([b"1"])
    np.testing.assert_array_equal(attention.rollout, ROLLOUT[0])
    assert attention.seen == SEEN
    assert attention.rollout.dtype == "float32"


@pytest.mark.parametrize("method", ["embed", "attention"])
def test_a_model_without_the_signature_is_a_failed_precondition(connect, fake, method):
    words = f'Serving signature name: "{method}" not found in signature def'
    fake.answers = [Failure("FAILED_PRECONDITION", words)]
    with pytest.raises(FailedPrecondition, match=words):
        getattr(connect(), method)([b"1"])


@pytest.mark.parametrize(
    "arrays",
    [
        {"embedding": np.zeros((2, 3), "float32")},
        {"embedding": np.zeros(1, "float32")},
        {"other": np.zeros((1, 3), "float32"), "more": np.zeros(1, "float32")},
    ],
)
def test_embed_refuses_an_unexpected_answer(connect, fake, arrays):
    lists = {name: array.tolist() for name, array in arrays.items()}
    outputs = lists if len(lists) > 1 else lists["embedding"]
    fake.answers = [Outputs(json.dumps({"outputs": outputs}), arrays)]
    with pytest.raises(ServingError, match="Received: "):
        connect().embed([b"1"])


def test_the_three_outputs_of_classify_must_agree(connect, fake):
    arrays = {
        "classes": np.array([[b"a", b"b"]], dtype=object),
        "scores": np.float32([[1.0]]),
        "class_ids": np.array([[0]]),
    }
    text = '{"outputs": {"classes": [["a", "b"]], "scores": [[1.0]], '
    fake.answers = [Outputs(text + '"class_ids": [[0]]}}', arrays)]
    with pytest.raises(ServingError, match="must have one shape"):
        connect().classify([b"1"])


def test_many_retry_images_one_by_one_only_if_one_may_be_bad(connect, fake, pauses):
    for code, requests in (("NOT_FOUND", 2), ("INVALID_ARGUMENT", 2 + 6)):
        fake.answers, fake.calls = [Failure(code, "no")], []
        many = connect().classify_many([b"1"] * 6, batch_size=3, concurrency=1)
        assert [index for index, error in many if str(error) == "no"] == list(range(6))
        assert len(fake.calls) == requests


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


def test_predict_keeps_text_that_is_not_utf8(connect, fake):
    signatures = {"raw": signature({"x": info("DT_STRING", -1)}, {"text": STRINGS})}
    metadata = {"signature_def": {"signature_def": signatures}}
    array = np.array([b"caf\xe9", b"ok"], dtype=object)
    fake.others = [{**METADATA, "metadata": metadata}]
    fake.answers = [Outputs(b'{"outputs": ["caf\xe9", "ok"]}', {"text": array})]
    outputs = connect().predict({"x": ["1", "2"]}, "raw")
    assert outputs["text"].tolist() == array.tolist()


def test_predict_caches_the_signatures(connect, fake):
    client = connect()
    client.predict({"image_bytes": [b"1", b"2"]})
    client.predict({"image_bytes": [b"1", b"2"]})
    assert fake.calls == ["metadata", "predict", "predict"]


def test_predict_reads_the_signatures_again_after_an_error(connect, fake):
    client = connect()
    client.predict({"image_bytes": [b"1", b"2"]})
    fake.answers = [Failure("INVALID_ARGUMENT", "another version"), CLASSIFIED]
    with pytest.raises(InvalidArgument):
        client.predict({"image_bytes": [b"1", b"2"]})
    client.predict({"image_bytes": [b"1", b"2"]})
    assert fake.calls == ["metadata", *["predict"] * 2, "metadata", "predict"]


@pytest.mark.parametrize(
    "inputs", [{"a": [1.5]}, {"a": [2**40]}, {"a": "text"}, {"c": [[1.0], [2.0, 3.0]]}]
)
def test_predict_refuses_values_that_are_not_of_the_type(connect, fake, inputs):
    with pytest.raises(InvalidArgument, match=r"`inputs\['[ac]'\]` must be"):
        connect().predict(inputs, "multi")
    assert "predict" not in fake.calls


@pytest.mark.parametrize("value", [object(), [[1.0], [2.0, 3.0]], "\ud800"])
def test_predict_refuses_an_unknown_input_that_cannot_be_sent(connect, value):
    with pytest.raises(ServingError):
        connect().predict({"nobody": value}, "multi")


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


def test_metadata_has_types_and_shapes(connect):
    metadata = connect().metadata()
    assert (metadata.model, metadata.version) == ("tiny_vit", 1)
    signature = metadata.signatures["serving_default"]
    assert signature.inputs == {"image_bytes": TensorInfo("string", (None,))}
    assert signature.outputs["scores"] == TensorInfo("float32", (None, 3))
    assert set(metadata.signatures) == set(SIGNATURES) - {"__saved_model_init_op"}


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
def test_errors_have_a_class_and_the_server_s_message(
    connect, fake, without_retries, code, words, wanted
):
    fake.answers = [Failure(code, words)]
    with pytest.raises(ServingError) as caught:
        connect().classify([b"1"])
    assert type(caught.value) is wanted
    assert str(caught.value) == words


@pytest.mark.parametrize(
    "code",
    [
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "FAILED_PRECONDITION",
        "UNIMPLEMENTED",
        "DEADLINE_EXCEEDED",
        "INTERNAL",
    ],
)
def test_refused_requests_are_sent_once(connect, fake, pauses, code):
    fake.answers = [Failure(code, "no")]
    with pytest.raises(ServingError):
        connect().classify([b"1"])
    assert fake.calls == ["predict"]
    assert pauses == []


def test_an_overloaded_server_is_retried(connect, fake, pauses):
    fake.answers = [BUSY, BUSY, CLASSIFIED]
    assert connect().classify([b"1", b"2"])[0].label == "bee"
    assert fake.calls == ["predict"] * 3
    assert 0.05 <= pauses[0] <= 0.15
    assert 0.1 <= pauses[1] <= 0.3


REFUSALS = [
    Failure("RESOURCE_EXHAUSTED", "Server Threadpool Exhausted"),
    Failure("RESOURCE_EXHAUSTED", "quota"),
    Failure("UNAVAILABLE", "The batch scheduling queue is full"),
]


def test_no_image_fails_if_half_of_the_requests_are_refused(connect, fake, monkeypatch):
    """Every second call, of sixteen at once."""
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(retries, "SHORTEST_PAUSE", 0.005)
    monkeypatch.setattr(retries, "LONGEST_PAUSE", 0.1)
    fake.answers = [answer for _ in range(1000) for answer in (REFUSALS[0], ONE)]
    many = connect(timeout=30).classify_many([b"1"] * 96, concurrency=16)
    results = [result for _, result in many]
    assert [result for result in results if not isinstance(result, Prediction)] == []
    assert len(results) == 96
    assert len(fake.calls) >= 2 * 96 - 1


@pytest.mark.parametrize(
    ("refusal", "batch_size"),
    [(REFUSALS[0], 1), (REFUSALS[1], 3), (REFUSALS[2], 3)],
    ids=lambda value: getattr(value, "words", value),
)
def test_retries_end_at_the_deadline(connect, fake, refusal, batch_size):
    fake.answers = [refusal]
    timeout = 3  # a busy machine needs some of it for the first answer
    client = connect(timeout=timeout)
    start = time.monotonic()
    many = client.classify_many([b"1"] * 3, batch_size=batch_size, concurrency=3)
    errors = [error for _, error in many]
    assert time.monotonic() - start > 0.8 * timeout
    assert [refusal.words in str(error) for error in errors] == [True] * 3
    most = 12 + timeout / (0.5 * retries.LONGEST_PAUSE)
    assert 3 / batch_size < len(fake.calls) <= 3 / batch_size * most


@pytest.mark.parametrize("timeout", [0.06, 0.3, 2.0, 20.0, 2000.0])
def test_pauses_grow_and_end_before_the_deadline(monkeypatch, timeout):
    now = [100.0]
    monkeypatch.setattr(retries.time, "monotonic", lambda: now[0])
    seen = []
    attempts = retries.Retries(timeout)
    while pause := attempts.pause_after(Unavailable("full")):
        seen.append(pause)
        now[0] += pause
    left = 100.0 + timeout - now[0]
    assert 0 < left < 2 * 1.5 * retries.FIRST_PAUSE
    assert all(pause <= 1.5 * retries.LONGEST_PAUSE for pause in seen)
    assert len(seen) <= 6 + timeout / (0.5 * retries.LONGEST_PAUSE) + 6


def test_no_retry_begins_shortly_before_the_deadline(connect, fake, monkeypatch):
    monkeypatch.setattr(retries, "SHORTEST_PAUSE", 10.0)
    fake.answers = [BUSY]
    with pytest.raises(Unavailable):
        connect(timeout=10).classify([b"1"])
    assert fake.calls == ["predict"]


def test_wait_ready_returns_once_the_model_answers(connect, fake, pauses):
    fake.others = [BUSY, Failure("NOT_FOUND", "Servable not found for request: x")]
    connect().wait_ready(timeout=30)
    assert fake.calls == ["metadata"] * 3
    assert len(pauses) == 2


def test_wait_ready_times_out_with_the_reason(connect, fake):
    fake.others = [Failure("NOT_FOUND", "Servable not found for request: x")] * 99
    with pytest.raises(DeadlineExceeded, match=r"within 2 s: Servable not found"):
        connect().wait_ready(timeout=2)
    assert 1 < len(fake.calls) <= 2 / (0.5 * READY_PAUSE) + 1


def test_wait_ready_ends_with_what_the_server_said_last(connect, fake):
    silence = Failure("DEADLINE_EXCEEDED", "silence")
    said = Failure("NOT_FOUND", "Servable not found for request: x")
    fake.others = [silence, said, *99 * [silence]]
    with pytest.raises(DeadlineExceeded, match=r"within 2 s: Servable not found"):
        connect().wait_ready(timeout=2)


def test_wait_ready_does_not_wait_for_an_unknown_label(connect, fake):
    words = "Unrecognized servable version label: nolabel"
    fake.others = [Failure("INVALID_ARGUMENT", words)]
    with pytest.raises(InvalidArgument, match="nolabel"):
        connect(label="nolabel").wait_ready()


def test_version_and_label_exclude_each_other(connect):
    with pytest.raises(ValueError, match="Only one of `version` and `label`"):
        connect(version=1, label="stable")


@pytest.mark.parametrize(
    "headers", [{"X-Ü": "a"}, {"a b": "c"}, {"": "a"}, {"x-bin": "a"}, {"x": "a\n"}]
)
def test_invalid_headers_are_refused(connect, headers_name, headers):
    with pytest.raises(ValueError, match=f"`{headers_name}` must have names"):
        connect(**{headers_name: headers})


def test_an_error_about_a_header_does_not_show_its_value(connect, headers_name):
    with pytest.raises(ValueError, match="authorization") as caught:
        connect(**{headers_name: {"Authorization": "paßwort"}})
    assert "wort" not in str(caught.value)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_deadlines_are_finite(connect, timeout):
    with pytest.raises(ValueError, match="`timeout` must be a positive number"):
        connect(timeout=timeout)


@pytest.mark.parametrize("method", ["classify", "embed", "status", "predict"])
def test_a_closed_client_raises(connect, method):
    client = connect()
    # The loop of an `Awaited` client must still run.
    getattr(client, "client", client)._closed = True
    if isinstance(client, BlockingClient):
        client.close()
    else:
        client.runner.run(client.client.close())
    arguments = {"status": [], "predict": [{"x": [1.0]}]}.get(method, [[b"1"]])
    with pytest.raises(ServingError, match="the client is closed"):
        getattr(client, method)(*arguments)


def test_the_blocking_clients_are_derived_from_the_asyncio_clients():
    written = blocking_form.RESULT.read_text("utf-8")
    assert written == blocking_form.blocking_form(blocking_form.SOURCE.read_text())


def test_every_public_name_exists():
    assert all(hasattr(clients, name) for name in clients.__all__)
