"""The load generator, beside queueing theory and servers with known answers."""

import asyncio
import contextlib
import itertools
import math

import numpy as np
import pytest
from simulated_time import simulated

from serving.load.generator import Load, generate
from serving.load.results import summarize
from serving.load.senders import Reply, Sender


class Server(Sender):
    """A server that works on `places` requests at once, first come first served.

    Args:
        seconds: what each takes, in turn.
        codes: what comes of each, in turn.
    """

    def __init__(self, seconds, codes=("OK",), places=math.inf):
        self.seconds = itertools.cycle(seconds)
        self.codes = itertools.cycle(codes)
        self.places = (
            contextlib.nullcontext()
            if places == math.inf
            else asyncio.Semaphore(places)
        )

    async def _ask(self, request, timeout):
        async with self.places:
            await asyncio.sleep(next(self.seconds))
        return Reply(next(self.codes), b"said so")

    async def close(self):
        pass


def measure(load, **server):
    async def run():
        return summarize(await generate(Server(**server), ["request"], load))

    return simulated(run())


def test_the_mean_wait_is_that_of_an_m_d_1_queue():
    """Pollaczek-Khinchine: utilization x service time / (2 (1 - utilization))."""
    load = Load(rate=80.0, duration=500.0, warmup=20.0, timeout=100.0)
    result = measure(load, seconds=[0.01], places=1)
    assert result.requests == pytest.approx(40_000, rel=0.02)
    wait = result.latencies.mean() - 0.01
    assert wait == pytest.approx(0.8 * 0.01 / (2 * 0.2), rel=0.08)
    assert result.throughput == pytest.approx(80.0, rel=0.02)


def test_arrivals_are_a_poisson_process():
    load = Load(rate=50.0, duration=400.0, warmup=0.0)

    async def run():
        return await generate(Server([0.0]), [0], load)

    moments = [sample.intended for sample in simulated(run()).samples]
    gaps = np.diff(np.sort(moments))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    # Of exponential gaps standard deviation and mean agree, and 1/e exceed the mean.
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    assert (gaps > gaps.mean()).mean() == pytest.approx(math.exp(-1), rel=0.03)


@pytest.mark.parametrize("connections", [4, 256])
def test_an_open_loop_shows_a_stall_to_all_who_came_meanwhile(connections):
    """1 s in 20 s: 5 % wait, evenly up to 1 s, be there connections for them or not."""
    seconds = [*[0.001] * 1000, 1.0, *[0.001] * 5000]
    load = Load(rate=100.0, duration=20.0, warmup=0.0, connections=connections)
    result = measure(load, seconds=seconds, places=1)
    shown = result.percentiles()
    assert shown["max"] == pytest.approx(1.0, abs=0.05)
    assert shown["p99"] == pytest.approx(0.8, abs=0.15)
    assert shown["p90"] < 0.01
    assert (result.late > 0.5) == (connections == 4)


def test_a_closed_loop_asks_again_only_after_an_answer():
    result = measure(Load(clients=4, duration=10.0, warmup=1.0), seconds=[0.01])
    assert result.throughput == pytest.approx(400.0, rel=0.01)
    assert result.percentiles()["max"] == pytest.approx(0.01)
    assert result.late == 0.0


def test_percentiles_are_latencies_that_were_seen():
    """Of 1, 2, ..., 1000 ms."""
    load = Load(clients=1, requests=1000, warmup=0.0)
    random = np.random.default_rng(0)
    seconds = random.permutation(np.arange(1, 1001) / 1000)
    result = measure(load, seconds=seconds.tolist())
    wanted = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
    assert result.percentiles() == pytest.approx({**wanted, "max": 1.0})


@pytest.mark.parametrize("count", [1, 2, 7, 99, 150, 1001])
def test_percentiles_of_any_number_are_numpy_s(count):
    seconds = np.random.default_rng(count).exponential(size=count)
    result = measure(Load(clients=1, requests=count, warmup=0.0), seconds=seconds)
    shown = list(result.percentiles().values())
    percentiles = [50, 90, 95, 99, 99.9, 100]
    wanted = np.percentile(seconds, percentiles, method="inverted_cdf")
    np.testing.assert_allclose(shown, wanted, rtol=1e-9)


def test_the_warm_up_is_left_out():
    slow_start = itertools.chain([0.5] * 10, itertools.repeat(0.01))
    result = measure(
        Load(clients=1, duration=10.0, warmup=6.0),
        seconds=list(itertools.islice(slow_start, 5000)),
    )
    assert result.percentiles()["max"] == pytest.approx(0.01)
    assert result.requests == pytest.approx(1000, abs=1)


def test_errors_are_counted_by_code_and_have_no_latency():
    codes = ["OK", "HTTP 503", "OK", "HTTP 400", "OK"]
    seconds = [0.01, 5.0, 0.01, 5.0, 0.01]
    load = Load(clients=1, requests=100, warmup=0.0)
    result = measure(load, seconds=seconds, codes=codes)
    assert result.requests == 100
    assert result.errors == {"HTTP 503": 20, "HTTP 400": 20}
    assert result.texts == {"HTTP 503": "said so", "HTTP 400": "said so"}
    assert len(result.latencies) == 60
    assert result.percentiles()["max"] == pytest.approx(0.01)
    assert result.throughput == pytest.approx(60 / (60 * 0.01 + 40 * 5))


@pytest.mark.parametrize("load", [{"clients": 3}, {"rate": 30.0}])
def test_a_server_that_never_answers_ends_the_run_in_time(load):
    async def run():
        loop = asyncio.get_running_loop()
        begin = loop.time()
        found = await generate(
            Server([1e9]),
            ["request"],
            Load(**load, duration=10.0, warmup=1.0, timeout=2.0, connections=5),
        )
        return summarize(found), loop.time() - begin

    result, elapsed = simulated(run())
    assert elapsed <= 15.0
    assert set(result.errors) <= {"timeout", "not sent"}
    assert sum(result.errors.values()) == result.requests
    assert result.errors["timeout"]
    assert result.throughput == 0.0
    assert all(math.isnan(value) for value in result.percentiles().values())


def test_too_high_a_rate_shows_what_the_server_can_do():
    """Twice that: half of the requests wait ever longer, and some are never sent."""
    load = Load(rate=100.0, duration=50.0, warmup=10.0, timeout=1.0, connections=8)
    result = measure(load, seconds=[0.02], places=1)
    assert result.throughput == pytest.approx(50.0, rel=0.01)
    assert result.requests == pytest.approx(5000, rel=0.05)
    assert set(result.errors) == {"not sent"}
    assert result.errors["not sent"] == pytest.approx(3000, rel=0.05)
    assert result.percentiles()["max"] == pytest.approx(30.0, rel=0.1)


def test_throughput_counts_what_ends_within_the_window():
    """Not the answers to the window's requests that come after it."""
    load = Load(clients=10, duration=2.5, warmup=1.0)
    result = measure(load, seconds=[1.0])
    assert result.throughput == pytest.approx(10 * 3 / 2.5)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"clients": 1, "rate": 1.0},
        {"clients": 0},
        {"rate": math.inf},
        {"clients": 1, "duration": 0},
        {"clients": 1, "warmup": -1},
        {"clients": 1, "timeout": math.nan},
    ],
)
def test_a_load_that_cannot_be_is_refused(arguments):
    with pytest.raises(ValueError, match="must"):
        Load(**arguments)


def test_progress_ends_and_counts():
    seen = []

    async def run():
        load = Load(clients=1, duration=5.0, warmup=1.0)
        server = Server([0.1], ["OK", "HTTP 500"])
        await generate(server, [0], load, lambda *told: seen.append(told))

    simulated(run())
    shares, answers, errors = zip(*seen, strict=True)
    assert shares == tuple(sorted(shares))
    assert 0.9 < shares[-1] <= 1.0
    assert answers[-1] == pytest.approx(30, abs=2)
    assert errors[-1] == pytest.approx(30, abs=2)
