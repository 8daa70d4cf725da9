"""`keras-vit page`: its arguments, and a server that does not answer."""

import contextlib
import types

import pytest
from starlette.testclient import TestClient

from serving.__main__ import main
from serving.page import proxy
from serving.page.proxy import page_app, page_parser


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (["--grpc", "127.0.0.1:8500"], "--rest is needed"),
        (["--rest", "127.0.0.1:8501"], "--rest must look like http://"),
    ],
)
def test_another_address_than_one_of_rest_is_refused(place, message, capsys):
    assert main(["page", *place, "--model", "m"]) == 2
    assert message in capsys.readouterr().err


def test_no_page_is_announced_where_no_server_answers(capsys, monkeypatch):
    monkeypatch.setattr("uvicorn.run", None)
    words = ["--rest", "http://127.0.0.1:9", "--model", "m", "--timeout", "1"]
    assert main(["page", *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    assert line.endswith("(model 'm' at http://127.0.0.1:9)")


def test_a_page_is_announced_where_the_model_is_served(capsys, monkeypatch):
    client = types.SimpleNamespace(status=list)
    monkeypatch.setattr(proxy, "connect", lambda args: contextlib.nullcontext(client))
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: None)
    assert main(["page", "--rest", "http://host:8501", "--model", "m"]) == 0
    out = "http://127.0.0.1:8080/ shows 'm' at http://host:8501\n"
    assert capsys.readouterr().out == out


def test_a_server_that_does_not_answer_is_named():
    rest = "http://127.0.0.1:9"  # no server listens there
    arguments = ["--rest", rest, "--model", "m", "--timeout", "5"]
    app = page_app(page_parser().parse_args(arguments))
    with TestClient(app, "http://127.0.0.1:8080") as client:
        assert b"<!doctype html>" in client.get("/").content
        answer = client.get("/v1/models/m")
    assert answer.status_code == 502
    assert answer.json()["error"].startswith(f"no answer from {rest}: ")
