"""The recorder: the best epoch, a check of the final weights."""

import pytest
from long_cases import long_after
from tiny_recipe import CNN_RECIPE, changed

from training.engine import checkpoint, recorder
from training.engine.recorder import Recorder, best_epoch
from training.errors import Diverged, Preempted
from training.fitting.fit import fit

RECIPE = changed(CNN_RECIPE, data={"validation": 0.0})


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


@pytest.fixture
def stopped(monkeypatch):
    """A function that trains until it is stopped after step 3."""

    def on_train_batch_end(callback, batch, logs=None):
        callback.progress.stopping = callback.progress.step == 3
        end(callback, batch, logs)

    def run(folder):
        recipe = changed(RECIPE, steps=9)
        fit(recipe, folder, checkpoint_every=1, draw=False)

    end = Recorder.on_train_batch_end
    monkeypatch.setattr(Recorder, "on_train_batch_end", on_train_batch_end)
    return run


@pytest.mark.parametrize(
    ("unwritten", "continues"),
    long_after(
        1,
        [
            ((), "stopped by SIGTERM after step 3; `keras-vit resume .*` continues$"),
            ((3,), "continues from the newest checkpoint, of step 2$"),
            (
                (1, 2, 3),
                "there is no checkpoint, so `keras-vit resume .*` begins anew$",
            ),
        ],
    ),
)
def test_a_stopped_run_names_the_checkpoint_that_exists(
    tmp_path, monkeypatch, stopped, unwritten, continues
):
    def save(folder, state, keep):
        return state.step not in unwritten and original(folder, state, keep)

    original = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", save)
    with pytest.raises(Preempted, match=continues):
        stopped(tmp_path / "run")


@pytest.mark.slow
def test_workers_that_are_stopped_end_when_the_checkpoint_is_written(
    tmp_path, monkeypatch, stopped
):
    """JAX aborts the one that writes it 20 s after the first has ended."""

    def gather(strategy, number):
        written.append(checkpoint.newest_committed(tmp_path / "run" / "checkpoints"))

    written = []
    monkeypatch.setattr(recorder, "gather", gather)
    with pytest.raises(Preempted):
        stopped(tmp_path / "run")
    assert [path.stem for path in written] == ["00000003"]


def test_non_finite_weights_after_the_last_update_are_a_divergence(tmp_path):
    recipe = changed(
        RECIPE,
        steps=1,
        optimizer={"learning_rate": 3e38, "weight_decay": 10.0},
        schedule={"name": "constant"},
    )
    with pytest.raises(Diverged, match="not finite .* at step 1"):
        fit(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "best.keras").exists()
