"""The console script: every command, its start without Keras, and its errors."""

import importlib.metadata
import os
import platform
import re
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_vit.commands
from keras_vit.common.commands import COMMANDS, find, listed, main

RUN = """
import sys
sys.argv[0] = "keras-vit"
from keras_vit.common.commands import main
try:
    assert main() == 0
except SystemExit as ended:  # --help
    assert not ended.code
assert not {"keras", "tensorflow"} & set(sys.modules), "imported too early"
"""
FIRST_USE = """
import sys
sys.argv[0] = "keras-vit"
import keras_vit, keras_vit.specs
from keras_vit.common.lean_keras import import_lean
import_lean()  # faster
assert "keras" not in sys.modules
assert keras_vit.ViTB16.__name__ == "ViTB16"
import keras
assert "keras_vit>VisionTransformer" in keras.saving.get_custom_objects()
"""
QUIET = """
import sys
import importlib.util
sys.argv[0] = "keras-vit"
from keras_vit.common.quiet import quiet_tensorflow
sys.modules["keras"] = sys.modules["jax"] = None  # faster
quiet_tensorflow()
importlib.util.find_spec("tensorflow")  # as packages do that can do without
import tensorflow as tf
tf.config.list_physical_devices("GPU")
"""
ONEDNN = """
import os, sys
from importlib import import_module
sys.argv[0] = "keras-vit"
for package, command in (("training", "fit"), ("serving", "serve")):
    os.environ.pop("TF_ENABLE_ONEDNN_OPTS", None)
    try:
        import_module(f"{package}.__main__").main([command, "--help"])
    except SystemExit:
        assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1"
        assert "tensorflow" not in sys.modules
sys.modules["keras"] = sys.modules["jax"] = None  # faster
from tensorflow.python.util._pywrap_util_port import IsMklEnabled
assert IsMklEnabled()
"""
END = """
import atexit, sys
sys.argv[0] = "keras-vit"  # faster
from keras_vit.common.commands import end_process
class Held:
    def __del__(self):
        print("freed")
held = Held()
atexit.register(print, "at exit")
print("printed")
end_process(int(sys.argv[1]))
"""
# What a slow machine is doing: keras_vit.common.activity.
REPORT = re.compile(
    "(starting|checking|building|opening|loading|writing|compiling|decoding|running|"
    "validation|evaluating|classifying|saving|drawing|step|keras-vit)"
    r"[^:]*(/run/best.keras)?(: \d+ s)?"
)
# TensorFlow 2.20 logs once what no variable of its own silences.
XLA = re.compile("WARNING: All log messages before absl|I0000 .*Compiled cluster using")
# A server that stops once it serves.
SERVE = """
import logging, os, signal, sys
sys.argv[0] = "keras-vit"
from keras_vit.common.commands import main
class Stop(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith("serving "):
            os.kill(os.getpid(), signal.SIGTERM)
logging.getLogger("keras_vit.serving.local").addHandler(Stop())
sys.exit(main(["serve", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("group", COMMANDS)
def test_each_command_is_where_the_table_says(group):
    assert all(callable(find(group, name)) for name in COMMANDS[group])


def test_a_name_belongs_to_one_package():
    names = [name for commands in COMMANDS.values() for name in commands]
    assert len(names) == len(set(names))


def test_the_version_is_that_of_the_package_and_of_what_it_computes_with(capsys):
    assert main(["--version"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(
        f"keras-vit {keras_vit.__version__} (keras {keras.__version__}"
    )
    assert f"tensorflow {importlib.metadata.version('tensorflow')}, Python 3." in line


@pytest.mark.parametrize(
    "command",
    [
        *("list B/16", "info B/16 R50x1", "recipes", "--version", "completion bash"),
        *("fit --help", "serve --help", "classify --help"),
    ],
)
def test_lists_and_help_need_neither_keras_nor_tensorflow(command):
    stderr_of("-c", RUN, *command.split())


def test_the_library_is_imported_once_a_name_of_it_is_used():
    stderr_of("-c", FIRST_USE)


@pytest.mark.parametrize("command", ["--help", "recipes digits", "list", "push --help"])
def test_a_reader_may_close_the_pipe(command, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # as a user's
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_vit", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait()


@pytest.mark.parametrize(
    ("status", "freed"), [(75, ""), (130, ""), (0, "freed\n"), (1, "freed\n")]
)
def test_a_stopped_command_ends_without_freeing_its_memory(status, freed):
    process = subprocess.run(
        [sys.executable, "-c", END, str(status)], capture_output=True, text=True
    )
    assert process.returncode == status
    assert process.stdout == f"printed\nat exit\n{freed}"


@pytest.mark.parametrize("level", [None, pytest.param("0", marks=pytest.mark.slow)])
def test_tensorflow_prints_no_start_up_lines_unless_they_are_asked_for(level):
    lines = stderr_of("-c", QUIET, level=level)
    assert ("This TensorFlow binary is optimized" in lines) == bool(level)
    assert bool(lines) == bool(level)


def test_tensorflow_that_aborts_while_it_is_loaded_is_named(tmp_path):
    """As without AVX: what its library says is lost, but not who ended the process."""
    code = "import os\nos.write(2, b'I0000')\nos.abort()\n"
    result = import_tensorflow(tmp_path, code)
    assert result.returncode == -signal.SIGABRT
    assert result.stderr.startswith("Fatal Python error: Aborted")
    assert "tensorflow/__init__.py" in result.stderr


def test_what_python_prints_while_tensorflow_is_loaded_is_printed(tmp_path):
    """A native line is not; a handler of that time goes on to work."""
    code = "import logging, os, sys\nos.write(2, b'I0000')\nlogging.basicConfig()\n"
    result = import_tensorflow(tmp_path, f"{code}print('3 s', file=sys.stderr)\n")
    assert result.stderr == "3 s\nERROR:root:later\n"


def import_tensorflow(folder, code):
    """Import a package with this code as TensorFlow, then log a line."""
    (folder / "tensorflow").mkdir()
    (folder / "tensorflow" / "__init__.py").write_text(code)
    program = (
        "import sys; sys.argv[0] = 'keras-vit'; from keras_vit.common import quiet; "
        "quiet.quiet_tensorflow(); import tensorflow, logging; logging.error('later')"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{folder}:.", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


@pytest.mark.slow
@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="TensorFlow has oneDNN's kernels on Linux and x86-64",
)
def test_commands_take_the_kernels_of_onednn():
    """Also with a processor on which they are not TensorFlow's default."""
    stderr_of("-c", ONEDNN)


@pytest.mark.slow
def test_commands_print_only_lines_of_their_own(tmp_path):
    run, model, image = tmp_path / "run", tmp_path / "model", tmp_path / "image.png"
    keras.utils.save_img(image, np.zeros((8, 8, 3)))
    commands = (
        (
            *("fit", "--recipe", "digits", "--epochs", "1", "--output_dir", run),
            *("--model.depth", "1"),
        ),
        ("evaluate", run),
        ("predict", image, "--model", run),
        ("info", run / "best.keras", "B/16"),
        ("convert", run / "best.keras", tmp_path / "copy.keras"),
        ("export", run, "--to", model),
    )
    for command in commands:
        assert not without_reports(stderr_of("-m", "keras_vit", *command)), command
    serve = f"--model_base_path={model}", "--model_name=digits", "--port=0"
    lines = without_reports(stderr_of("-c", SERVE, *serve, "--rest_api_port=0"))
    assert [line.split(maxsplit=2)[2] for line in lines[:2]] == [
        "loading digits version 1",
        "serving digits version 1",
    ]
    assert all(re.fullmatch(r"[\d-]+ [\d:,]+ \w+ digits version 1", e) for e in lines)


def without_reports(stderr):
    """The lines that do not report what a command is doing."""
    lines = stderr.splitlines()
    return [line for line in lines if not (REPORT.fullmatch(line) or XLA.match(line))]


def stderr_of(*arguments, level=None):
    """Standard error of a successful Python process; level: TF_CPP_MIN_LOG_LEVEL."""
    env = {name: v for name, v in os.environ.items() if not name.startswith("TF_")}
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=env | ({"TF_CPP_MIN_LOG_LEVEL": level} if level else {}),
    )
    assert result.returncode == 0, result.stderr
    return result.stderr


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    for group in COMMANDS:
        for name, command in listed(group).items():
            about = re.escape(command.about)
            assert re.search(rf"^  {name} +{about}$", output, re.M)
    assert main([]) == 2
    assert capsys.readouterr().out == output


def test_a_shell_completes_commands_and_their_flags(capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=script.encode()).returncode == 0
    for word in ("tpu-check", "--optimizer.learning_rate", "--check_images", "--port"):
        assert word in script


@pytest.mark.parametrize(
    ("name", "hint"),
    [("exprot", "Did you mean export?"), ("xyz", "There are: fit, resume")],
)
def test_an_unknown_command_is_refused_with_a_hint(name, hint, capsys):
    assert main([name]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"keras-vit: no command '{name}'. {hint}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("convert in out --to tim", "or keras_hub, not 'tim'. Did you mean timm?"),
        ("convert in out --resample gogle", "Did you mean google?"),
        ("convert in", "required: OUT"),
        ("list --varint", "there is no --varint"),
        ("inspect model", "required: --out"),
    ],
)
def test_a_mistake_in_a_command_of_the_library_is_one_line(words, message, capsys):
    assert keras_vit.commands.main(words.split()) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"keras-vit {words.split()[0]}: ")
    assert message in line


@pytest.mark.parametrize(
    "words",
    [
        "info none.keras",
        "convert none.keras model.npz",
        "inspect none.keras --out pictures",
        "evaluate none.keras",
        "predict --model none.keras none.png",
        "probe none.keras --data.source digits",
        "export none.keras --to models",
        "versions none",
        "copy none models",
        "classify none.png --rest http://127.0.0.1:9 --model vit",
    ],
)
def test_a_missing_file_is_no_mistake_in_the_command_line(
    words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"keras-vit {words.split()[0]}: ")
    assert "none" in line
    assert not any(tmp_path.iterdir())
