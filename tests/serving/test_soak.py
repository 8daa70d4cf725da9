"""A short soak of the local server, and the faults that a soak detects."""

import asyncio
import itertools
import json

import numpy as np
import pytest
import soak as soak_module
from simulated_time import simulated
from soak import MEBIBYTE, Record, Soak, Versions, growth
from soak_requests import Case
from soak_run import soak_local_server

from serving.client.rest_protocol import RestRequest


def read(body):
    return {name: np.array(value) for name, value in json.loads(body).items()}


CASES = [
    Case("valid", RestRequest("POST", "/valid", b""), "HTTP 200", read),
    Case("invalid", RestRequest("POST", "/invalid", b""), "HTTP 400"),
]
REPLIES = {
    "/valid": ("HTTP 200", b'{"labels": ["a"], "scores": [0.5, 2e4]}'),
    "/invalid": ("HTTP 400", b"no"),
}


class FakeTransport:
    """Takes 10 ms for a request; some replies change after the first 20."""

    def __init__(self, changes):
        self.changes, self.numbers = changes, itertools.count()

    async def send(self, request):
        await asyncio.sleep(0.01)
        changed = self.changes if next(self.numbers) > 20 else {}
        return {**REPLIES, **changed}[request.path]


def run_soak(changes=None, seconds=2.0, run=simulated, **arguments):
    async def measure():
        return await Soak(FakeTransport(changes or {}), CASES).run(seconds, **arguments)

    return run(measure())


def test_a_server_without_faults_passes():
    record = run_soak()
    assert record.complaints() == []
    assert record.sent["valid"] == pytest.approx(record.sent["invalid"], rel=0.3)
    assert record.sent.total() > 400


@pytest.mark.parametrize(
    ("path", "reply", "wanted"),
    [
        ("/valid", ("HTTP 500", b"oh"), "valid: HTTP 500 instead of HTTP 200: oh"),
        ("/valid", ("ReadTimeout", b""), "valid: ReadTimeout instead of HTTP 200"),
        ("/valid", '{"labels": ["b"], "scores": [0.5, 2e4]}', "valid: labels changed"),
        ("/valid", '{"labels": ["a"], "scores": [0.51, 2e4]}', "scores changed"),
        ("/valid", '{"labels": ["a"], "scores": [0.5, 2.1e4]}', "scores changed"),
        ("/valid", '{"labels": ["a"], "scores": [NaN, 2e4]}', "scores changed"),
        ("/valid", '{"labels": ["a"], "scores": [0.5]}', "scores changed"),
        ("/valid", '{"labels": ["a"]}', "set of outputs changed"),
        ("/valid", "{", "unreadable answer"),
        ("/invalid", ("HTTP 503", b"oh"), "invalid: HTTP 503 instead of HTTP 400"),
        ("/invalid", ("HTTP 200", b"{}"), "invalid: HTTP 200 instead of HTTP 400"),
    ],
)
def test_each_fault_is_found(path, reply, wanted):
    if isinstance(reply, str):
        reply = ("HTTP 200", reply.encode())
    [line] = run_soak({path: reply}).complaints()
    assert wanted in line


def test_rounding_errors_are_not_faults():
    close = b'{"labels": ["a"], "scores": [0.50001, 20001]}'
    assert run_soak({"/valid": ("HTTP 200", close)}).complaints() == []


def test_a_terminated_server_ends_the_soak():
    sizes = iter([100, 100])

    def memory():
        for size in sizes:
            return size
        raise ProcessLookupError

    record = run_soak(seconds=60.0, memory=memory)
    assert [size for _, size in record.memory] == [100, 100]
    assert record.complaints() == ["1 x the server terminated: "]


def test_a_version_that_is_not_loaded_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(soak_module, "SWAP_SECONDS", 0.3)
    (tmp_path / "source").mkdir()
    (tmp_path / "copies").mkdir()

    async def never(number):
        return False

    record = run_soak(
        seconds=60.0,
        run=asyncio.run,
        versions=Versions(tmp_path / "source", tmp_path / "copies"),
        swap_every=0.1,
        is_available=never,
    )
    assert record.complaints() == ["1 x version 2 was not loaded: "]
    assert (tmp_path / "copies" / "1").exists()


def samples(sizes, seconds=1800):
    times = np.linspace(0, seconds, len(sizes))
    return [(time, size * MEBIBYTE) for time, size in zip(times, sizes, strict=True)]


RANDOM = np.random.default_rng(0)
NOISE = RANDOM.uniform(0, 20, 1800)
SWAPS = 300.0 * (np.arange(1800) % 60 < 8)  # a second version beside the first


@pytest.mark.parametrize(
    ("sizes", "flat"),
    [
        (500 + NOISE + SWAPS, True),
        (900 - 400 * np.exp(-np.arange(1800) / 60) + NOISE, True),  # warming up
        (500 + NOISE + RANDOM.permutation(SWAPS), True),  # garbage, collected late
        (500 + NOISE + SWAPS + np.arange(1800) / 12, False),  # 5 MiB a swap
        (500 + NOISE + 150.0 * (np.arange(1800) > 1300), False),
    ],
)
def test_memory_growth_is_told_from_warming_up_and_swapping(sizes, flat):
    memory = samples(sizes)
    assert growth(memory).flat == flat
    assert bool(Record(memory=memory).complaints()) != flat


def test_memory_is_not_judged_in_less_than_ten_minutes():
    assert growth([]) is None
    assert growth(samples(500 + np.arange(500.0), seconds=500)) is None
    assert growth(samples(500 + np.arange(700.0), seconds=700)) is not None


@pytest.mark.slow
def test_a_short_soak_of_the_local_server(tiny_vit, tmp_path):
    from serving.export.publish import publish

    publish(tiny_vit(), tmp_path / "tiny")
    record = soak_local_server(tmp_path / "tiny", seconds=5, swap_every=1)
    assert record.complaints() == []
    assert record.swaps >= 1
    assert record.sent.total() > 200
