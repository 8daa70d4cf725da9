"""The soak: it finds each fault that it is there for, and the local server has none."""

import asyncio
import dataclasses
import itertools
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
from PIL import Image
from simulated_time import simulated

from serving.load.senders import GrpcRequest, Reply, RestRequest, Sender
from serving.load.soak import Asked, Record, Soak
from serving.load.soak_command import soak
from serving.load.soak_picture import draw
from serving.load.soak_report import complaints, growth
from serving.load.soak_requests import Case
from serving.load.soak_versions import SoakVersions

MEBIBYTE = 2**20


def read(body):
    return {name: np.array(value) for name, value in json.loads(body).items()}


GOOD = Case("good", RestRequest("POST", "/good"), read=read)
BAD = Case("bad", RestRequest("POST", "/bad"), code="HTTP 400")
ANSWERS = {
    "/good": Reply("OK", b'{"labels": ["a"], "scores": [0.5, 2e4]}'),
    "/bad": Reply("HTTP 400", b"no"),
}


class Server(Sender):
    """Takes 10 ms for a request; some answers change after the first 20."""

    def __init__(self, changes):
        self.changes, self.numbers = changes, itertools.count()

    async def _ask(self, request, timeout):
        await asyncio.sleep(0.01)
        changes = self.changes if next(self.numbers) > 20 else {}
        return {**ANSWERS, **changes}.get(request.path, Reply("HTTP 404", b""))

    async def close(self):
        pass


def soaked(changes=None, cases=(GOOD, BAD), seconds=2.0, run=simulated, **arguments):
    """The record of a soak; its time is simulated, unless `run` is asyncio's."""

    async def measure():
        senders = {RestRequest: Server(changes or {})}
        return await Soak("m", senders, cases, tolerance=1e-3).run(
            seconds, 2, **arguments
        )

    return run(measure())


def test_a_server_without_faults_passes():
    record = soaked()
    assert complaints(record, swaps_wanted=False) == []
    assert record.faulty == 0
    sent = [asked.case.name for asked in record.asked]
    assert len(sent) > 40
    assert sent.count("good") / len(sent) == pytest.approx(0.5, abs=0.2)
    assert record.seconds == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(
    ("path", "code", "text", "wanted"),
    [
        ("/good", "HTTP 500", "oh", "good: .* HTTP 500 in place of OK: oh"),
        ("/good", "timeout", "", "good: .* timeout in place of OK"),
        ("/good", "OK", '{"labels": ["b"], "scores": [0.5, 2e4]}', "labels is another"),
        ("/good", "OK", '{"labels": ["a"], "scores": [0.5, 2.1e4]}', "scores differs"),
        ("/good", "OK", '{"labels": ["a"], "scores": [0.51, 2e4]}', "scores differs"),
        ("/good", "OK", '{"labels": ["a"], "scores": [NaN, 2e4]}', "scores differs"),
        ("/good", "OK", '{"labels": ["a"], "scores": [0.5]}', "the shape"),
        ("/good", "OK", '{"labels": ["a"]}', "outputs"),
        ("/good", "OK", "{", "cannot be read"),
        ("/bad", "HTTP 500", "oh", "bad: .* HTTP 500 in place of HTTP 400"),
        ("/bad", "HTTP 503", "oh", "bad: .* HTTP 503 in place of HTTP 400"),
        ("/bad", "OK", "{}", "bad: .* OK in place of HTTP 400"),
    ],
)
def test_each_fault_is_found(path, code, text, wanted):
    record = soaked({path: Reply(code, text.encode())})
    [line] = complaints(record, swaps_wanted=False)
    assert re.search(wanted, line)
    assert record.faulty == sum(bool(asked.fault) for asked in record.asked) > 50


def test_rounding_is_no_fault():
    close = b'{"labels": ["a"], "scores": [0.50001, 20001]}'
    assert soaked({"/good": Reply("OK", close)}).faulty == 0


def test_a_server_that_ends_is_a_fault_and_ends_the_soak():
    looks = itertools.count()

    def memory():
        if next(looks) > 1:
            raise ProcessLookupError
        return 100

    record = soaked(seconds=60.0, memory=memory)
    assert record.seconds < 30
    assert "the server ended" in complaints(record, swaps_wanted=False)
    assert [size for _, size in record.memory] == [100, 100]


def version(folder, number, text="model"):
    path = folder / str(number)
    (path / "variables").mkdir(parents=True)
    (path / "saved_model.pb").write_text(text)


def test_versions_are_swapped_while_requests_run(tmp_path):
    version(tmp_path / "model", 3)
    copies = tmp_path / "copies"
    copies.mkdir()
    versions = SoakVersions(tmp_path / "model", copies)
    status = Reply("OK", b'{"state": "AVAILABLE"}')
    record = soaked(
        {f"/v1/models/m/versions/{number}": status for number in range(99)},
        seconds=5.0,
        run=asyncio.run,
        versions=versions,
        swap_every=0.2,
    )
    assert len(record.swaps) >= 2
    assert versions.number == pytest.approx(1 + len(record.swaps), abs=1)
    assert complaints(record, swaps_wanted=True) == []


def test_a_version_that_does_not_serve_is_a_fault(tmp_path, monkeypatch):
    monkeypatch.setattr("serving.load.soak._SWAP_SECONDS", 0.3)
    version(tmp_path / "model", 3)
    (tmp_path / "copies").mkdir()
    versions = SoakVersions(tmp_path / "model", tmp_path / "copies")
    record = soaked(seconds=60.0, run=asyncio.run, versions=versions, swap_every=0.1)
    assert complaints(record, swaps_wanted=True) == [
        "version 2 did not serve in time",
        "no version was swapped",
    ]
    assert (tmp_path / "copies" / "1").exists()


def test_copies_replace_each_other_and_the_model_stays(tmp_path):
    model, copies = tmp_path / "model", tmp_path / "copies"
    version(model, 9, "old")
    version(model, 10, "new")
    (model / "notes").mkdir()
    copies.mkdir()
    versions = SoakVersions(model, copies)
    versions.add()
    names = {path.name for path in copies.iterdir()}
    assert names == {"1", "2"}
    versions.remove_older()
    assert {path.name for path in copies.iterdir()} == {"2"}
    assert (copies / "2" / "saved_model.pb").read_text() == "new"
    assert {path.name for path in model.iterdir()} == {"9", "10", "notes"}


def samples(sizes, seconds=1800):
    times = np.linspace(0, seconds, len(sizes))
    return [
        (time, int(size * MEBIBYTE)) for time, size in zip(times, sizes, strict=True)
    ]


RANDOM = np.random.default_rng(0)
NOISE = RANDOM.uniform(0, 20, 1800)
SWAPS = 300.0 * (np.arange(1800) % 60 < 8)  # a second version beside the first


@pytest.mark.parametrize(
    ("sizes", "flat"),
    [
        (500 + NOISE, True),
        (500 + NOISE + SWAPS, True),
        (900 - 400 * np.exp(-np.arange(1800) / 60) + NOISE, True),  # warming up
        (500 + NOISE + SWAPS + np.arange(1800) / 12, False),  # 5 MB a swap
        (500 + NOISE + 150.0 * (np.arange(1800) > 1300), False),
        (500 + NOISE + RANDOM.permutation(SWAPS), True),  # garbage, collected late
    ],
)
def test_growth_is_told_from_warming_up_and_swapping(sizes, flat):
    found = growth(samples(sizes))
    assert found.flat == flat
    record = Record(memory=samples(sizes), swaps=[1.0])
    assert len(repr(record)) < 100  # asyncio.run makes one
    assert any("memory grew" in line for line in complaints(record, True)) != flat


def test_growth_per_hour_is_the_slope():
    assert growth(samples(500 + np.arange(1800) / 10)).per_hour == pytest.approx(
        360 * MEBIBYTE, rel=0.01
    )


def test_a_short_soak_tells_nothing_about_memory():
    assert growth([]) is None
    assert growth(samples([500.0])) is None
    assert growth(samples(500 + np.arange(500.0), seconds=500)) is None
    assert growth(samples(500 + np.arange(700.0), seconds=700)) is not None


def test_a_fault_is_told_once_with_its_number():
    grpc = Case("gRPC good", GrpcRequest(b""))
    record = Record([Asked(grpc, 0.0, 0.1, "UNAVAILABLE in place of OK")] * 7)
    assert complaints(record, False) == [
        "gRPC good: 7 x, such as UNAVAILABLE in place of OK"
    ]
    assert "no version was swapped" in complaints(record, True)


@pytest.mark.parametrize(
    ("arguments", "status", "wanted"),
    [
        ("", 2, "either --models or --rest"),
        ("--models {0} --rest http://127.0.0.1:1", 2, "either --models or --rest"),
        ("--models {0} --minutes 0", 2, "above 0"),
        ("--models {0}", 2, "must be a model's folder"),
        ("--models {0}/nobody", 1, "nobody: No such file"),
        ("--rest http://127.0.0.1:1", 2, "--rest needs --model"),
        ("--rest http://127.0.0.1:1 --model m", 1, "127.0.0.1:1"),
        ("--models {0} --out picture.gif", 2, "--out must end in .png"),
    ],
)
def test_mistakes_are_one_line(arguments, status, wanted, tmp_path, capsys):
    try:
        ended = soak(arguments.format(tmp_path).split())
    except SystemExit as left:
        ended = left.code
    assert ended == status
    error = capsys.readouterr().err
    assert wanted in error
    assert error.count("\n") == 1


def test_a_model_that_cannot_be_served_is_told(tmp_path, capsys):
    version(tmp_path / "model", 1, "no SavedModel")
    assert soak(["--models", str(tmp_path / "model"), "--minutes", "1"]) == 1
    error = capsys.readouterr().err
    assert "serving soak: " in error
    assert "Traceback" not in error


def test_a_soak_that_is_ended_leaves_nothing_behind(tmp_path):
    """SIGTERM while the server starts: neither the server nor its files stay."""
    version(tmp_path / "model", 1, "no SavedModel")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "serving", "soak", "--models"]
    with subprocess.Popen(
        [*command, str(tmp_path / "model")],
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.DEVNULL,
    ) as process:
        while not (servers := psutil.Process(process.pid).children()):
            assert process.poll() is None
        process.terminate()
    assert process.returncode == 128 + signal.SIGTERM
    assert list(scratch.iterdir()) == []
    assert not any(server.is_running() for server in servers)


@pytest.fixture(scope="module")
def exported(tiny_vit, tmp_path_factory):
    from serving.export.publish import publish

    folder = tmp_path_factory.mktemp("models") / "tiny"
    publish(tiny_vit(), folder)
    return folder


@pytest.mark.slow
def test_sixty_seconds_of_the_local_server(exported, tmp_path, capsys):
    figures, drawing = tmp_path / "soak.json", tmp_path / "soak.png"
    status = soak(
        f"--models {exported} --minutes 1 --swap-seconds 12 --clients 3 "
        f"--json {figures} --out {drawing}".split()
    )
    report = json.loads(figures.read_text())
    assert report["complaints"] == []
    assert status == 0
    assert len(report["swaps"]) >= 2
    assert {row["requests"] for row in report["requests"]} == {
        "good, REST",
        "bad, REST",
        "good, gRPC",
        "bad, gRPC",
    }
    assert all(row["sent"] > 50 for row in report["requests"])
    with Image.open(drawing) as image:
        assert image.format == "PNG"
    assert "passed" in capsys.readouterr().out


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("memory", [[], [(0.0, 5e8), (1.0, 6e8)]])
@pytest.mark.parametrize("swaps", [[], [1.0]])
def test_a_picture_is_drawn_without_a_warning(tmp_path, memory, swaps):
    record = dataclasses.replace(soaked(), memory=memory, swaps=swaps)
    draw(record, "soak", tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 1000
