"""Early termination: SIGTERM, and a non-finite loss."""

import os
import signal
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest

from training.engine.checkpoint import Checkpoint, Owner, save
from training.engine.early_termination import Preemption, StopOnDivergence
from training.engine.progress import Progress
from training.errors import Diverged, Preempted, TrainingError


def test_sigterm_requests_a_stop_and_the_old_handler_is_restored():
    came, progress = [], Progress()
    before = signal.signal(signal.SIGTERM, lambda *_: came.append("old"))
    try:
        with Preemption(progress):
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
        "import os, signal, sys, types\n"
        "sys.modules['keras'] = types.SimpleNamespace(\n"
        "    callbacks=types.SimpleNamespace(Callback=object))\n"
        "from training.engine.early_termination import Preemption\n"
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
        "with Preemption(progress):\n"
        "    send(signal.SIGTERM)\n"
        "    print(progress.stop_requested, flush=True)\n"
        "    send(signal.SIGTERM)\n"
        "    print('still here')\n"
    )
    assert result.stdout == "True\n"
    assert result.returncode == -signal.SIGTERM


def test_ctrl_c_is_still_a_keyboard_interrupt():
    result = run(
        "with Preemption(progress):\n"
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
        "with Preemption(progress):\n"
        "    threading.Timer(0.2, send, [signal.SIGTERM]).start()\n"
        "    time.sleep(0.6)\n"
        "    print('slept', progress.stop_requested)\n"
    )
    assert result.stdout == "slept True\n"


def test_preemption_does_nothing_outside_the_main_thread():
    noted, progress = [], Progress()

    def work():
        with Preemption(progress):
            noted.append(progress.stop_requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert noted == [False]


def diverging_model(scale):
    """A weight w of loss (w x - y)^2, which becomes non-finite in the third step."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    x = np.array([1, 1, scale, 1, 1], "float32")[:, None]
    return model, x, np.zeros_like(x)


class StepsOf:
    """The progress of a model without a trainer."""

    def __init__(self, model):
        self.model = model

    @property
    def step(self):
        return int(self.model.optimizer.iterations)


@pytest.mark.parametrize("scale", [np.nan, np.inf, 3e38])
def test_a_non_finite_loss_ends_the_training(tmp_path, scale):
    save(tmp_path, Checkpoint(2, {"a": np.ones(3)}, Owner("x")))
    model, x, y = diverging_model(scale)
    guard = StopOnDivergence(tmp_path, StepsOf(model))
    with pytest.raises(Diverged, match="at step 3; ") as error:
        model.fit(x, y, batch_size=1, shuffle=False, verbose=0, callbacks=[guard])
    assert str(tmp_path / "00000002.npz") in str(error.value)
    assert int(model.optimizer.iterations) == 3


def test_divergence_without_a_checkpoint_is_reported(tmp_path):
    guard = StopOnDivergence(tmp_path, Progress(epoch_step=5))
    with pytest.raises(Diverged, match="step 5; no checkpoint yet; "):
        guard.on_train_batch_end(4, {"loss": float("nan")})


def test_a_finite_loss_does_not_end_the_training(tmp_path):
    model, x, y = diverging_model(2.0)
    guard = StopOnDivergence(tmp_path, Progress())
    model.fit(x, y, batch_size=1, verbose=0, callbacks=[guard])
    assert int(model.optimizer.iterations) == 5


def test_each_error_has_its_exit_status():
    classes = [TrainingError, *_all_subclasses(TrainingError)]
    assert {c.__name__: c.exit_status for c in classes} == {
        "TrainingError": 1,
        "DataError": 1,
        "RunError": 1,
        "RecipeError": 2,
        "Preempted": 75,
        "Diverged": 76,
        "WorkerLost": 77,
    }
    assert Preempted.exit_status == os.EX_TEMPFAIL


def _all_subclasses(parent):
    return [
        c for child in parent.__subclasses__() for c in (child, *_all_subclasses(child))
    ]
