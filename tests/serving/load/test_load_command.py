"""`python -m serving load`: figures beside what the server counts, and mistakes."""

import base64
import contextlib
import http.server
import json
import sys
import threading
from pathlib import Path

import echo_model
import numpy as np
import pytest
from PIL import Image

from serving.load import picture
from serving.load.command import load
from serving.load.generator import Load, Run, Sample
from serving.load.results import summarize
from serving.load.server_metrics import ServerSide
from serving.local import LocalServer


def dimension(size):
    return {"size": str(size), "name": ""}


def signature(dtype, *sizes):
    info = {
        "dtype": dtype,
        "tensor_shape": {
            "dim": [dimension(size) for size in sizes],
            "unknown_rank": False,
        },
        "name": "",
    }
    return {"inputs": {"image_bytes": info}, "outputs": {}, "method_name": ""}


SIGNATURES = {
    "serving_default": signature("DT_STRING", -1),
    "serve_images": signature("DT_UINT8", -1, 5, 7, 3),
    "serve_pixels": signature("DT_FLOAT", -1, 5, 7, 3),
    "two": {**signature("DT_STRING", -1), "inputs": {}},
}
METADATA = {
    "model_spec": {"name": "m", "signature_name": "", "version": "1"},
    "metadata": {"signature_def": {"signature_def": SIGNATURES}},
}
BATCHES = ":tensorflow:serving:batching:processed_batch_size_v2"


class Handler(http.server.BaseHTTPRequestHandler):
    """A server of one model that keeps the bodies; every `fail_each`-th fails."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        if self.path.endswith("/metadata"):
            self.answer(200, json.dumps(METADATA))
        else:
            ran = f'{BATCHES}{{op_name="b",batch_size="4"}} {len(self.server.bodies)}\n'
            self.answer(200, ran)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(json.loads(body))
        count = len(self.server.bodies)
        if self.server.last and count >= self.server.last:
            self.server.gone = True
        if self.server.gone:
            self.close_connection = True
        elif self.server.fail_each and count % self.server.fail_each == 0:
            self.answer(503, '{"error": "too busy"}')
        else:
            self.answer(200, '{"outputs": [1]}')

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def running(fail_each=0, last=0):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.bodies, server.fail_each, server.last = [], fail_each, last
    server.gone = False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def files(tmp_path):
    """Three images in files."""
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for number, path in enumerate(paths):
        Image.new("RGB", (11, 13), (40 * number, 7, 9)).save(path)
    return [str(path) for path in paths]


def measure(url, arguments, *files):
    """The exit status; `arguments` is text."""
    return load(["--rest", url, "--model", "m", *arguments.split(), *map(str, files)])


def test_the_figures_agree_with_what_the_server_counts(files, tmp_path, capsys):
    figures, drawing = tmp_path / "figures.json", tmp_path / "drawing.png"
    with running(fail_each=5) as (server, url):
        loads = "--clients 1,3 --requests 40 --warmup 0"
        written = f"--json {figures} --out {drawing}"
        status = measure(url, f"{loads} {written}", *files)
        # Each of the three requests is tried once, before the loads.
        assert len(server.bodies) == 3 + 2 * 40
    assert status == 0
    report = json.loads(figures.read_text())
    assert [row["clients"] for row in report["results"]] == [1, 3]
    assert [row["requests"] for row in report["results"]] == [40, 40]
    assert [row["errors"] for row in report["results"]] == [{"HTTP 503": 8}] * 2
    assert [row["batches"] for row in report["results"]] == [{"4": 40}] * 2
    for row in report["results"]:
        latencies = list(row["latency_ms"].values())
        assert latencies == sorted(latencies)
        assert latencies[0] > 0
        per_second = 32 / row["seconds"]
        assert row["requests_per_second"] == pytest.approx(per_second, rel=0.01)
    with Image.open(drawing) as image:
        assert image.format == "PNG"
    printed = capsys.readouterr().out
    assert "8 x HTTP 503" in printed
    assert "too busy" in printed
    assert "40 x 4" in printed
    assert not list(tmp_path.glob(".*"))


def test_images_are_sent_in_turn_and_together(files):
    with running() as (server, url):
        loads = "--clients 1 --requests 2 --warmup 0 --images-per-request 2"
        measure(url, loads, *files)
        bodies = server.bodies[-2:]
    contents = [Path(path).read_bytes() for path in files]
    sent = [
        [base64.b64decode(image["b64"]) for image in body["inputs"]["image_bytes"]]
        for body in bodies
    ]
    assert sent == [contents[:2], [contents[2], contents[0]]]


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [("serve_images", int, 80), ("serve_pixels", float, None)],
)
def test_pixels_are_sent_where_the_signature_takes_them(files, name, kind, value):
    with running() as (server, url):
        loads = "--clients 1 --requests 1 --warmup 0"
        measure(url, f"--signature {name} {loads}", files[2])
        body = server.bodies[-1]
    assert body["signature_name"] == name
    pixels = np.array(body["inputs"]["image_bytes"])
    assert pixels.shape == (1, 5, 7, 3)
    wanted = 80 if kind is int else 80 / 127.5 - 1
    np.testing.assert_allclose(pixels[..., 0], wanted, atol=1e-6)


def test_a_server_that_goes_away_is_in_the_figures(files, tmp_path, capsys):
    figures = tmp_path / "figures.json"
    with running(last=30) as (_, url):
        loads = "--rate 100 --duration 1 --warmup 0 --timeout 1"
        status = measure(url, f"{loads} --json {figures}", *files)
    assert status == 0
    [row] = json.loads(figures.read_text())["results"]
    assert row["errors"]["connection lost"] > 10
    assert row["requests"] == sum(row["errors"].values()) + 26
    assert "Traceback" not in capsys.readouterr().err


def test_nothing_answered_is_a_failure(files, capsys):
    with running(last=4) as (_, url):
        assert measure(url, "--clients 2 --duration 0.5 --warmup 0", *files) == 1
    assert "connection lost" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("--clients 0", "at least 1"),
        ("--clients 2,x", "at least 1"),
        ("--rate -3", "above 0"),
        ("--rate nan", "above 0"),
        ("--duration 0", "above 0"),
        ("--timeout inf", "above 0"),
        ("--requests 1.5", "at least 1"),
        ("--clients 1 --rate 1", "not allowed with"),
        ("--grpc 127.0.0.1:1", "not allowed with"),
        ("--out picture.jpg", "--out must end in .png"),
        ("--warmup -1", "--warmup must not be below 0"),
    ],
)
def test_wrong_arguments_are_one_line(files, arguments, wanted, capsys):
    with pytest.raises(SystemExit) as ended:
        measure("http://127.0.0.1:1", arguments, *files)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert wanted in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("--signature nobody", "no signature 'nobody'. There are: serve_images"),
        ("--signature two", "must have one input"),
        ("--out /nowhere/picture.png", "no folder /nowhere"),
        ("--json /nowhere/figures.json", "no folder /nowhere"),
        ("/nowhere/image.png", "/nowhere/image.png: no such file"),
        (f"--signature serve_images {__file__}", "cannot identify image file"),
    ],
)
def test_what_cannot_be_measured_is_told_before(files, arguments, wanted, capsys):
    with running() as (server, url):
        status = measure(url, arguments, *files)
        assert not server.bodies
    assert status == 1
    error = capsys.readouterr().err
    assert wanted in error
    assert error.startswith("serving load: ")
    assert error.count("\n") == 1


def test_requests_that_fail_without_load_are_told(files, capsys):
    with running(fail_each=1) as (server, url):
        status = measure(url, "", *files)
        assert len(server.bodies) == 1
    assert status == 1
    assert 'HTTP 503 {"error": "too busy"}' in capsys.readouterr().err


def test_no_server_is_told(files, capsys):
    assert measure("http://127.0.0.1:1", "", *files) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_a_picture_without_matplotlib_names_the_extra(files, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with running() as (server, url):
        status = measure(url, "--out picture.png", *files)
        assert not server.bodies
    assert status == 1
    assert 'pip install "keras-vit-serving[viz]"' in capsys.readouterr().err


def result(load, latencies, code="OK", batches=None):
    samples = [Sample(0.0, 0.0, seconds, code) for seconds in latencies]
    run = Run(load, samples, 0.0, 1.0, 0.5, {})
    return summarize(run, ServerSide(batches or {}, None))


def test_every_kind_of_result_can_be_drawn(tmp_path):
    closed, opened = Load(clients=2), Load(rate=5.0)
    for number, results in enumerate(
        [
            [result(closed, [0.1, 0.2]), result(closed, [])],
            [result(opened, [0.1], batches={1: 3, 8: 5})],
            [result(closed, [0.1], "HTTP 500"), result(closed, [0.1], "timeout")],
        ]
    ):
        path = tmp_path / f"{number}.png"
        picture.draw(results, "title", path)
        with Image.open(path) as image:
            assert np.asarray(image.convert("L")).std() > 5


@pytest.mark.parametrize("transport", ["--rest", "--grpc"])
def test_the_local_server_is_measured_over_both_transports(tmp_path, transport):
    """Its own counter agrees."""
    echo_model.save(str(tmp_path / "echo" / "1"))
    image = tmp_path / "image"
    image.write_bytes(b"good")
    monitoring = tmp_path / "monitoring.config"
    monitoring.write_text(
        'prometheus_config { enable: true path: "/monitoring/prometheus/metrics" }'
    )
    figures = tmp_path / "figures.json"
    with LocalServer(
        {"echo": tmp_path / "echo"},
        rest_port=0,
        grpc_port=0,
        monitoring_config_file=str(monitoring),
    ) as server:
        where = server.rest_url if transport == "--rest" else server.grpc_address
        status = load(
            f"{transport} {where} --metrics {server.rest_url} --model echo "
            "--signature embed --clients 2 --requests 50 --warmup 0 "
            f"--json {figures} {image}".split()
        )
    assert status == 0
    [row] = json.loads(figures.read_text())["results"]
    assert row["requests"] == 50
    assert row["errors"] == {}
    assert 0 < row["server_latency_ms"] < row["latency_ms"]["max"]
