"""Figures of a step come while the next one runs: the order of events, and the lag."""

import pathlib
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from training.architectures.compiling import trainer_class
from training.engine.early_termination import StopOnDivergence
from training.engine.late_figures import LateFigures
from training.engine.progress import Progress
from training.errors import Diverged

pytestmark = pytest.mark.backend

ROOT = pathlib.Path(__file__).parents[3]
STEPS, BATCH = 5, 7
random = np.random.default_rng(1)
IMAGES = random.normal(size=(STEPS * BATCH, 3)).astype("float32")
LABELS = np.eye(2, dtype="float32")[random.integers(0, 2, STEPS * BATCH)]


def data(images=IMAGES):
    return tf.data.Dataset.from_tensor_slices((images, LABELS)).batch(BATCH)


@pytest.fixture
def trainer():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    trainer = trainer_class()(model)
    trainer.compile(keras.optimizers.SGD(0.1))
    return trainer


class Seen(keras.callbacks.Callback):
    """What `on_train_batch_end` gets, and how late."""

    def __init__(self, progress):
        super().__init__()
        self.progress = progress
        self.losses, self.lags, self.stopping = [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])
        self.lags.append(self.progress.lag)
        self.stopping.append(self.progress.stopping)


def test_a_step_starts_before_the_figures_of_the_one_before_are_there(
    trainer, monkeypatch
):
    """Each reading waits for the next step, which would never start if awaited."""
    started = [threading.Event() for _ in range(STEPS)]
    original = LateFigures.after

    def after(figures, steps, read):
        step = trainer.progress.epoch_step - 1
        started[step].set()

        def read_late():
            if 0 < step < STEPS - 1 and not started[step + 1].wait(20):
                raise TimeoutError(f"step {step + 2} was not started")
            return read()

        return original(figures, steps, read_late)

    monkeypatch.setattr(LateFigures, "after", after)
    trainer.fit(data(), verbose=0)
    assert all(event.is_set() for event in started)


def test_callbacks_get_the_figures_of_the_step_that_lag_names(trainer):
    late, own = Seen(trainer.progress), Seen(trainer.progress)
    weights = trainer.model.get_weights()
    epoch = trainer.fit(data(), verbose=0, callbacks=[late]).history
    trainer.model.set_weights(weights)
    endless = data().filter(lambda *batch: True)  # whose last step nobody knows
    history = trainer.fit(endless, verbose=0, callbacks=[own]).history
    assert (late.lags, own.lags) == ([0, 1, 1, 1, 0], [0] * STEPS)
    steps = [step - lag for step, lag in enumerate(late.lags)]
    assert late.losses == [own.losses[step] for step in steps]
    assert len(set(own.losses)) == STEPS
    assert epoch == history


@pytest.mark.parametrize(("wrong", "ended"), [(3, 4), (STEPS, STEPS)])
def test_a_loss_that_is_not_finite_ends_the_run_one_call_late_or_with_the_epoch(
    trainer, tmp_path, wrong, ended
):
    images = IMAGES.copy()
    images[wrong * BATCH - 1] = np.nan
    guard = StopOnDivergence(tmp_path, trainer.progress)
    with pytest.raises(Diverged, match=f"nan at step {wrong}; "):
        trainer.fit(data(images), verbose=0, callbacks=[guard])
    assert trainer.progress.step == ended


def calls(stop_at, alone):
    """The figures, lags and stops that six calls of ten steps give."""
    progress = Progress(steps_per_epoch=60, alone=alone)
    figures, seen = LateFigures(progress), []
    for call in range(6):
        progress.stop_requested = call >= stop_at
        progress.advance(10)
        read = {"call": call}, call >= stop_at and not alone
        got = figures.after(10, lambda read=read: read)
        seen.append((got["call"], progress.lag, progress.stopping))
    return seen


def test_one_process_stops_after_the_step_in_which_it_is_asked():
    assert calls(3, alone=True)[:4] == [
        (0, 0, False),
        (0, 10, False),
        (1, 10, False),
        (3, 0, True),
    ]


def test_several_workers_stop_one_call_after_the_step_that_says_so():
    """All of them, as all read the same; also where it is asked in the last step."""
    assert calls(3, alone=False)[2:5] == [
        (1, 10, False),
        (2, 10, False),
        (4, 0, True),
    ]
    assert calls(5, alone=False)[4:] == [(3, 10, False), (5, 0, True)]


def test_an_error_of_a_read_is_raised_by_the_call_that_gets_its_figures():
    figures = LateFigures(Progress(steps_per_epoch=60))
    figures.after(10, lambda: ({}, False))
    figures.after(10, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        figures.after(10, lambda: ({}, False))


HANG = """
import sys, threading
sys.argv[0] = "keras-vit"  # without Keras
from training.engine.late_figures import LateFigures
from training.engine.progress import Progress
figures = LateFigures(Progress(steps_per_epoch=60))
figures.after(1, lambda: ({}, False))
figures.after(1, threading.Event().wait)
sys.exit(76)
"""


def test_a_process_ends_although_a_read_never_returns():
    """As of a device or worker that is lost."""
    result = subprocess.run([sys.executable, "-c", HANG], cwd=ROOT, timeout=60)
    assert result.returncode == 76


def test_an_epoch_begins_with_its_own_figures(trainer):
    seen = Seen(trainer.progress)
    trainer.fit(data(), epochs=2, verbose=0, callbacks=[seen])
    assert seen.lags == [0, 1, 1, 1, 0] * 2
    assert seen.stopping == [False] * 10
