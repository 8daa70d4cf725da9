"""SIGTERM in the steps of a run, and before and after them."""

import os
import signal
import subprocess
import sys
import threading

import keras
import pytest
import tensorflow as tf
from run_files import history
from tiny_recipe import CNN_RECIPE, changed
from without_pictures import leave_out_pictures

from training.__main__ import main
from training.engine import sigterm
from training.engine.progress import Progress
from training.engine.sigterm import STOPPED, stopped_after_the_step

BOARD = "training.fitting.fit.tensorboard_callbacks"
# Three steps in an epoch, and ten validation images where a tenth is asked for.
FEW = {"train": "train[:100]", "test": "train[100:110]"}
RECIPE = changed(CNN_RECIPE, batch_size=30, data=FEW)


def test_sigterm_requests_a_stop_and_the_old_handler_is_restored():
    came, progress = [], Progress()
    before = signal.signal(signal.SIGTERM, lambda *_: came.append("old"))
    try:
        with stopped_after_the_step(progress):
            assert not progress.stop_requested
            os.kill(os.getpid(), signal.SIGTERM)
            assert progress.stop_requested
            assert came == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert came == ["old"]
    finally:
        signal.signal(signal.SIGTERM, before)


def run(code):
    """Run the code in its own process, without TensorFlow."""
    head = (
        "import os, signal, sys, threading, time\n"
        "sys.argv[0] = 'keras-vit'  # without Keras\n"
        "from keras_vit.common import commands\n"
        "from training.__main__ import main\n"
        "from training.engine import sigterm\n"
        "from training.engine.sigterm import stopped_after_the_step\n"
        "from training.engine.progress import Progress\n"
        "progress = Progress()\n"
        # A shell lets its background jobs ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def send(number): os.kill(os.getpid(), number)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", head + code], capture_output=True, text=True, timeout=60
    )


def test_a_second_sigterm_ends_the_process():
    result = run(
        "with stopped_after_the_step(progress):\n"
        "    send(signal.SIGTERM)\n"
        "    print(progress.stop_requested, flush=True)\n"
        "    send(signal.SIGTERM)\n"
        "    print('still here')\n"
    )
    assert result.stdout == "True\n"
    assert result.returncode == -signal.SIGTERM


def test_ctrl_c_is_still_a_keyboard_interrupt():
    result = run(
        "with stopped_after_the_step(progress):\n"
        "    try:\n"
        "        send(signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', progress.stop_requested)\n"
    )
    assert result.stdout == "interrupted False\n"


def test_sigterm_during_a_long_call_waits_for_its_end():
    """As during a step: the handler interrupts no system call and no C function."""
    result = run(
        "with stopped_after_the_step(progress):\n"
        "    threading.Timer(0.2, send, [signal.SIGTERM]).start()\n"
        "    time.sleep(0.6)\n"
        "    print('slept', progress.stop_requested)\n"
    )
    assert result.stdout == "slept True\n"


# A call of minutes in which Python runs no handler, as that of a compiler.
CALL = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', {})\n"


def test_the_process_ends_during_a_long_call_where_nothing_is_unsaved():
    result = run(
        "progress.unsaved = False\n"
        "with stopped_after_the_step(progress):\n"
        "    threading.Timer(0.2, send, [signal.SIGTERM]).start()\n"
        f"    {CALL.format(2_000_000_000)}"
    )
    assert result.returncode == 75
    assert result.stderr == f"keras-vit: {STOPPED}\n"


def test_a_command_ends_during_a_long_call_outside_of_the_steps():
    result = run(
        "def call(arguments):\n"
        "    threading.Timer(0.2, send, [signal.SIGTERM]).start()\n"
        f"    {CALL.format(2_000_000_000)}"
        "commands.find = lambda *_: call\n"
        "main(['recipes'])\n"
    )
    assert result.returncode == 75
    assert result.stderr == f"keras-vit: {STOPPED}\n"


def test_a_long_step_is_finished_where_something_is_unsaved():
    result = run(
        "sigterm.PATIENCE = 0\n"
        "with stopped_after_the_step(progress):\n"
        "    threading.Timer(0.01, send, [signal.SIGTERM]).start()\n"
        f"    {CALL.format(1_000_000)}"
        "    print('done', progress.stop_requested)\n"
    )
    assert (result.stdout, result.returncode) == ("done True\n", 0)


def test_a_second_sigterm_ends_a_long_step():
    result = run(
        "with stopped_after_the_step(progress):\n"
        "    for seconds in (0.2, 0.4):\n"
        "        threading.Timer(seconds, send, [signal.SIGTERM]).start()\n"
        f"    {CALL.format(2_000_000_000)}"
    )
    assert result.returncode == 128 + signal.SIGTERM


def test_nothing_is_left_of_a_handler():
    """Neither its thread nor its pipe."""
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    with stopped_after_the_step(Progress()):
        pass
    [thread.join() for thread in threading.enumerate() if thread.name == "sigterm"]
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_nothing_is_handled_outside_the_main_thread():
    noted, progress = [], Progress()

    def work():
        with stopped_after_the_step(progress):
            noted.append(progress.stop_requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert noted == [False]


def test_sigterm_before_the_command_is_imported_is_a_preemption():
    result = run(
        "class Sender:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'training.commands': send(signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Sender())\n"
        "print(main(['recipes']))\n"
    )
    assert result.stdout == "75\n"
    assert result.stderr.startswith("keras-vit recipes: stopped by SIGTERM")


def test_an_unexpected_error_before_tensorflow_is_imported_does_not_import_it():
    result = run(
        "def fail(arguments): raise AttributeError('a mistake of ours')\n"
        "commands.find = lambda *_: fail\n"
        "print(main(['recipes']), 'tensorflow' in sys.modules)\n"
    )
    assert result.stdout == "1 False\n"
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("AttributeError: a mistake of ours\n")


def send(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module", autouse=True)
def undrawn():
    """Runs without pictures and TensorBoard, however slow the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sigterm, "PATIENCE", 60)
        leave_out_pictures(patch.setattr)
        patch.setattr(BOARD, lambda *_: [keras.callbacks.Callback()])
        yield


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """The file of a recipe."""
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(RECIPE.to_yaml())
    return str(path)


@pytest.mark.slow
@pytest.mark.usefixtures("eager_test")
def test_sigterm_outside_of_the_steps_is_a_preemption(
    tmp_path, monkeypatch, capsys, recipe
):
    """A run that is stopped at each place in turn, and resumed."""
    command = ["fit", "--config", recipe, "--steps", "1", "--resume"]
    command += ["--output_dir", str(tmp_path / "run")]
    before = signal.getsignal(signal.SIGTERM)
    for place in (
        "training.fitting.fit.load_splits",
        "training.fitting.fit.build_model",
        "training.fitting.fit.finish",
        "training.fitting.finish.evaluate",
        "training.engine.run_folder.write_report",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, send)
            assert main(command) == 75, place
        assert ": stopped by SIGTERM" in capsys.readouterr().err
        assert signal.getsignal(signal.SIGTERM) == before
    assert main(command) == 0


class Sender(keras.callbacks.Callback):
    """Sends SIGTERM at a call that is counted from 1, and notes later evaluation."""

    def __init__(self, moment, number):
        super().__init__()
        self.left = number
        self.evaluated = []
        setattr(self, moment, self.count)

    def count(self, batch=None, logs=None):
        self.left -= 1
        if self.left == 0:
            send()

    def on_test_batch_end(self, batch, logs=None):
        self.evaluated.append(self.left)


@pytest.fixture(scope="module")
def epoch(recipe):
    """The command of a run of one epoch, without its folder."""
    command = ["fit", "--config", recipe, "--epochs", "1"]
    return [*command, "--data.validation", "0.1", "--output_dir"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, epoch, eagerly):
    """The history of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main([*epoch, str(folder)]) == 0
    return history(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "number", "evaluated"),
    [
        ("on_train_batch_end", 3, []),
        ("on_test_batch_begin", 1, [0]),
        ("on_test_end", 1, [1]),
    ],
)
def test_an_evaluation_that_sigterm_stops_is_done_by_the_resumed_run(
    tmp_path, monkeypatch, capsys, epoch, whole, moment, number, evaluated
):
    """Also that of the last epoch, after which no step comes that would notice it."""
    folder, sender = tmp_path / "run", Sender(moment, number)
    with monkeypatch.context() as patch:
        patch.setattr(BOARD, lambda *_: [sender])
        assert main([*epoch, str(folder)]) == 75
    assert sender.evaluated == evaluated
    assert "stopped by SIGTERM after step 3; `keras" in capsys.readouterr().err
    assert not (folder / "history.csv").exists()
    assert main(["resume", str(folder)]) == 0
    assert history(folder) == whole


@pytest.mark.usefixtures("eager_test")
def test_sigterm_before_the_first_step_has_ended_waits_for_nothing(
    tmp_path, monkeypatch, capsys, recipe
):
    """Compiling it takes minutes, and there is nothing to save."""
    folder = str(tmp_path / "run")
    command = ["fit", "--config", recipe, "--steps", "2", "--output_dir", folder]
    for moment in ("on_train_begin", "on_train_batch_begin"):
        sender = keras.callbacks.Callback()
        setattr(sender, moment, send)
        with monkeypatch.context() as patch:
            patch.setattr(BOARD, lambda *_, sender=sender: [sender])
            patch.setattr("training.engine.recorder.Recorder.save", pytest.fail)
            assert main(command) == 75, moment
        assert f": {STOPPED}" in capsys.readouterr().err
        command = ["resume", folder]
    assert main(command) == 0


@pytest.mark.slow
def test_a_stopped_command_ends_with_all_that_it_has_written(tmp_path, recipe):
    command = f"fit --config {recipe} --output_dir {tmp_path}/run"
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_vit", *command.split(), "--epochs=9999"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    next(line for line in process.stdout if line.lstrip().startswith("3/"))
    process.terminate()
    _, error = process.communicate(timeout=300)
    assert process.returncode == 75
    assert "keras-vit fit: stopped by SIGTERM after step" in error
    rows = (tmp_path / "run" / "history.csv").read_text().splitlines()[1:]
    events = tf.data.TFRecordDataset(
        [str(path) for path in (tmp_path / "run/tensorboard/train").glob("*events*")]
    )
    steps = {
        tf.compat.v1.Event.FromString(event).step
        for event in events.as_numpy_iterator()
    }
    assert set(range(1, len(rows) + 1)) <= steps
