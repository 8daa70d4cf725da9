"""The console script: every command, its start without Keras, and its errors."""

import re
import subprocess
import sys

import pytest

import keras_vit.__main__
import serving.__main__
import training.cli
from keras_vit_command import COMMANDS, main

STARTED = """
import sys
from keras_vit_command import main
try:
    main([sys.argv[1], "--help"])
except SystemExit:
    pass
assert not {"keras", "tensorflow"} & set(sys.modules), "imported too early"
"""
FIRST_USE = """
import sys
from keras_vit_command import import_on_first_use
import_on_first_use("keras_vit")
import keras_vit, keras_vit.specs
assert not hasattr(keras_vit, "nothing")
assert "keras" not in sys.modules
assert keras_vit.ViTB16.__name__ == "ViTB16"
import keras
assert "keras_vit>VisionTransformer" in keras.saving.get_custom_objects()
"""


def test_it_has_the_commands_of_training_and_serving():
    commands = {n: c.help for n, c in training.cli.COMMANDS.items()}
    assert COMMANDS["keras_vit.training"] == commands
    commands = {n: c.about for n, c in serving.__main__.COMMANDS.items()}
    assert COMMANDS["keras_vit.serving"] == commands


def test_it_has_the_commands_of_the_library(capsys):
    with pytest.raises(SystemExit):
        keras_vit.__main__.main(["--help"])
    listed = re.search(r"\{([\w,-]+)\}", capsys.readouterr().out)[1]
    assert set(COMMANDS["keras_vit"]) == set(listed.split(","))


def test_a_name_belongs_to_one_package():
    names = [name for commands in COMMANDS.values() for name in commands]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("command", ["fit", "serve", "classify"])
def test_help_needs_neither_keras_nor_tensorflow(command):
    check(STARTED, command)


def test_the_library_is_imported_once_a_name_of_it_is_used():
    check(FIRST_USE)


def check(code, *arguments):
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    for commands in COMMANDS.values():
        for name, about in commands.items():
            assert re.search(rf"^  {name} +{re.escape(about)}$", output, re.M)


def test_without_a_command_help_is_an_error(capsys):
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "hint"),
    [("exprot", "Did you mean 'export'?"), ("xyz", "There are: fit, resume")],
)
def test_an_unknown_command_is_refused_with_a_hint(name, hint, capsys):
    assert main([name]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"keras-vit: no command '{name}'. {hint}")
    assert error.count("\n") == 1
