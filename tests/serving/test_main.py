"""Commands of serving: finding a command, and reporting its errors."""

import sys

import pytest

from keras_vit.common.command_line import CommandError, UsageError
from serving.__main__ import main

STATUS = ["status", "--rest", "http://server", "--model", "m"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", "--modle=m"], "status: there is no --modle. Did you mean --model?"),
        ([*STATUS, "--zzz"], "keras-vit status: there is no --zzz (--help"),
    ],
)
def test_an_unknown_word_is_one_line_even_where_others_are_missing(
    capsys, arguments, words
):
    assert main(arguments) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert words in error


def test_commands_get_their_arguments_unchanged(monkeypatch):
    seen = []
    module = type(sys)("serving.local")
    module.main = lambda argv: seen.append(argv) or 3
    monkeypatch.setitem(sys.modules, "serving.local", module)
    assert main(["serve", "--port=1", "--help"]) == 3
    assert seen == [["--port=1", "--help"]]


def test_a_missing_package_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "httpx2", None)
    for name in (
        *("client_commands.commands", "client_commands.arguments"),
        "client.rest_client",
    ):
        monkeypatch.delitem(sys.modules, f"serving.{name}", raising=False)
    assert main(STATUS) == 1
    wanted = (
        'keras-vit status: httpx2 is missing: pip install "keras-vit-serving[serve]"\n'
    )
    assert capsys.readouterr().err == wanted


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (CommandError("no\nsecond line"), 1, "keras-vit serve: no\n"),
        (UsageError("wrong"), 2, "keras-vit serve: wrong\n"),
        (FileNotFoundError(2, "No such", "a"), 1, "keras-vit serve: a: No such\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_of_a_command_are_one_line(monkeypatch, capsys, error, status, line):
    def fail(argv):
        raise error

    module = type(sys)("serving.local")
    module.main = fail
    monkeypatch.setitem(sys.modules, "serving.local", module)
    assert main(["serve"]) == status
    assert capsys.readouterr().err == line
