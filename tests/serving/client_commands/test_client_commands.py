"""`keras-vit classify`, `embed`, `attention` and `status`."""

import base64
import functools
import io
import json
import shutil
import socket
import subprocess
import sys

import httpx2
import numpy as np
import PIL.Image
import pytest
from client_fakes import (
    METADATA,
    STATUS,
    Failure,
    FakeServer,
    Outputs,
    info,
    make_certificate,
    signature,
)

from serving.__main__ import main
from serving.client import RestClient

REST = ["--rest", "http://server", "--model", "tiny_vit"]
ONE = Outputs(
    '{"outputs": {"classes": [["bee", "cat"]], "scores": [[0.75, 0.25]], '
    '"class_ids": [[1, 2]]}}',
    {
        "classes": np.array([["bee", "cat"]], dtype=object),
        "scores": np.float32([[0.75, 0.25]]),
        "class_ids": np.array([[1, 2]]),
    },
)
NO_IMAGE = Failure("INVALID_ARGUMENT", "Unknown image file format.\n\t [[{{node x}}]]")


@pytest.fixture
def fake(monkeypatch):
    """A server behind every --rest."""
    fake = FakeServer()
    fake.answers = [ONE]
    transport = httpx2.MockTransport(lambda request: fake.rest(request))
    client = functools.partial(RestClient, transport=transport)
    monkeypatch.setattr("serving.client_commands.arguments.RestClient", client)
    return fake


@pytest.fixture
def paths(tmp_path):
    files = [tmp_path / "one.png", tmp_path / "two.png"]
    for file in files:
        file.write_bytes(b"the fake server does not look")
    return [str(file) for file in files]


def test_classify_prints_score_and_label(fake, paths, capsys):
    assert main(["classify", *paths, *REST]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["image", "score", "label"],
        [paths[0], "0.7500", "bee"],
        [paths[1], "0.7500", "bee"],
    ]


def test_classify_sends_each_image_in_a_request_of_its_own(fake, paths, capsys):
    main(["classify", *paths, *REST])
    assert fake.calls == ["metadata", "predict", "predict"]


def test_folders_and_lists_stand_for_images(fake, tmp_path, monkeypatch, capsys):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("b.JPG", "a.png", "deep/er/c.webp", "notes.txt", "list"):
        (tmp_path / name).write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("deep\n\nnotes.txt\n"))
    assert main(["classify", str(tmp_path), "-", "a.png", *REST]) == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown == [
        *(f"{tmp_path}/{name}" for name in ("a.png", "b.JPG", "deep/er/c.webp")),
        "deep/er/c.webp",
        "notes.txt",
        "a.png",
    ]


def test_a_folder_without_images_is_one_line(fake, tmp_path, capsys):
    assert main(["classify", str(tmp_path), *REST]) == 1
    error = f"keras-vit classify: {tmp_path}: no image files\n"
    assert capsys.readouterr() == ("", error)
    assert fake.calls == []


def test_classify_prints_as_many_classes_as_asked_for(fake, paths, capsys):
    assert main(["classify", paths[0], *REST, "--top_k", "2"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "bee",
        "cat",
    ]


def test_one_bad_file_does_not_fail_the_others(fake, paths, capsys):
    fake.answers = [NO_IMAGE, ONE]
    assert main(["classify", *paths, "no.png", *REST, "--concurrency=1"]) == 1
    output, error = capsys.readouterr()
    assert paths[1] in output
    assert error.rstrip().splitlines() == [
        f"keras-vit classify: {paths[0]}: Unknown image file format.",
        "keras-vit classify: no.png: No such file or directory",
    ]


def test_classify_json_holds_answers_and_errors(fake, paths, capsys):
    fake.answers = [Outputs(ONE.text.replace("0.25", "NaN"), {})]
    assert main(["classify", paths[0], "no.png", *REST, "--json", "--top_k=2"]) == 1
    good, bad = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert good == {
        "image": paths[0],
        "labels": ["bee", "cat"],
        "scores": [0.75, None],
        "class_ids": [1, 2],
    }
    assert bad == {"image": "no.png", "error": "No such file or directory"}


def test_an_unknown_model_is_one_line(fake, paths, capsys):
    fake.others = [Failure("NOT_FOUND", "Servable not found for request: Latest(x)")]
    assert main(["classify", *paths, *REST]) == 1
    assert capsys.readouterr() == (
        "",
        "keras-vit classify: Servable not found for request: Latest(x) "
        "(model 'tiny_vit' at http://server)\n",
    )


def test_a_model_that_takes_no_images_is_one_line(fake, paths, capsys):
    signatures = {"serving_default": signature({"x": info("DT_FLOAT", -1)}, {})}
    metadata = {"signature_def": {"signature_def": signatures}}
    fake.others = [{**METADATA, "metadata": metadata}]
    assert main(["classify", *paths, *REST]) == 1
    output, error = capsys.readouterr()
    assert output == ""
    assert "with the input image_bytes. Received: signatures serving_default" in error
    assert error.count("\n") == 1
    assert fake.calls == ["metadata"]


def test_missing_images_are_reported_before_any_request(fake, paths, capsys):
    assert main(["classify", "none.png", "gone.png", *REST]) == 1
    assert capsys.readouterr() == ("", "keras-vit classify: none.png: no such file\n")
    assert fake.calls == []


@pytest.mark.parametrize("transport", ["--rest", "--grpc"])
@pytest.mark.usefixtures("without_retries")
def test_a_server_that_does_not_run_is_one_line(transport, paths, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    where = f"http://{address}" if transport == "--rest" else address
    assert main(["classify", *paths, transport, where, "--model", "x"]) == 1
    output, error = capsys.readouterr()
    assert output == ""
    assert error.count("\n") == 1
    assert "Connection refused" in error


def test_classify_over_grpc_prints_the_same(fake, paths, capsys):
    server, address = fake.start()
    grpc = ["--grpc", address, "--model", "tiny_vit"]
    printed = []
    for arguments in (REST, grpc):
        assert main(["classify", paths[0], *arguments, "--json", "--top_k=2"]) == 0
        [answer] = json.loads(capsys.readouterr().out)
        printed.append(answer)
    server.stop(None)
    assert printed[0] == printed[1]


def test_status_prints_versions_and_states(fake, capsys):
    assert main(["status", *REST]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["124", "END", "Could", "not", "find", "SavedModel"],
        ["123", "AVAILABLE"],
    ]


def test_status_json_holds_the_same_and_the_signatures(fake, capsys):
    assert main(["status", *REST, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [entry["version"] for entry in printed["versions"]] == [124, 123]
    assert printed["versions"][0]["state"] == "END"
    images = printed["signatures"]["serving_default"]["inputs"]["image_bytes"]
    assert images == {"dtype": "string", "shape": [None]}


def test_status_json_without_an_available_version(fake, capsys):
    fake.others = [STATUS, Failure("NOT_FOUND", "Servable not found for request: x")]
    assert main(["status", *REST, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (len(printed["versions"]), printed["signatures"]) == (2, {})


ONE_ROW = Outputs('{"outputs": [[0.5, 0.25]]}', {})


@pytest.fixture
def with_signatures(fake):
    """A fake server with the signatures of an exported model."""
    images = {"image_bytes": info("DT_STRING", -1)}
    names = ("serving_default", "embed", "attention")
    signatures = {name: signature(images, {}) for name in names}
    metadata = {"signature_def": {"signature_def": signatures}}
    fake.others = [{**METADATA, "metadata": metadata}]
    return fake


def test_embed_writes_embeddings_and_paths(with_signatures, paths, tmp_path, capsys):
    with_signatures.answers = [ONE_ROW]
    out = tmp_path / "embeddings.npz"
    arguments = [paths[0], "no.png", paths[1], *REST, "--out", str(out)]
    assert main(["embed", *arguments]) == 1
    with np.load(out) as file:
        np.testing.assert_array_equal(file["embeddings"], [[0.5, 0.25]] * 2)
        assert file["embeddings"].dtype == "float32"
        assert file["paths"].tolist() == paths
    output, error = capsys.readouterr()
    assert output == f"{out}: 2 embeddings of 2 numbers\n"
    assert error.rstrip() == "keras-vit embed: no.png: No such file or directory"


def test_embed_without_any_embedding_writes_nothing(with_signatures, tmp_path):
    out = tmp_path / "embeddings.npz"
    assert main(["embed", "no.png", *REST, "--out", str(out)]) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["pathlib.Path.write_bytes", "os.replace"])
def test_embed_keeps_the_old_file_when_it_cannot_write(
    with_signatures, paths, tmp_path, monkeypatch, capsys, step
):
    with_signatures.answers = [ONE_ROW]
    out = tmp_path / "embeddings.npz"
    out.write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step, full)
    assert main(["embed", paths[0], *REST, "--out", str(out)]) == 1
    assert out.read_bytes() == b"old"
    assert "No space left" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {
        out.name,
        "one.png",
        "two.png",
    }


def test_embed_checks_the_folder_before_any_request(with_signatures, paths, capsys):
    assert main(["embed", paths[0], *REST, "--out", "/none/such/a.npz"]) == 1
    assert "there is no folder /none/such" in capsys.readouterr().err
    assert with_signatures.calls == []


def test_a_model_without_attention_is_one_line(fake, paths, tmp_path, capsys):
    assert main(["attention", *paths, *REST, "--out", str(tmp_path / "a")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "must have a signature `attention`" in error


def test_attention_draws_the_image_beside_the_map(
    with_signatures, paths, tmp_path, capsys
):
    seen = PIL.Image.new("RGB", (3, 2), "red")
    buffer = io.BytesIO()
    seen.save(buffer, "PNG")
    b64 = base64.b64encode(buffer.getvalue()).decode()
    outputs = {"rollout": [[[0.0, 0.0, 1.0]] * 2], "seen_bytes": [{"b64": b64}]}
    attended = Outputs(json.dumps({"outputs": outputs}), {})

    def answer(request):
        name = json.loads(request.content or b"{}").get("signature_name")
        with_signatures.answers = [attended if name == "attention" else ONE]
        return FakeServer.rest(with_signatures, request)

    with_signatures.rest = answer
    same = tmp_path / "other"
    same.mkdir()
    shutil.copy(paths[0], same)
    out = tmp_path / "pictures"
    command = ["attention", paths[0], str(same), *REST, "--out", str(out)]
    assert main([*command, "--concurrency=1"]) == 0
    names = ["one.attention.png", "one-2.attention.png"]
    assert capsys.readouterr().out.splitlines() == [f"{out}/{name}" for name in names]
    assert {path.name for path in out.iterdir()} == set(names)
    picture = np.asarray(PIL.Image.open(out / names[0]).convert("RGB"))
    height, width = picture.shape[0] - 28, picture.shape[1] // 2
    assert (height * 3, width % 3) == (width * 2, 0)
    assert (picture[:height, :width] == (255, 0, 0)).all()
    # Bright where the map is, at the right; dark at the left.
    heat = picture[:height, width:].astype(int).sum(axis=-1)
    assert heat[:, -20:].min() > heat[:, :20].max() + 200


def test_headers_are_sent_and_may_come_from_a_file(fake, paths, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("Authorization: Bearer a:b\n")
    headers = ["--header", f"@{secret}", "--header", "X-Who: me"]
    assert main(["status", *REST, *headers]) == 0
    [request] = fake.requests
    assert request.headers["authorization"] == "Bearer a:b"
    assert request.headers["x-who"] == "me"


@pytest.mark.usefixtures("without_retries")
def test_ca_file_turns_tls_on_over_grpc(fake, tmp_path, capsys):
    certificate = make_certificate(tmp_path)
    server, address = fake.start(certificate=certificate)
    where = ["--grpc", address.replace("127.0.0.1", "localhost"), "--model", "m"]
    assert main(["status", *where, "--ca_file", str(certificate.path)]) == 0
    assert main(["status", *where]) == 1
    server.stop(None)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_closed_pipe_is_not_an_error(tmp_path):
    for number in range(500):
        (tmp_path / f"{number}.png").write_bytes(b"x")
    code = f"""
import functools, sys, httpx2
sys.argv[0] = "keras-vit"  # without Keras
from serving.client_commands import arguments
from serving.__main__ import main
def answer(request):
    if request.method == "GET":
        return httpx2.Response(200, text={json.dumps(METADATA)!r})
    return httpx2.Response(200, text={ONE.text!r})
transport = httpx2.MockTransport(answer)
arguments.RestClient = functools.partial(arguments.RestClient, transport=transport)
sys.exit(main(["classify", sys.argv[1], *{REST!r}]))
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline().startswith(b"image")
        process.stdout.close()
        assert process.stderr.read().strip() == b""
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*REST, "--grpc", "server:8500"], "not allowed with argument --rest"),
        (["--model", "m"], "one of the arguments --rest --grpc is required"),
        (["--rest", "server:8501", "--model", "m"], "--rest must look like"),
        (["--grpc", "http://server", "--model", "m"], "--grpc must look like"),
        ([*REST, "--version", "1", "--label", "a"], "not allowed with"),
        ([*REST, "--timeout", "0"], "must be a number above 0, not 0"),
        ([*REST, "--top_k", "0"], "must be at least 1, not 0"),
        ([*REST, "--concurrency", "0"], "must be at least 1, not 0"),
        ([*REST, "--header", "Bearer"], "must look like 'NAME: VALUE'"),
        ([*REST, "--header", "@/none/such"], "No such file or directory"),
        ([*REST, "--ca_file", "/none/such"], "No such file or directory"),
        ([*REST, "--ca_file", __file__], "[X509: NO_CERTIFICATE_OR_CRL_FOUND]"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(fake, arguments, words, capsys):
    assert main(["classify", "a.png", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error
