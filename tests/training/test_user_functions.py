"""`--callbacks MODULE:FUNCTION`: a user's own callbacks, MLflow's among them."""

import dataclasses
import json
from pathlib import Path

import pytest
from tiny_recipe import CNN_RECIPE
from training_commands import main, parse
from without_pictures import leave_out_pictures

from training.errors import RecipeError
from training.flags import recipe_of
from training.recipe import load_recipe
from training.user_functions import UserCallbacks

pytestmark = pytest.mark.usefixtures("eagerly")

MODULE = """
import json, pathlib
import keras

class Notes(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        with open("notes.jsonl", "a") as file:
            print(json.dumps({"epoch": epoch, **logs}), file=file)

def notes(recipe):
    pathlib.Path("name").write_text(recipe.name)
    return Notes()

def both(recipe):
    return [Notes(), Notes()]

def fails(recipe):
    raise RuntimeError("no tracker")

def number(recipe):
    return 3

text = "text"
"""


@pytest.fixture
def trackers(tmp_path, monkeypatch):
    """A module in the working directory; returns its name."""
    monkeypatch.chdir(tmp_path)
    name = f"trackers_{abs(hash(str(tmp_path)))}"
    Path(f"{name}.py").write_text(MODULE)
    leave_out_pictures(monkeypatch.setattr)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    return name


def fit(*flags):
    Path("recipe.yaml").write_text(CNN_RECIPE.to_yaml())
    words = ["--epochs=1", "--batch_size=400", "--output_dir=run", *flags]
    main(["fit", "--config", "recipe.yaml", *words])


@pytest.mark.slow
def test_callbacks_get_the_logs_of_each_epoch(trackers):
    fit("--callbacks", f"{trackers}:notes")
    assert Path("name").read_text() == CNN_RECIPE.name
    [row] = map(json.loads, Path("notes.jsonl").read_text().splitlines())
    assert row["epoch"] == 0
    assert {"loss", "accuracy", "images_per_second"} < set(row)
    assert load_recipe(Path("run/recipe.yaml")).callbacks == f"{trackers}:notes"
    # `resume` calls them again.
    main(["resume", "run", "--epochs", "2"])
    assert len(Path("notes.jsonl").read_text().splitlines()) == 2


def test_several_functions_are_a_list(trackers):
    names = [f"{trackers}:notes", f"{trackers}:both"]
    flags = ["--recipe", "digits", "--callbacks", json.dumps(names)]
    recipe = recipe_of(parse("fit", flags))
    assert recipe.callbacks == tuple(names)
    assert len(UserCallbacks(recipe).make()) == 3


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("fails", "RuntimeError: no tracker"),
        ("number", "must return a Keras callback or a list of them. Received: int"),
        ("text", "must be a function. Received: str"),
        ("none", "has no attribute 'none'"),
    ],
)
def test_a_function_that_cannot_be_used_is_named(trackers, function, message):
    recipe = dataclasses.replace(CNN_RECIPE, callbacks=f"{trackers}:{function}")
    with pytest.raises(RecipeError) as error:
        UserCallbacks(recipe).make()
    assert str(error.value).startswith(f"--callbacks {trackers}:{function}: ")
    assert message in str(error.value)


def test_an_unknown_module_is_refused_before_any_image_is_read(trackers, monkeypatch):
    monkeypatch.setattr("training.fitting.fit.load_splits", None)
    with pytest.raises(RecipeError, match="--callbacks no_such_module:f: No module"):
        fit("--callbacks", "no_such_module:f")
    assert not Path("run").exists()


@pytest.mark.slow
def test_mlflow_records_a_run(trackers, monkeypatch):
    """The example of docs/trainer.md, with files instead of a server."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    docs = Path(__file__).parents[2] / "docs" / "trainer.md"
    [example] = [
        block.split("```")[0]
        for block in docs.read_text("utf-8").split("```python\n")
        if "mlflow" in block.split("```")[0]
    ]
    Path(f"{trackers}.py").write_text(example)
    mlflow.set_tracking_uri(Path("mlruns").absolute().as_uri())
    fit("--callbacks", f"{trackers}:mlflow_callback")
    mlflow.end_run()
    [run] = mlflow.MlflowClient().search_runs(["0"])
    assert run.data.params["recipe"] == CNN_RECIPE.name
    report = json.loads(Path("run/report.json").read_text())
    assert run.data.metrics["loss"] == pytest.approx(report["best_epoch"]["loss"])
