"""The recorder: the best epoch, a check of the final weights."""

import dataclasses

import pytest
from tiny_recipe import TINY_MODEL

from training.engine import checkpoint
from training.engine.recorder import Recorder, best_epoch
from training.errors import Diverged, Preempted
from training.fit import fit
from training.recipe import (
    DataConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
)

RECIPE = Recipe(data=DataConfig("digits", validation=0.0))


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([(0.5, 1.0), (0.75, 2.0), (0.625, 0.5)], 1),
        ([(0.75, 2.0), (0.75, 1.0), (0.75, 1.5)], 1),
        ([(0.75, 1.0), (0.75, 1.0)], 0),
    ],
    ids=["accuracy", "loss", "first"],
)
def test_the_best_epoch_has_the_best_accuracy_then_the_lowest_loss(rows, best):
    history = [{"val_accuracy": a, "val_loss": loss} for a, loss in rows]
    assert best_epoch(history) is history[best]


def test_without_validation_the_last_epoch_is_the_best():
    history = [{"loss": 1.0}, {"loss": 2.0}]
    assert best_epoch(history) is history[1]


@pytest.mark.parametrize(
    ("unwritten", "continues"),
    [
        ((), "stopped by SIGTERM after step 3; `keras-vit resume .*` continues$"),
        ((3,), "continues from the newest checkpoint, of step 2$"),
        ((1, 2, 3), "there is no checkpoint, so `keras-vit resume .*` begins anew$"),
    ],
)
def test_a_stopped_run_names_the_checkpoint_that_exists(
    tmp_path, monkeypatch, unwritten, continues
):
    def save(folder, state, keep):
        return state.step not in unwritten and original(folder, state, keep)

    def on_train_batch_end(recorder, batch, logs=None):
        recorder.progress.stopping = recorder.progress.step == 3
        end(recorder, batch, logs)

    original, end = checkpoint.save, Recorder.on_train_batch_end
    monkeypatch.setattr(checkpoint, "save", save)
    monkeypatch.setattr(Recorder, "on_train_batch_end", on_train_batch_end)
    recipe = dataclasses.replace(RECIPE, steps=9, model=TINY_MODEL)
    with pytest.raises(Preempted, match=continues):
        fit(recipe, tmp_path / "run", checkpoint_every=1, draw=False)


def test_non_finite_weights_after_the_last_update_are_a_divergence(tmp_path):
    recipe = dataclasses.replace(
        RECIPE,
        steps=1,
        model=TINY_MODEL,
        optimizer=OptimizerConfig(learning_rate=3e38, weight_decay=10.0),
        schedule=ScheduleConfig("constant"),
    )
    with pytest.raises(Diverged, match="not finite .* at step 1"):
        fit(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "best.keras").exists()
