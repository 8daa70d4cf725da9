"""`keras-vit load`: comparison with queueing theory, and the command."""

import asyncio
import contextlib
import itertools
import json
import math
import sys

import echo_model
import httpx2
import numpy as np
import pytest
from client_fakes import CLASSIFIED, METADATA, Failure, FakeServer, info, signature
from PIL import Image
from server_requests import local_server
from simulated_time import simulated

from serving.__main__ import main
from serving.client import AsyncRestClient, ServingError, Unavailable
from serving.load import Load, Result, generate, picture


def measure(load, seconds, errors=(None,), places=math.inf):
    """Measure a simulated server: first come, first served, `places` at a time.

    Args:
        load: The load.
        seconds: What each request takes, in turn.
        errors: What each request raises, in turn.
        places: Requests that the server works on at once.
    """
    seconds, errors = itertools.cycle(seconds), itertools.cycle(errors)

    async def run():
        server = contextlib.nullcontext()
        if places != math.inf:
            server = asyncio.Semaphore(places)

        async def send():
            async with server:
                await asyncio.sleep(next(seconds))
            if error := next(errors):
                raise error

        return await generate(send, load)

    return simulated(run())


def test_the_mean_wait_is_that_of_an_m_d_1_queue():
    """Pollaczek-Khinchine: utilization x service time / (2 (1 - utilization))."""
    load = Load(rate=80.0, duration=500.0, warmup=20.0, timeout=100.0)
    result = measure(load, [0.01], places=1)
    assert result.requests == pytest.approx(40_000, rel=0.02)
    wait = result.latencies.mean() - 0.01
    assert wait == pytest.approx(0.8 * 0.01 / (2 * 0.2), rel=0.08)
    assert result.requests_per_second == pytest.approx(80.0, rel=0.02)


def test_arrivals_are_a_poisson_process():
    """Without a service time, gaps between sendings are gaps between arrivals."""
    moments = []

    async def run():
        async def send():
            moments.append(asyncio.get_running_loop().time())

        await generate(send, Load(rate=50.0, duration=400.0, warmup=0.0))

    simulated(run())
    gaps = np.diff(moments)
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    # Exponential gaps: standard deviation and mean agree, and 1/e exceed the mean.
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    assert (gaps > gaps.mean()).mean() == pytest.approx(math.exp(-1), rel=0.03)


@pytest.mark.parametrize("rate", [100.0, 400.0])
def test_an_open_loop_counts_the_wait_for_a_stalled_server(rate):
    """A stall of 1 s in 20 s: 5 % wait up to 1 s, even for a free slot (400/s)."""
    seconds = [*[0.001] * 1000, 1.0, *[0.001] * 20_000]
    result = measure(Load(rate=rate, duration=20.0, warmup=0.0), seconds, places=1)
    assert result.percentile(100) == pytest.approx(1.0, abs=0.05)
    assert result.percentile(90) < 0.1
    assert (result.latencies > 0.01).mean() == pytest.approx(
        0.05 / (1 - rate * 0.001), rel=0.4
    )


def test_a_closed_loop_sends_again_only_after_an_answer():
    result = measure(Load(clients=4, duration=10.0, warmup=1.0), [0.01])
    assert result.requests_per_second == pytest.approx(400.0, rel=0.01)
    assert result.percentile(100) == pytest.approx(0.01)


@pytest.mark.parametrize("count", [1, 2, 7, 99, 1001])
def test_percentiles_are_observed_latencies(count):
    latencies = np.sort(np.random.default_rng(count).exponential(size=count))
    result = Result(Load(clients=1), latencies, 0.0, {}, {}, 0.0)
    for percent in (50, 90, 99, 100):
        shown = result.percentile(percent)
        assert shown in latencies
        assert (latencies <= shown).mean() >= percent / 100
        assert (latencies < shown).mean() < percent / 100


def test_the_warm_up_is_not_measured():
    seconds = [*[0.5] * 10, *[0.01] * 5000]
    result = measure(Load(clients=1, duration=10.0, warmup=6.0), seconds)
    assert result.percentile(100) == pytest.approx(0.01)
    assert result.requests == pytest.approx(1000, abs=1)


def test_errors_are_counted_by_kind_and_have_no_latency():
    errors = [None, Unavailable("full\nnode x"), None, ServingError("bad"), None]
    result = measure(Load(clients=1, duration=100.0, warmup=0.0), [0.01], errors)
    # Five requests take 50 ms, and Unavailable is followed by a pause of 50 ms.
    assert result.requests == pytest.approx(5000, abs=5)
    assert result.errors == {
        "Unavailable": pytest.approx(1000, abs=2),
        "ServingError": pytest.approx(1000, abs=2),
    }
    assert result.messages == {"Unavailable": "full", "ServingError": "bad"}
    assert len(result.latencies) == pytest.approx(0.6 * result.requests, abs=2)
    assert result.percentile(100) == pytest.approx(0.01)


@pytest.mark.parametrize("load", [{"clients": 3}, {"rate": 300.0}])
def test_a_server_that_never_answers_ends_the_run_in_time(load):
    async def run():
        now = asyncio.get_running_loop().time
        begin = now()

        async def send():
            await asyncio.sleep(2.0)
            raise ServingError("no answer")

        load_ = Load(**load, duration=10.0, warmup=1.0, timeout=2.0)
        return await generate(send, load_), now() - begin

    result, elapsed = simulated(run())
    assert elapsed <= 15.0
    assert set(result.errors) <= {"ServingError", "not sent"}
    assert sum(result.errors.values()) == result.requests
    assert result.requests_per_second == 0.0
    assert result.percentile(50) is None


def test_an_overloaded_server_shows_its_throughput():
    """Twice the capacity: half of the requests wait ever longer, some are not sent."""
    load = Load(rate=1000.0, duration=20.0, warmup=5.0, timeout=1.0)
    result = measure(load, [0.002], places=1)
    assert result.requests_per_second == pytest.approx(500.0, rel=0.01)
    assert result.requests == pytest.approx(20_000, rel=0.05)
    assert set(result.errors) == {"not sent"}


def test_throughput_counts_answers_within_the_measured_time():
    result = measure(Load(clients=10, duration=2.5, warmup=1.0), [1.0])
    assert result.requests_per_second == pytest.approx(10 * 3 / 2.5)


IMAGES = {
    "serving_default": {"image_bytes": info("DT_STRING", -1)},
    "serve_images": {"image_bytes": info("DT_UINT8", -1, 5, 7, 3)},
    "serve_pixels": {"image_bytes": info("DT_FLOAT", -1, 5, 7, 3)},
    "vectors": {"image_bytes": info("DT_FLOAT", -1, 5)},
    "no_inputs": {},
}
OUTPUTS = {"classes": info("DT_STRING", -1, 3)}


@pytest.fixture
def fake(monkeypatch):
    """A server behind every --rest, whose signatures take images."""
    fake = FakeServer()
    signatures = {name: signature(inputs, OUTPUTS) for name, inputs in IMAGES.items()}
    metadata = {"signature_def": {"signature_def": signatures}}
    fake.others = [{**METADATA, "metadata": metadata}]

    def connect(*args, **kwargs):
        transport = httpx2.MockTransport(lambda request: fake.rest(request))
        return AsyncRestClient(*args, transport=transport, **kwargs)

    monkeypatch.setattr("serving.client.async_rest_client.AsyncRestClient", connect)
    return fake


@pytest.fixture
def files(tmp_path):
    """Three image files."""
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for number, path in enumerate(paths):
        Image.new("RGB", (11, 13), (40 * number, 7, 9)).save(path)
    return [str(path) for path in paths]


def run(arguments, files, where="--rest http://server --model m"):
    """The exit status of a short load."""
    short = "--warmup 0.01 --duration 0.2"
    return main(["load", *f"{where} {short} {arguments}".split(), *files])


def test_the_figures_agree_with_the_server_s_count(fake, files, tmp_path, capsys):
    figures, drawing = tmp_path / "figures.json", tmp_path / "drawing.png"
    fake.answers = [*[CLASSIFIED] * 8, *[Failure("UNAVAILABLE", "too busy")] * 2] * 500
    assert run(f"--clients 1,3 --json {figures} --out {drawing}", files) == 0
    report = json.loads(figures.read_text())
    assert [row["clients"] for row in report["results"]] == [1, 3]
    measured = sum(row["requests"] for row in report["results"])
    assert 0.5 * len(fake.requests) < measured <= len(fake.requests)
    for row in report["results"]:
        assert set(row["errors"]) == {"Unavailable"}
        assert row["error_messages"] == {"Unavailable": "too busy"}
        latencies = list(row["latency_ms"].values())
        assert latencies == sorted(latencies)
        assert latencies[0] > 0
        assert row["images_per_second"] == row["requests_per_second"] > 0
    with Image.open(drawing) as image:
        assert image.format == "PNG"
    assert "x Unavailable: too busy" in capsys.readouterr().out


def sent_inputs(fake):
    bodies = [json.loads(r.content) for r in fake.requests if r.method == "POST"]
    return [body["inputs"]["image_bytes"] for body in bodies]


def test_images_are_sent_in_turn(fake, files):
    run("--clients 1 --images_per_request 2", files)
    first, second, *_ = sent_inputs(fake)
    assert len({image["b64"] for image in (*first, *second)}) == 3
    assert second[1] == first[0]


@pytest.mark.parametrize(
    ("name", "value"), [("serve_images", 80), ("serve_pixels", 80 / 127.5 - 1)]
)
def test_pixels_are_sent_to_signatures_that_take_them(fake, files, name, value):
    run(f"--signature {name} --clients 1", files[2:])
    pixels = np.array(sent_inputs(fake)[0])
    assert pixels.shape == (1, 5, 7, 3)
    np.testing.assert_allclose(pixels[..., 0], value, atol=1e-6)


@pytest.mark.parametrize(
    ("tags", "rows"),
    [
        (b"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0" + bytes(4), [255, 0]),
        (b"garbage!", [128, 128]),
    ],
)
def test_pixels_are_upright_where_exif_is_sound(fake, tmp_path, tags, rows):
    """Turned to the right, the left half of the image is its upper half."""
    image = Image.new("L", (14, 10))
    image.paste(255, (0, 0, 7, 10))
    image.save(tmp_path / "a.png", exif=tags)
    run("--signature serve_images --clients 1", [str(tmp_path / "a.png")])
    pixels = np.array(sent_inputs(fake)[0])[0]
    received = [pixels[row].mean() for row in (0, -1)]
    np.testing.assert_allclose(received, rows, atol=1)


def test_no_successful_answer_is_a_failure(fake, files, capsys):
    fake.answers = [CLASSIFIED] * 3 + [Failure("INTERNAL", "broken")]
    assert run("--clients 2", files) == 1
    assert "x ServingError: broken" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "wanted"),
    [
        ("--clients 0", 2, "at least 1"),
        ("--clients 2,x", 2, "at least 1"),
        ("--rate -3", 2, "above 0"),
        ("--rate nan", 2, "above 0"),
        ("--duration 0", 2, "above 0"),
        ("--clients 1 --rate 1", 2, "not allowed with"),
        ("--out picture.jpg", 2, "--out must end in .png"),
        ("--out /nowhere/picture.png", 1, "no folder /nowhere"),
        ("--signature nobody", 1, "--signature must be one of no_inputs, serve_images"),
        ("--signature no_inputs", 1, "must have one input"),
        ("--signature vectors", 1, "must take image bytes, or pixels"),
        (f"--signature serve_images {__file__}", 1, "cannot identify image file"),
        ("/nowhere/image.png", 1, "No such file"),
    ],
)
def test_errors_are_reported_in_one_line(
    fake, files, arguments, status, wanted, capsys
):
    assert run(arguments, files) == status
    error = capsys.readouterr().err
    assert wanted in error
    assert error.startswith("keras-vit load: ")
    assert error.count("\n") == 1
    assert "predict" not in fake.calls


def test_a_request_that_fails_without_load_is_reported_once(fake, files, capsys):
    fake.answers = [Failure("INVALID_ARGUMENT", "not an image")]
    assert run("", files) == 1
    assert fake.calls == ["metadata", "predict"]
    assert "not an image (model 'm' at http://server)" in capsys.readouterr().err


def test_a_picture_without_matplotlib_names_the_extra(files, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("--out picture.png", files) == 1
    assert 'pip install "keras-vit-serving[viz]"' in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("load", [Load(clients=2), Load(rate=5.0)])
@pytest.mark.parametrize("latencies", [[], [0.1, 0.2]])
@pytest.mark.parametrize("errors", [{}, {"Unavailable": 3}])
def test_every_kind_of_result_can_be_drawn(tmp_path, load, latencies, errors):
    result = Result(load, np.array(latencies), 2.0, errors, {}, 0.5)
    (tmp_path / "picture.png").write_bytes(picture([result, result], "title"))
    with Image.open(tmp_path / "picture.png") as image:
        assert np.asarray(image.convert("L")).std() > 5


def test_the_local_server_is_measured_over_both_transports(tmp_path):
    echo_model.save(str(tmp_path / "echo" / "1"))
    image, figures = tmp_path / "image", tmp_path / "figures.json"
    image.write_bytes(b"good")
    with local_server({"echo": tmp_path / "echo"}) as server:
        for where in (f"--rest {server.rest_url}", f"--grpc {server.grpc_address}"):
            arguments = f"--signature embed --clients 2 --duration 1 --json {figures}"
            assert run(arguments, [str(image)], f"{where} --model echo") == 0
            [row] = json.loads(figures.read_text())["results"]
            assert row["requests"] > 10
            assert row["errors"] == {}
