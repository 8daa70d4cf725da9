"""`python -m serving`: the dispatcher, `classify` and `status`."""

import functools
import json
import socket
import subprocess
import sys

import httpx2
import numpy as np
import pytest
from client_fakes import METADATA, Failure, FakeServer, Outputs, info, signature

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
    transport = httpx2.MockTransport(fake.rest)
    client = functools.partial(RestClient, transport=transport)
    monkeypatch.setattr("serving.client.command.RestClient", client)
    return fake


@pytest.fixture
def paths(tmp_path):
    files = [tmp_path / "one.png", tmp_path / "two.png"]
    for file in files:
        file.write_bytes(b"the fake server does not look")
    return [str(file) for file in files]


def test_without_a_command_the_commands_are_listed(capsys):
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.count("export ") == 2


def test_an_unknown_command_is_one_line(capsys):
    assert main(["clasify"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "'clasify'" in error
    assert "classify" in error


def test_commands_get_their_arguments_untouched(monkeypatch):
    seen = []
    module = type(sys)("serving.local")
    module.main = lambda argv: seen.append(argv) or 3
    monkeypatch.setitem(sys.modules, "serving.local", module)
    assert main(["serve", "--port=1", "--help"]) == 3
    assert seen == [["--port=1", "--help"]]


def test_a_missing_package_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.delitem(sys.modules, "serving.client.command", raising=False)
    monkeypatch.delitem(sys.modules, "serving.client.rest", raising=False)
    assert main(["status", *REST]) == 1
    wanted = 'serving: httpx2 is missing: pip install "keras-vit[serve]"\n'
    assert capsys.readouterr().err == wanted


def test_help_imports_no_tensorflow():
    code = "import sys; from serving.__main__ import main; main(['--help']); "
    code += "print(set(sys.modules) & {'tensorflow', 'httpx2', 'numpy'})"
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert output.endswith("set()\n")


def test_classify_prints_label_score_and_milliseconds(fake, paths, capsys):
    assert main(["classify", *paths, *REST]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    path, score, milliseconds, label = first.split()
    assert (path, score, label) == (paths[0], "0.7500", "bee")
    assert 0 < float(milliseconds) < 1000
    assert second.startswith(paths[1])


def test_classify_sends_each_image_alone(fake, paths, capsys):
    main(["classify", *paths, *REST])
    assert fake.calls == ["metadata", "predict", "predict"]


def test_classify_prints_as_many_classes_as_asked_for(fake, paths, capsys):
    assert main(["classify", paths[0], *REST, "--top-k", "2"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "bee",
        "cat",
    ]


def test_one_bad_file_does_not_lose_the_others(fake, paths, capsys):
    fake.answers = [NO_IMAGE, ONE]
    assert main(["classify", *paths, "missing.png", *REST]) == 1
    output, error = capsys.readouterr()
    assert paths[1] in output
    assert error.splitlines() == [
        f"serving classify: {paths[0]}: Unknown image file format.",
        "serving classify: missing.png: No such file or directory",
    ]


def test_classify_json_holds_answers_and_errors(fake, paths, capsys):
    fake.answers = [Outputs(ONE.text.replace("0.25", "NaN"), {})]
    assert main(["classify", paths[0], "no.png", *REST, "--json", "--top-k=2"]) == 1
    good, bad = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert good.pop("milliseconds") > 0
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
        "serving classify: Servable not found for request: Latest(x) "
        "(model 'tiny_vit' at http://server)\n",
    )


def test_a_model_that_takes_no_images_is_one_line(fake, paths, capsys):
    signatures = {"serving_default": signature({"x": info("DT_FLOAT", -1)}, {})}
    metadata = {"signature_def": {"signature_def": signatures}}
    fake.others = [{**METADATA, "metadata": metadata}]
    assert main(["classify", *paths, *REST]) == 1
    output, error = capsys.readouterr()
    assert output == ""
    assert "must have the input image_bytes. Received: x" in error
    assert fake.calls == ["metadata"]


@pytest.mark.parametrize("transport", ["--rest", "--grpc"])
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
        assert main(["classify", paths[0], *arguments, "--json", "--top-k=2"]) == 0
        [answer] = json.loads(capsys.readouterr().out)
        assert answer.pop("milliseconds") > 0
        printed.append(answer)
    server.stop(None)
    assert printed[0] == printed[1]


def test_status_prints_versions_and_states(fake, capsys):
    assert main(["status", *REST]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["124", "END", "Could", "not", "find", "SavedModel"],
        ["123", "AVAILABLE"],
    ]


def test_status_json_holds_the_same(fake, capsys):
    assert main(["status", *REST, "--json"]) == 0
    first, _ = json.loads(capsys.readouterr().out)
    assert (first["version"], first["state"]) == (124, "END")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*REST, "--grpc", "server:8500"], "not allowed with argument --rest"),
        (["--model", "m"], "one of the arguments --rest --grpc is required"),
        (["--rest", "server:8501", "--model", "m"], "`url` must look like"),
        (["--grpc", "http://server", "--model", "m"], "`address` must look like"),
        ([*REST, "--version", "1", "--label", "a"], "not allowed with"),
        ([*REST, "--timeout", "0"], "`timeout` must be a positive number"),
        ([*REST, "--top-k", "0"], "must be at least 1, not 0"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(fake, arguments, words, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["classify", "a.png", *arguments])
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert error.count("\n") == 1
    assert words in error
