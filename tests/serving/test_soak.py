"""A short soak of the local server, and the faults that a soak detects."""

import asyncio
import itertools

import numpy as np
import pytest
import soak as soak_module
from simulated_time import simulated
from soak import MEBIBYTE, Record, Soak, Versions, growth
from soak_requests import Case
from soak_run import soak_local_server

from serving.client import InvalidArgument, ServingError, Unavailable
from serving.client.protocol import Call

CASES = [
    Case("REST", "valid", Call("valid", None)),
    Case("REST", "invalid", Call("invalid", None), InvalidArgument),
]


def answer(labels=("a",), scores=(0.5, 2e4)):
    return {"labels": np.array(labels, object), "scores": np.array(scores)}


class FakeClient:
    """Takes 10 ms for a request; some outcomes change after the first 20."""

    def __init__(self, changes):
        self.outcomes = {"valid": answer(), "invalid": InvalidArgument("no")}
        self.changes, self.numbers = changes, itertools.count()

    async def ask_once(self, call):
        await asyncio.sleep(0.01)
        if next(self.numbers) == 20:
            self.outcomes.update(self.changes)
        outcome = self.outcomes[call.request]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def run_soak(changes=None, seconds=2.0, run=simulated, **arguments):
    async def measure():
        clients = {"REST": FakeClient(changes or {})}
        return await Soak(clients, CASES).run(seconds, **arguments)

    return run(measure())


def test_a_server_without_faults_passes():
    record = run_soak()
    assert record.complaints() == []
    assert record.sent["REST valid"] == pytest.approx(
        record.sent["REST invalid"], rel=0.3
    )
    assert record.sent.total() > 400


@pytest.mark.parametrize(
    ("name", "outcome", "wanted"),
    [
        ("valid", ServingError("oh"), "valid: ServingError instead of an answer: oh"),
        ("valid", answer(labels=["b"]), "valid: labels changed"),
        ("valid", answer(scores=[0.51, 2e4]), "valid: scores changed"),
        ("valid", answer(scores=[0.5, 2.1e4]), "valid: scores changed"),
        ("valid", answer(scores=[np.nan, 2e4]), "valid: scores changed"),
        ("valid", answer(scores=[0.5]), "valid: scores changed"),
        ("valid", {"labels": np.array(["a"])}, "valid: set of outputs changed"),
        ("invalid", Unavailable("oh"), "Unavailable instead of InvalidArgument: oh"),
        ("invalid", answer(), "invalid: an answer instead of InvalidArgument"),
    ],
)
def test_each_fault_is_found(name, outcome, wanted):
    [line] = run_soak({name: outcome}).complaints()
    assert wanted in line


def test_rounding_errors_are_not_faults():
    close = answer(scores=[0.50001, 20001])
    assert run_soak({"valid": close}).complaints() == []


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
def test_memory_growth_is_distinguished_from_warm_up_and_swaps(sizes, flat):
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
