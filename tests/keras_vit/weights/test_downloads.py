"""Downloads of weights, from a server on this machine: they go on, or say why not."""

import base64
import contextlib
import hashlib
import http.server
import pathlib
import re
import sys
import threading
import types
import urllib.request

import numpy as np
import pytest

from keras_vit.errors import WeightsFileError
from keras_vit.weights import presets
from keras_vit.weights.presets import PublishedWeights, fetch

pytestmark = pytest.mark.backend

CONTENT = np.random.default_rng(3).bytes(3_000_017)


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT; `requests` are the `Range` headers that came."""

    ranges = True  # whether a part can be had
    cut = None  # after how many bytes the connection ends
    missing = False
    tells_length = True
    page = None  # what comes in the file's place
    headers: dict[str, str]

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.headers = [], {}
        self.url = f"http://127.0.0.1:{self.server_port}/bucket/a+b/ViT.npz"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.headers["Range"]
        self.server.requests.append(asked)
        content = self.server.page or CONTENT
        start = 0
        if self.server.missing:
            return self.send_error(404)
        if asked and self.server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(content):
                return self.send_error(416)
        self.send_response(206 if start else 200)
        if self.server.tells_length:
            self.send_header("Content-Length", str(len(content) - start))
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content[start : self.server.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Keras's folder, and no waiting."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(presets, "TIMEOUT", 5)
    return tmp_path / "home"


@pytest.fixture
def published(server):
    """A row of the registry for the server's file."""

    def row(size):
        return PublishedWeights(
            "B/16", "name", "google", 7, 32, 1, "valid", size, None, "", server.url
        )

    return row


def test_a_file_is_downloaded_once_into_kerass_cache(server, home):
    path = fetch(server.url)
    assert path.is_relative_to(home / "models" / "keras_vit")
    assert path.parts[-3:] == ("bucket", "a+b", "ViT.npz")
    assert path.read_bytes() == CONTENT
    assert fetch(server.url) == path
    assert server.requests == [None]
    assert [p.name for p in path.parent.iterdir()] == ["ViT.npz"]


def test_files_of_the_same_name_are_cached_apart(server):
    urls = [server.url, f"{server.url}?version=2", server.url.replace("a+b", "c")]
    assert len({fetch(url) for url in urls}) == 3


def test_a_url_does_not_leave_the_cache(server, home):
    path = fetch(server.url.replace("a+b", "../../../../../x"))
    assert path.resolve().is_relative_to(home.resolve())


@pytest.fixture
def part(server):
    """The part file of an interrupted download."""
    server.cut = 1_100_000
    match = r"ended after 1100000 of 3000017 bytes[^$]*put it at (\S+)"
    with pytest.raises(WeightsFileError, match=match) as error:
        fetch(server.url)
    server.cut = None
    return pathlib.Path(re.search(match, str(error.value))[1] + ".part")


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_resumes_or_restarts(server, part, ranges):
    server.ranges = ranges
    assert fetch(server.url).read_bytes() == CONTENT
    assert server.requests == [None, "bytes=1100000-"]


def test_a_complete_part_file_is_renamed_by_the_next_attempt(server, part):
    part.write_bytes(CONTENT)
    assert fetch(server.url).read_bytes() == CONTENT


def test_a_link_in_the_place_of_the_part_file_is_not_followed(server, part, tmp_path):
    part.unlink()
    precious = tmp_path / "precious"
    precious.write_text("mine")
    part.symlink_to(precious)
    with pytest.raises(WeightsFileError, match="symbolic link"):
        fetch(server.url)
    assert precious.read_text() == "mine"


def test_an_endless_answer_is_not_written_to_the_disk(server, published, monkeypatch):
    """Without a length; the file is three times as large as published, and stays."""
    server.tells_length = False
    monkeypatch.setattr("keras_vit.weights.presets.BLOCK", 2**16)
    with pytest.raises(WeightsFileError, match=r"Received: (\d+) bytes") as error:
        fetch(published("1.00 MiB"))
    received = int(re.search(r"Received: (\d+)", str(error.value))[1])
    assert received < 1.3 * 2**20 < len(CONTENT)


@pytest.mark.parametrize("tells_length", [True, False])
@pytest.mark.parametrize("size", ["2.80 MiB", "3 GiB", ""])
def test_a_file_of_the_published_size_is_taken_and_no_other(
    server, published, size, home, tells_length
):
    server.tells_length = tells_length
    received = "3000017 bytes" if tells_length else r"\d+ bytes"
    with pytest.raises(WeightsFileError, match=f"as published. Received: {received}"):
        fetch(published(size))
    assert not list(home.rglob("ViT.npz*"))
    assert fetch(published("2.86 MiB")).read_bytes() == CONTENT


def test_a_web_page_in_the_place_of_the_file_is_refused(server, published):
    server.page = b"<html>Please sign in</html>"
    with pytest.raises(WeightsFileError, match="perhaps a web page"):
        fetch(published("2.86 MiB"))


def test_a_web_page_does_not_spoil_what_was_downloaded(server, published):
    server.cut = 1_100_000
    with pytest.raises(WeightsFileError, match="ended after"):
        fetch(published("2.86 MiB"))
    server.cut, server.ranges, server.page = None, False, b"<html>Please sign in"
    with pytest.raises(WeightsFileError, match="perhaps a web page"):
        fetch(published("2.86 MiB"))
    server.ranges, server.page = True, None
    assert fetch(published("2.86 MiB")).read_bytes() == CONTENT
    assert server.requests == [None, "bytes=1100000-", "bytes=1100000-"]


def hashed(content):
    digest = hashlib.md5(content, usedforsecurity=False).digest()
    return {"x-goog-hash": f"crc32c=AAAAAA==, md5={base64.b64encode(digest).decode()}"}


def test_a_file_has_the_hash_that_the_bucket_sends_or_is_not_kept(server, home):
    server.headers = hashed(b"something else")
    with pytest.raises(WeightsFileError, match="must have the MD5"):
        fetch(server.url)
    assert not list(home.rglob("ViT.npz*"))
    server.headers = hashed(CONTENT)
    assert fetch(server.url).read_bytes() == CONTENT


def check_it_says_what_to_do(url, reason):
    """The file at the place that the message names is taken without a network."""
    with pytest.raises(WeightsFileError, match=rf"{re.escape(url)}: .*{reason}") as e:
        fetch(url)
    path = re.search(r"download the file elsewhere and put it at (\S+)", str(e.value))[
        1
    ]
    with open(path, "wb") as file:
        file.write(b"by hand")
    assert fetch(url).read_bytes() == b"by hand"


def test_offline_the_error_names_the_path_for_the_file(server):
    server.missing = True
    check_it_says_what_to_do(server.url, "404")


def test_without_a_server_the_error_names_the_path_for_the_file(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        url = server.url  # nobody answers: the server is closed
    check_it_says_what_to_do(url, "refused")


def test_without_an_answer_the_error_names_the_path_for_the_file(server, monkeypatch):
    def never(*_, **__):
        raise TimeoutError("timed out")

    monkeypatch.setattr(urllib.request, "urlopen", never)
    check_it_says_what_to_do(server.url, "timed out")


def test_a_path_is_returned_unchanged(tmp_path):
    assert fetch(tmp_path / "a.npz") == tmp_path / "a.npz"
    assert str(fetch("models/a.npz")) == "models/a.npz"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """huggingface_hub with a repository in `tmp_path`; `calls` are its arguments."""
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    calls = []

    def snapshot_download(repository, **options):
        calls.append((repository, options))
        return str(tmp_path)

    module = types.SimpleNamespace(snapshot_download=snapshot_download, calls=calls)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return module


def test_a_repository_of_the_hub_is_a_folder(hub, tmp_path):
    assert fetch("hf://google/vit-base") == tmp_path
    (_, (repository, options)) = hub.calls
    assert (repository, options["revision"]) == ("google/vit-base", None)
    wanted = options["allow_patterns"]
    assert {"*.json", "model.safetensors", "model.weights.h5"} <= set(wanted)
    assert not any("bin" in pattern for pattern in wanted)


@pytest.mark.parametrize(
    ("source", "file", "patterns"),
    [
        ("hf://me/mine@v2", "model.keras", ["model.keras"]),  # no second copy
        ("hf://me/mine@v2/sub/a.npz", "sub/a.npz", ["sub/a.npz", "*.json"]),
    ],
)
def test_a_model_of_keras_comes_first_and_a_file_alone(
    hub, tmp_path, source, file, patterns
):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(b"weights")
    assert fetch(source) == tmp_path / file
    ((repository, options),) = hub.calls
    assert (repository, options["revision"]) == ("me/mine", "v2")
    assert options["allow_patterns"] == patterns


def test_a_row_of_the_hub_is_fetched_from_there(hub, published, tmp_path):
    row = PublishedWeights(
        "B/16", "n", "timm", 7, 32, 1, "valid", "", None, "", "hf://timm/vit"
    )
    assert fetch(row) == tmp_path


@pytest.mark.parametrize(
    "name",
    [
        *("open_clip_model.safetensors", "tf_model.h5"),
        *("pytorch_model.bin", "open_clip_pytorch_model.bin"),
    ],
)
def test_files_of_rarer_names_are_asked_for_where_there_are_no_others(
    name, hub, tmp_path, monkeypatch
):
    (tmp_path / "model.safetensors").unlink()

    def download(repository, allow_patterns, **options):
        if name in allow_patterns:
            (tmp_path / name).write_bytes(b"weights")
        return hub.snapshot_download(repository, **options)

    module = types.SimpleNamespace(snapshot_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    assert fetch("hf://me/mine") == tmp_path
    assert (tmp_path / name).exists()


def test_a_repository_without_weights_is_reported(hub, tmp_path):
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(WeightsFileError, match="hf://me/mine, .* under other names"):
        fetch("hf://me/mine")
    with pytest.raises(WeightsFileError, match="under other names"):
        fetch("hf://me/mine/other.npz")


def test_an_error_of_the_hub_says_what_to_do(hub):
    def offline(*_, **__):
        raise RuntimeError("no network")

    hub.snapshot_download = offline
    match = "no network.*https://huggingface.co/me/mine .* pass the path"
    with pytest.raises(WeightsFileError, match=match):
        fetch("hf://me/mine")


@pytest.mark.parametrize("source", ["hf://mine", "hf://", "hf://a/b@"])
def test_a_name_of_the_hub_has_an_owner(hub, source):
    with pytest.raises(WeightsFileError, match="hf://owner/name"):
        fetch(source)


def test_without_the_hubs_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    wanted = r'pip install "keras-vit-serving\[convert\]"'
    with pytest.raises(ImportError, match=wanted):
        fetch("hf://me/mine")
