"""`resume` on a tiny model: the recipe in the folder, longer runs, refused folders."""

import json
import shutil

import keras
import numpy as np
import pytest
from run_files import history, weights
from tiny_recipe import CNN_RECIPE, changed
from training_commands import main
from without_pictures import leave_out_pictures

from training.engine.run_folder import locked
from training.errors import RecipeError, RunError, TrainingError
from training.fitting.fit import fit
from training.fitting.resume import resume
from training.recipe import load_recipe

pytestmark = pytest.mark.usefixtures("eagerly")
# With a constant learning rate a longer run begins with the steps of a shorter one.
RECIPE = changed(
    CNN_RECIPE,
    name="short",
    epochs=2,
    batch_size=45,
    data={"train": "train[:100]", "validation": 0.1, "test": "train[100:120]"},
    optimizer={"learning_rate": 3e-3, "ema": 0.9},
    schedule={"name": "constant"},
)
LONG = changed(RECIPE, epochs=4)


@pytest.fixture(scope="module", autouse=True)
def without_pictures():
    with pytest.MonkeyPatch.context() as patch:
        leave_out_pictures(patch.setattr)
        board = keras.callbacks.Callback
        patch.setattr(
            "training.fitting.fit.tensorboard_callbacks", lambda *_: [board()]
        )
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of 2 epochs."""
    folder = tmp_path_factory.mktemp("runs") / "short"
    fit(RECIPE, folder)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "short")


@pytest.fixture
def no_images(monkeypatch):
    """Fail where images would be read."""

    def read(*_):
        raise AssertionError("the images were read")

    monkeypatch.setattr("training.fitting.fit.load_splits", read)


def contents(run):
    """The bytes of each file, but for the lock, which says who holds it."""
    files = [path for path in run.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files if path.name != ".lock"}


@pytest.mark.slow
def test_an_extended_run_ends_like_one_that_was_never_short(run, tmp_path, capsys):
    fit(LONG, tmp_path / "long")
    capsys.readouterr()
    main(["resume", str(run), "--epochs", "4"])
    assert "extended from 2 to 4 epochs" in capsys.readouterr().out
    for name in ("best", "last"):
        np.testing.assert_equal(weights(run, name), weights(tmp_path / "long", name))
    report = json.loads((run / "report.json").read_text())
    assert report["recipe"]["epochs"] == 4
    assert load_recipe(run / "recipe.yaml") == LONG


def test_a_refused_extension_leaves_the_finished_run_as_it_is(run, monkeypatch):
    before = contents(run)
    monkeypatch.setattr(
        "training.engine.recorder.contents_fingerprint", lambda *_: "other"
    )
    with pytest.raises(RunError, match="contents of some .* have changed"):
        resume(run, 4)
    assert contents(run) == before


@pytest.mark.slow
def test_the_schedule_of_an_extended_run_is_that_of_the_new_length(tmp_path, capsys):
    fit(changed(RECIPE, schedule={"name": "cosine"}), tmp_path / "run")
    capsys.readouterr()
    resume(tmp_path / "run", 4)
    # Half of the way down a cosine, after the end of a shorter one.
    assert "of the new length, 0.0015 after" in capsys.readouterr().out
    rates = [row["learning_rate"] for row in history(tmp_path / "run")]
    shares = [1 / 4, 3 / 4, 5 / 8, 7 / 8]  # of 2 steps in an epoch
    expected = 0.003 * (1 + np.cos(np.pi * np.array(shares))) / 2
    np.testing.assert_allclose(rates, expected, rtol=1e-4)


def test_a_stopped_run_continues_with_its_own_recipe(run, capsys):
    (run / "report.json").unlink()
    resume(run)
    assert (run / "report.json").exists()
    assert load_recipe(run / "recipe.yaml") == RECIPE
    # To the length that it already has is no extension.
    (run / "report.json").unlink()
    resume(run, 2)
    assert "extended" not in capsys.readouterr().out


@pytest.mark.usefixtures("no_images")
def test_a_finished_run_is_refused_before_its_images_are_read(run):
    with pytest.raises(RunError, match="is finished; --epochs with a number above 2"):
        resume(run)
    with pytest.raises(RecipeError, match="`--epochs` must be at least the run's 2"):
        resume(run, 1)
    with pytest.raises(RunError, match="contains a finished run; `keras-vit resume"):
        fit(RECIPE, run, resume=True)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunError, match="has no checkpoint"):
        resume(run, 4)
    assert (run / "report.json").exists()


@pytest.mark.usefixtures("no_images")
def test_another_folder_is_refused_before_its_images_are_read(run, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("")
    with pytest.raises(RunError, match="is not the folder of a run") as error:
        resume(tmp_path / "thesis")
    assert "Did you mean" not in str(error.value)
    with pytest.raises(RunError, match="Did you mean .*/short?"):
        resume(tmp_path / "shrt")
    with pytest.raises(RunError, match="is not a run; choose another --output_dir"):
        fit(RECIPE, tmp_path / "thesis", resume=True)


@pytest.mark.usefixtures("no_images")
def test_what_differs_from_the_folders_recipe_is_named(run):
    (run / "report.json").unlink()
    other = changed(RECIPE, epochs=3, optimizer={"learning_rate": 1e-3})
    with pytest.raises(RunError) as error:
        fit(other, run, resume=True)
    assert "`epochs` is 2 there and 3 here; `optimizer.learning_rate` is 0.003 " in str(
        error.value
    )
    with pytest.raises(RunError, match="values: `optimizer.learning_rate`"):
        fit(other, run, resume=True, extend=True)


def test_a_run_whose_length_is_in_steps_is_not_extended(run):
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("\nsteps: null", "\nsteps: 4"))
    before = contents(run)
    with pytest.raises(TrainingError, match="`epochs` must be left as it is"):
        resume(run, 9)
    assert contents(run) == before


@pytest.mark.usefixtures("no_images")
def test_a_run_that_another_process_trains_is_refused_before_its_images_are_read(run):
    (run / "report.json").unlink()
    with locked(run), pytest.raises(RunError, match=r"process \d+ on .* trains there"):
        resume(run)


@pytest.mark.usefixtures("no_images")
def test_a_launched_run_says_how_to_continue_it(run, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    (run / "report.json").unlink()
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(
        text.replace("strategy: auto", "strategy: multi_worker")
    )
    command = rf"`keras-vit launch --workers 1 -- resume {run}` continues"
    with pytest.raises(RunError, match=command):
        resume(run)


def test_an_edited_recipe_is_refused_with_the_changed_value(run):
    (run / "report.json").unlink()
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("\nseed: 0", "\nseed: 9"))
    with pytest.raises(RunError, match="another recipe: `seed` is 0 there and 9 here"):
        resume(run)


@pytest.mark.usefixtures("no_images")
def test_a_run_without_its_checkpoints_is_refused_before_its_images_are_read(run):
    (run / "report.json").unlink()
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(RunError, match="has no checkpoint any more, after 2 epochs"):
        resume(run)


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(run, capsys):
    (run / "report.json").unlink()
    shutil.rmtree(run / "checkpoints")
    (run / "history.csv").unlink()
    resume(run)
    assert "there is no checkpoint yet: begins at step 0" in capsys.readouterr().out
