"""The generator's own connections, beside servers that answer in every way."""

import asyncio

import grpc
import pytest

from serving.load.generator import Load, generate
from serving.load.results import summarize
from serving.load.senders import GrpcRequest, GrpcSender, RestRequest, RestSender
from serving.load.server_metrics import PATH, difference, read_counts

REQUEST = RestRequest("POST", "/v1/models/m:predict", b'{"inputs": [1]}')
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Answers:
    """A server that gives the same bytes to every request, and keeps what it was sent.

    Args:
        answer: the bytes; None: it never answers.
        then_close: whether it hangs up after an answer.
    """

    def __init__(self, answer, then_close=False):
        self.answer, self.then_close = answer, then_close
        self.received, self.connections = [], 0

    async def _serve(self, reader, writer):
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(
                    line.split(": ", 1) for line in head.decode().split("\r\n")[1:-2]
                )
                length = int(
                    {k.lower(): v for k, v in fields.items()}["content-length"]
                )
                self.received.append(head + await reader.readexactly(int(length)))
                if self.answer is None:
                    await asyncio.sleep(60)
                writer.write(self.answer)
                await writer.drain()
                if self.then_close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.sender = RestSender(f"http://127.0.0.1:{port}/at/a/path/")
        return self

    async def __aexit__(self, *exc_info):
        await self.sender.close()
        self._server.close()


def ask(answer, times=1, timeout=10.0, **server):
    async def run():
        async with Answers(answer, **server) as answers:
            replies = [await answers.sender.ask(REQUEST, timeout) for _ in range(times)]
            return answers, replies

    return asyncio.run(run())


def test_a_request_arrives_as_it_was_meant_and_connections_are_used_again():
    answers, replies = ask(ANSWER, times=3)
    assert replies == [("OK", b"{}")] * 3
    assert answers.connections == 1
    head, _, body = answers.received[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /at/a/path/v1/models/m:predict HTTP/1.1\r\n")
    assert b"Content-Type: application/json" in head
    assert body == REQUEST.body
    assert answers.received == answers.received[:1] * 3


@pytest.mark.parametrize(
    ("answer", "then_close", "wanted"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", False, "HTTP 503"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", True, "OK"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
            False,
            "OK",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER, False, "OK"),
        (b"HTTP/1.0 200 OK\r\n\r\n{}", True, "OK"),
        (ANSWER, True, "OK"),
        (ANSWER[:-1], True, "connection lost"),
        (b"", True, "connection lost"),
        (b"no HTTP\r\n\r\n", False, "connection lost"),
    ],
)
def test_each_kind_of_answer_is_named(answer, then_close, wanted):
    _, replies = ask(answer, times=2, then_close=then_close)
    assert [reply.code for reply in replies] == [wanted] * 2
    if wanted == "OK":
        assert [reply.body for reply in replies] == [b"{}"] * 2


def test_an_answer_that_does_not_come_is_a_timeout():
    _, [reply] = ask(None, timeout=0.05)
    assert reply == ("timeout", b"")


def test_the_answer_after_a_timeout_is_not_read_as_the_next_one():
    async def run():
        async with Answers(None) as answers:
            await answers.sender.ask(REQUEST, 0.05)
            answers.answer = ANSWER
            reply = await answers.sender.ask(REQUEST, 10.0)
            return reply, answers.connections

    assert asyncio.run(run()) == (("OK", b"{}"), 2)


def test_a_server_that_goes_away_is_counted():
    """While requests run; and the generator does not hammer at the closed door."""

    async def run():
        async with Answers(ANSWER) as answers:
            load = Load(clients=2, duration=1.0, warmup=0.0)
            running = asyncio.create_task(generate(answers.sender, [REQUEST], load))
            await asyncio.sleep(0.3)
            answers.then_close = True
            answers._server.close()
            return summarize(await running)

    result = asyncio.run(run())
    assert len(result.latencies) > 10
    assert "no connection" in result.errors
    assert 1 <= sum(result.errors.values()) < 100
    assert result.requests == len(result.latencies) + sum(result.errors.values())


@pytest.mark.parametrize("url", ["127.0.0.1:8501", "ftp://host", "http://", ""])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ValueError, match="url"):
        RestSender(url)


class _Handler(grpc.GenericRpcHandler):
    """Answers with its own request; `fail` and `sleep` do what they say."""

    def service(self, details):
        async def answer(request, context):
            if request == b"fail":
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no good")
            if request == b"sleep":
                await asyncio.sleep(60)
            return request + details.method.encode()

        return grpc.unary_unary_rpc_method_handler(answer)


def test_grpc_answers_and_errors_are_named():
    async def run():
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([_Handler()])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        sender = GrpcSender(f"127.0.0.1:{port}")
        found = [
            await sender.ask(GrpcRequest(message), timeout)
            for message, timeout in [(b"a", 10), (b"fail", 10), (b"sleep", 0.1)]
        ]
        await server.stop(0)
        found.append(await sender.ask(GrpcRequest(b"a"), 10))
        await sender.close()
        return found

    answered, failed, slow, gone = asyncio.run(run())
    assert answered == ("OK", b"a/tensorflow.serving.PredictionService/Predict")
    assert failed == ("INVALID_ARGUMENT", b"no good")
    assert slow.code in ("timeout", "DEADLINE_EXCEEDED")
    assert gone.code == "UNAVAILABLE"


PAGE = """\
# TYPE :tensorflow:serving:batching:processed_batch_size_v2 counter
:tensorflow:serving:batching:processed_batch_size_v2{model_name="",op_name="b",batch_size="8"} %d
:tensorflow:serving:batching:processed_batch_size_v2{model_name="",op_name="b",batch_size="1"} 7
# TYPE :tensorflow:serving:request_latency histogram
:tensorflow:serving:request_latency_bucket{model_name="m",API="predict",entrypoint="REST",le="10"} 0
:tensorflow:serving:request_latency_sum{model_name="m",API="predict",entrypoint="REST"} %g
:tensorflow:serving:request_latency_count{model_name="m",API="predict",entrypoint="REST"} %d
:tensorflow:serving:request_latency_sum{model_name="m",API="",entrypoint="REST"} 1e9
:tensorflow:serving:request_latency_count{model_name="m",API="",entrypoint="REST"} %d
:tensorflow:serving:request_latency_sum{model_name="n",API="predict",entrypoint="REST"} 1e9
:tensorflow:serving:request_latency_count{model_name="n",API="predict",entrypoint="REST"} %d
"""  # noqa: E501


def page(*values):
    async def run():
        text = (PAGE % values).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n"
        async with Answers(head.encode() + text) as answers:
            counts = await read_counts(answers.sender)
            assert f"GET /at/a/path{PATH} ".encode() in answers.received[0]
            return counts

    return asyncio.run(run())


def test_the_server_s_own_counts_are_the_difference_of_two_looks():
    """In the names and labels of TensorFlow 2.20's batch operation."""
    counted = difference(page(10, 1000, 5, 1, 1), page(15, 61000, 25, 9, 9), "m")
    assert counted.batches == {8: 5}
    assert counted.latency == pytest.approx(3000e-6)


def test_a_server_without_metrics_tells_nothing():
    async def run():
        async with Answers(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n") as answers:
            return await read_counts(answers.sender)

    assert asyncio.run(run()) == {}
    assert difference({}, {}, "m") == ({}, None)
