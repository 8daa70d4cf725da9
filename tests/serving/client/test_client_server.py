"""All four clients with the local server: answers, concurrency, deadlines."""

import asyncio
import contextlib
import gc
import itertools
import socket
import threading
import time
import weakref

import echo_model
import grpc
import httpx2
import numpy as np
import pytest
import tensorflow as tf
from client_fakes import KINDS, connected
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from serving.client import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
)
from serving.local import LocalServer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    base_path = tmp_path_factory.mktemp("echo")
    echo_model.save(base_path / "5")
    with LocalServer({"echo": base_path}, rest_port=0, grpc_port=0) as running:
        yield running


@pytest.fixture(scope="module")
def where(server):
    """The address for a kind of client."""
    return {
        kind: server.rest_url if kind.startswith("rest") else server.grpc_address
        for kind in KINDS
    }


@pytest.fixture(params=KINDS)
def connect(request, where):
    """Builds a client of one of the kinds."""
    with contextlib.ExitStack() as stack:

        def build(model="echo", **kwargs):
            client = connected(request.param, where[request.param], model, **kwargs)
            return stack.enter_context(client)

        yield build


def test_every_method_returns_the_model_s_outputs(connect):
    client = connect()
    client.wait_ready(10)
    assert [status.state for status in client.status()] == ["AVAILABLE"]
    assert {"embed", "attention"} <= set(client.metadata().signatures)
    first, second = client.classify([b"ant", b"zebra"], top_k=1)
    assert (first.label, first.class_id) == ("ant", 3)
    assert second.score == float(np.float32(1 / 5))
    embeddings = client.embed([b"\x00\x07\x0e\xff", b"ab"])
    np.testing.assert_array_equal(
        embeddings, np.float32([[0, 7, 14, 255], [97, 98, 0, 0]]) / np.float32(8)
    )
    [attention] = client.attention([b"\xff\x00"])
    assert attention.seen == b"\xff\x00"
    np.testing.assert_array_equal(attention.rollout, np.full((2, 3), np.float32(1 / 6)))
    with pytest.raises(InvalidArgument, match="no image"):
        client.classify([b"ant", b"bad"])
    with pytest.raises(NotFound, match="Servable not found"):
        connect("nothing").classify([b"ant"])


TENSORS = {
    "floats": st.floats(width=32),
    "integers": st.integers(-(2**63), 2**63 - 1),
    "bytes": st.integers(0, 255),
    "flags": st.booleans(),
    "strings_bytes": st.binary(max_size=9),
}
DTYPES = {
    "floats": "float32",
    "integers": "int64",
    "bytes": "uint8",
    "flags": "bool",
    "strings_bytes": object,
}


@st.composite
def tensors(draw):
    """One array of each type, of any shape."""
    shapes = arrays.array_shapes(min_dims=1, max_dims=3, max_side=3)
    drawn = {}
    for name, elements in TENSORS.items():
        shape = draw(shapes)
        size = int(np.prod(shape))
        values = draw(st.lists(elements, min_size=size, max_size=size))
        flat = np.empty(size, DTYPES[name])
        flat[:] = values
        drawn[name] = flat.reshape(shape)
    return drawn


@pytest.fixture(scope="module")
def all_clients(where):
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(connected(kind, where[kind], "echo")) for kind in KINDS
        ]


@pytest.fixture(scope="module")
def stub(server):
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


@settings(max_examples=60, deadline=None)
@given(sent=tensors())
def test_tensors_equal_those_of_the_official_stubs(all_clients, stub, sent):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "echo"
    request.model_spec.signature_name = "echo"
    for name, array in sent.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    answer = stub.Predict(request, timeout=10).outputs
    for client in all_clients:
        received = client.predict(sent, "echo")
        for name, array in sent.items():
            assert received[name].dtype == array.dtype
            np.testing.assert_array_equal(received[name], array)
            np.testing.assert_array_equal(
                received[name], tf.make_ndarray(answer[name]), strict=True
            )


@pytest.mark.parametrize(("batch_size", "concurrency"), [(1, 1), (1, 8), (3, 4)])
def test_many_are_in_order_and_bad_images_fail_alone(connect, batch_size, concurrency):
    images = [b"bad" if n % 7 == 3 else str(n).encode() for n in range(50)]
    many = connect().classify_many(
        iter(images), 1, batch_size=batch_size, concurrency=concurrency
    )
    results = list(many)
    assert [index for index, _ in results] == list(range(50))
    for image, (_, result) in zip(images, results, strict=True):
        if image == b"bad":
            assert isinstance(result, InvalidArgument)
        else:
            assert result.labels == (image.decode(),)


def test_many_read_images_lazily(connect):
    read = itertools.count()
    taken = 0

    def endless():
        for number in read:
            # Two requests of three images are held; the last image given is done.
            assert number <= taken + 2 * 3
            yield str(number).encode()

    many = connect().embed_many(endless(), batch_size=3, concurrency=2)
    for taken, (index, embedding) in enumerate(many):
        assert (index, embedding.shape) == (taken, (4,))
        if taken == 20:
            break
    many.close()


def test_a_file_that_cannot_be_read_fails_alone(connect, tmp_path):
    (tmp_path / "a").write_bytes(b"ant")
    files = [tmp_path / "a", tmp_path / "none", tmp_path, 3, tmp_path / "a"]
    results = [result for _, result in connect().attention_many(files, batch_size=5)]
    assert [isinstance(r, InvalidArgument) for r in results] == [0, 1, 1, 1, 0]
    assert isinstance(results[1].__cause__, FileNotFoundError)


@pytest.mark.parametrize(
    ("images", "options", "error"),
    [
        ([b"a"], {"batch_size": 0}, ValueError),
        ([b"a"], {"concurrency": 0}, ValueError),
        (b"a", {}, TypeError),
        ("a.png", {}, TypeError),
        ([b"a"], {"top_k": 0}, ValueError),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_result(
    connect, images, options, error
):
    with pytest.raises(error, match="Received: "):
        connect().classify_many(images, **options)


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_many_threads_share_a_client(kind, where):
    wrong = []

    def ask(client, number):
        for _ in range(10):
            [prediction] = client.classify([str(number).encode()])
            if prediction.label != str(number):
                wrong.append((number, prediction))

    with connected(kind, where[kind], "echo", timeout=60) as client:
        threads = [
            threading.Thread(target=ask, args=(client, number)) for number in range(32)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize("kind", ["rest-asyncio", "grpc-asyncio"])
def test_many_tasks_share_a_client(kind, where):
    async def ask_all():
        async with KINDS[kind](where[kind], "echo", timeout=60) as client:
            asked = [client.classify([str(n).encode()]) for n in range(200)]
            answers = await asyncio.gather(*asked)
        return [answer[0].label for answer in answers]

    assert asyncio.run(ask_all()) == [str(number) for number in range(200)]


LONG = {"milliseconds": 1_500}  # the tests below stop waiting earlier


def test_a_slow_call_times_out(connect):
    client = connect(timeout=0.5)
    client.metadata()
    with pytest.raises(DeadlineExceeded, match=r"no answer from .* within 0\.\d+ s"):
        client.predict(LONG, "pause")


@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_closing_ends_the_calls_in_flight(kind, where):
    caught = []

    def ask():
        try:
            client.predict(LONG, "pause")
        except ServingError as error:
            caught.append(str(error))

    client = connected(kind, where[kind], "echo", timeout=2)
    client.metadata()
    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.3)
    client.close()
    thread.join(10)
    assert caught == ["the client is closed"]


@pytest.mark.parametrize("kind", ["rest-asyncio", "grpc-asyncio"])
def test_closing_ends_the_tasks_in_flight(kind, where):
    async def close_early():
        client = KINDS[kind](where[kind], "echo", timeout=5)
        task = asyncio.create_task(client.predict(LONG, "pause"))
        await asyncio.sleep(0.3)
        await client.close()
        with pytest.raises(ServingError, match="the client is closed"):
            await task

    asyncio.run(close_early())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rest-asyncio", "grpc-asyncio"])
def test_a_cancelled_task_leaves_the_client_usable(kind, where):
    async def cancel():
        async with KINDS[kind](where[kind], "echo", timeout=60) as client:
            task = asyncio.create_task(client.predict(LONG, "pause"))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            [prediction] = await client.classify([b"ant"])
            assert prediction.label == "ant"

    asyncio.run(cancel())


def test_images_are_read_outside_the_event_loop():
    readers = []

    def images():
        readers.append(threading.current_thread())
        yield b"1"

    async def embed():
        answer = httpx2.Response(200, text='{"outputs": [[1.0]]}')
        transport = httpx2.MockTransport(lambda _: answer)
        async with KINDS["rest-asyncio"](
            "http://server", "echo", transport=transport
        ) as client:
            return await client.embed(images())

    assert asyncio.run(embed()).shape == (1, 1)
    assert readers != [threading.main_thread()]


def test_leaving_a_stream_cancels_its_requests():
    asked = []

    async def answer_the_first(request):
        asked.append(request)
        if len(asked) > 1:
            await asyncio.Event().wait()  # for ever
        return httpx2.Response(200, text='{"outputs": [[1.0]]}')

    async def leave():
        transport = httpx2.MockTransport(answer_the_first)
        async with KINDS["rest-asyncio"](
            "http://server", "echo", timeout=60, transport=transport
        ) as client:
            async with contextlib.aclosing(client.embed_many([b"ant"] * 9)) as many:
                async for _ in many:
                    break
            return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(leave()) == set()
    assert 1 < len(asked) <= 8


@pytest.mark.parametrize("kind", KINDS)
def test_the_port_of_the_other_transport_is_recognized(kind, server):
    rest = kind.startswith("rest")
    address = server.rest_url.removeprefix("http://")
    other = f"http://{server.grpc_address}" if rest else address
    with (
        connected(kind, other, "echo") as client,
        pytest.raises(ServingError, match="is it the port of"),
    ):
        client.status()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("without_retries")
def test_unknown_host_names_are_unavailable(kind):
    name = "nobody.invalid:1"
    url = f"http://{name}" if kind.startswith("rest") else name
    with (
        connected(kind, url, "echo", timeout=5) as client,
        pytest.raises((Unavailable, DeadlineExceeded)),
    ):
        client.status()


@pytest.mark.parametrize("kind", KINDS)
def test_a_silent_server_times_out(kind):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        url = f"http://{address}" if kind.startswith("rest") else address
        start = time.monotonic()
        with (
            connected(kind, url, "echo", timeout=0.5) as client,
            pytest.raises((DeadlineExceeded, Unavailable)),
        ):
            client.status()
        assert time.monotonic() - start > 0.4


def test_the_asyncio_client_over_grpc_needs_an_event_loop(where):
    with pytest.raises(RuntimeError, match="no running event loop"):
        KINDS["grpc-asyncio"](where["grpc"], "echo")


def test_errors_do_not_keep_a_client_alive():
    def hang(_):
        raise httpx2.ReadTimeout("")

    def failed():
        client = KINDS["rest"]("http://s", "m", transport=httpx2.MockTransport(hang))
        with contextlib.suppress(DeadlineExceeded):
            client.metadata()
        return weakref.ref(client)

    gc.disable()
    try:
        assert failed()() is None
    finally:
        gc.enable()
