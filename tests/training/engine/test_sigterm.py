"""SIGTERM in the steps of a run, and before and after them."""

import os
import signal
import subprocess
import sys
import threading

import keras
import pytest
from tiny_recipe import TINY_RECIPE
from without_pictures import leave_out_pictures

from training.__main__ import main
from training.engine.progress import Progress
from training.engine.sigterm import stopped_after_the_step


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
        "import os, signal\n"
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
        "import threading, time\n"
        "with stopped_after_the_step(progress):\n"
        "    threading.Timer(0.2, send, [signal.SIGTERM]).start()\n"
        "    time.sleep(0.6)\n"
        "    print('slept', progress.stop_requested)\n"
    )
    assert result.stdout == "slept True\n"


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
        "import sys\n"
        "from training.__main__ import main\n"
        "class Sender:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'training.cli': send(signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Sender())\n"
        "print(main(['recipes']))\n"
    )
    assert result.stdout == "75\n"
    assert result.stderr.startswith("error: stopped by SIGTERM")


def test_an_unexpected_error_before_tensorflow_is_imported_does_not_import_it():
    result = run(
        "import sys, training.cli\n"
        "from training.__main__ import main\n"
        "def fail(arguments): raise AttributeError('a mistake of ours')\n"
        "training.cli.main = fail\n"
        "print(main(['recipes']), 'tensorflow' in sys.modules)\n"
    )
    assert result.stdout == "1 False\n"
    assert result.stderr.startswith("Traceback")
    assert result.stderr.endswith("AttributeError: a mistake of ours\n")


def send(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    "place",
    [
        "training.fit.load_splits",
        "training.fit.build_model",
        "training.fit.finish",
        "training.finish.evaluate",
        "training.engine.run_folder.write_report",
    ],
)
def test_sigterm_outside_of_the_steps_is_a_preemption(
    tmp_path, monkeypatch, capsys, place
):
    leave_out_pictures(monkeypatch.setattr)
    monkeypatch.setattr("training.fit._board", lambda *_: keras.callbacks.Callback())
    (tmp_path / "recipe.yaml").write_text(TINY_RECIPE.to_yaml())
    command = ["fit", "--config", str(tmp_path / "recipe.yaml")]
    command += ["--steps", "1", "--output_dir", str(tmp_path / "run")]
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(place, send)
        assert main(command) == 75
    assert "error: stopped by SIGTERM" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before
    assert main([*command, "--resume"]) == 0


def test_sigterm_in_the_last_validation_is_a_preemption(tmp_path, monkeypatch, capsys):
    """The steps are done, and no other one comes that would notice it."""
    leave_out_pictures(monkeypatch.setattr)

    class Sender(keras.callbacks.Callback):
        def on_test_end(self, logs=None):
            send()

    monkeypatch.setattr("training.fit._board", lambda *_: Sender())
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(TINY_RECIPE.to_yaml())
    folder = str(tmp_path / "run")
    command = ["fit", "--config", str(recipe), "--epochs", "1", "--output_dir", folder]
    assert main([*command, "--data.validation", "0.1"]) == 75
    assert "stopped by SIGTERM after step" in capsys.readouterr().err
    assert main(["resume", folder]) == 0
