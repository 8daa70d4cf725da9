"""Early termination: a non-finite loss, and the exit status of each error."""

import os

import keras
import numpy as np
import pytest

from training.engine.checkpoint import Checkpoint, Owner, save
from training.engine.early_termination import StopOnDivergence
from training.engine.progress import Progress
from training.errors import Diverged, Preempted, TrainingError


def diverging_model(scale):
    """A weight w of loss (w x - y)^2, which becomes non-finite in the third step."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    x = np.array([1, 1, scale, 1, 1], "float32")[:, None]
    return model, x, np.zeros_like(x)


class StepsOf:
    """The progress of a model without a trainer."""

    lag = 0

    def __init__(self, model):
        self.model = model

    @property
    def step(self):
        return int(self.model.optimizer.iterations)


@pytest.mark.parametrize("scale", [np.nan, np.inf, 3e38])
def test_a_non_finite_loss_ends_the_training(tmp_path, scale):
    save(tmp_path, Checkpoint(2, {"a": np.ones(3)}, Owner("")))
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
