"""TensorBoard's event files of a run, read back, against known numbers."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from board_events import read_events

from training.engine.progress import Progress
from training.evaluation.evaluate import Evaluation
from training.recipe import DataConfig, ModelConfig, Recipe
from training.reporting import tensorboard
from training.reporting.tensorboard import RunBoard
from training.reporting.throughput import Throughput

pytestmark = pytest.mark.backend

RECIPE = Recipe(data=DataConfig("digits"), model=ModelConfig(variant="Ti/16"))
EVALUATION = Evaluation(("cat", "dog"), np.array([0, 1, 1]), np.eye(2)[[0, 1, 0]])


class FakeTrainer:
    """The part of a trainer that RunBoard uses: the optimizer and the progress."""

    def __init__(self, rate):
        self.optimizer = keras.optimizers.SGD(rate)
        self.progress = Progress()


def run(board, epochs, first=0, trainer=None, steps=3, stop=None):
    """Call the callbacks as Keras does; the loss of step n is 1 / n."""

    def call(name, *arguments):
        for callback in (board.throughput, board):
            getattr(callback, name)(*arguments)

    call("set_params", {"steps": steps, "epochs": epochs})
    call("set_model", trainer or FakeTrainer(0.5))
    call("on_train_begin")
    for epoch in range(first, epochs):
        call("on_epoch_begin", epoch)
        for batch in range(steps):
            step = epoch * steps + batch + 1
            if stop is not None and step > stop:
                for writer in board.writers.values():
                    writer.flush()
                return
            call("on_train_batch_begin", batch)
            logs = {"loss": 1 / step, "gradient_norm": 10.0 * step}
            call("on_train_batch_end", batch, logs)
        logs = {"loss": 1 / step, "val_loss": 2 / step, "val_accuracy": 0.25}
        call("on_epoch_end", epoch, logs)
    call("on_train_end")


@pytest.fixture(scope="module")
def undrawn_board():
    """Here TensorBoard gets its pictures."""


@pytest.fixture
def board(tmp_path, tiny_vit, monkeypatch):
    monkeypatch.setattr(tensorboard, "WRITE_INTERVAL", 0)
    monkeypatch.setattr(tensorboard, "MANY_WRITES", float("inf"))
    model = tiny_vit()

    def make(first_step=0, **kwargs):
        kwargs = {"devices": 1, "device_name": "CPU", **kwargs}
        throughput = Throughput(16, first_step)
        return RunBoard(tmp_path, RECIPE, model, throughput, **kwargs)

    make.folder = tmp_path / "tensorboard"
    return make


def test_steps_and_epochs_are_written(board):
    run(board(), epochs=2)
    steps = read_events(board.folder / "steps")
    assert set(steps) == {"loss", "gradient_norm", "images_per_second", "learning_rate"}
    every = range(1, 7)
    assert steps["loss"] == pytest.approx({s: 1 / s for s in every})
    assert steps["gradient_norm"] == pytest.approx({s: 10 * s for s in every})
    train = read_events(board.folder / "train")
    assert train["epoch_loss"] == pytest.approx({1: 1 / 3, 2: 1 / 6})
    assert "epoch_images_per_second" in train
    validation = read_events(board.folder / "validation")
    assert validation == {
        "epoch_loss": pytest.approx({1: 2 / 3, 2: 2 / 6}),
        "epoch_accuracy": {1: 0.25, 2: 0.25},
    }


def test_the_learning_rate_is_that_of_the_step(board):
    schedule = keras.optimizers.schedules.PolynomialDecay(0.6, 6, 0.0)
    run(board(), epochs=2, trainer=FakeTrainer(schedule))
    rates = read_events(board.folder / "steps")["learning_rate"]
    expected = {step: 0.6 * (1 - (step - 1) / 6) for step in range(1, 7)}
    assert rates == pytest.approx(expected)
    epochs = read_events(board.folder / "train")["epoch_learning_rate"]
    assert epochs == pytest.approx({1: expected[3], 2: expected[6]})


def test_a_resumed_run_replaces_later_events(board):
    run(board(), epochs=5, stop=11)
    # The checkpoint is after step 7; the last event is incomplete.
    (path,) = (board.folder / "steps").glob("*tfevents*")
    path.write_bytes(path.read_bytes()[:-5])
    resumed = board(
        first_step=7, example_images=lambda: pytest.fail("they are there already")
    )
    run(resumed, epochs=5, first=2)
    uninterrupted = {step: 1 / step for step in range(1, 16)}
    assert read_events(board.folder / "steps")["loss"] == pytest.approx(uninterrupted)
    epochs = {epoch: 1 / (3 * epoch) for epoch in range(1, 6)}
    assert read_events(board.folder / "train")["epoch_loss"] == pytest.approx(epochs)
    assert len(read_events(board.folder / "validation")["epoch_loss"]) == 5


def test_utilization_is_written_where_the_peak_is_known(board):
    run(board(devices=2, device_name="Tesla T4"), epochs=1)
    steps = read_events(board.folder / "steps")
    # 78 tokens of width 15, 2 blocks with an MLP of 23, 77 patches of 12 values.
    block = 4 * 78 * 15**2 + 2 * 78**2 * 15 + 2 * 78 * 15 * 23
    flops = 6 * (77 * 12 * 15 + 2 * block + 15 * 7)
    assert len(steps["mfu"]) == 3
    for step, value in steps["mfu"].items():
        rate = steps["images_per_second"][step]
        assert value == pytest.approx(rate * flops / (2 * 8.1e12))


@pytest.mark.slow
def test_pictures_match_the_report(board, monkeypatch):
    monkeypatch.setattr(tensorboard, "MOST_MATRICES", 4)
    images = np.zeros((5, 8, 6, 1), "uint8")
    made = board(example_images=lambda: images, validation=lambda: EVALUATION)
    run(made, epochs=10)
    grid = read_events(board.folder / "train")["augmented images"]
    assert list(grid) == [0]
    width, height, png = grid[0]
    picture = tf.io.decode_png(png).numpy()
    assert picture.shape == (int(height), int(width), 3)
    assert picture.min() == 0  # the black images
    matrices = read_events(board.folder / "validation")["confusion matrix"]
    assert list(matrices) == [3, 6, 9, 10]


def test_the_last_epoch_always_has_a_confusion_matrix(board):
    run(board(validation=lambda: EVALUATION), epochs=41, first=38, steps=1)
    matrices = read_events(board.folder / "validation")["confusion matrix"]
    assert list(matrices) == [39, 41]


def test_short_steps_are_not_all_written(board, monkeypatch):
    monkeypatch.setattr(tensorboard, "WRITE_INTERVAL", 1000)
    run(board(), epochs=1)
    assert list(read_events(board.folder / "steps")["loss"]) == [1]


def test_steps_are_profiled(board, monkeypatch):
    calls = []
    made = board(profile=(2, 4))
    for name in ("_start_profile", "_stop_profile"):
        original = getattr(made, name)
        monkeypatch.setattr(
            made, name, lambda do=original: (calls.append(made.throughput.step), do())
        )
    run(made, epochs=2)
    assert calls[0] == 1
    assert 4 in calls
    files = list(pathlib.Path(board.folder).rglob("*.xplane.pb"))
    assert len(files) == 1
    assert files[0].stat().st_size > 0
