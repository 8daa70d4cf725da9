"""`keras-vit page`: its arguments, and a server that does not answer."""

import pytest
from starlette.testclient import TestClient

from serving.__main__ import main
from serving.client_commands.arguments import make_parser
from serving.page.proxy import page_app


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


def test_a_server_that_does_not_answer_is_named():
    rest = "http://127.0.0.1:9"  # no server listens there
    arguments = ["--rest", rest, "--model", "m", "--timeout", "5"]
    with TestClient(page_app(make_parser("page", "").parse_args(arguments))) as client:
        assert b"<!doctype html>" in client.get("/").content
        answer = client.get("/v1/models/m")
    assert answer.status_code == 502
    assert answer.json()["error"].startswith(f"no answer from {rest}: ")
