"""`keras-vit probe` on a tiny run: tables, JSON, errors."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from few_formats import few_formats
from fewshot_reference import fewshot_accuracy
from PIL import Image
from sklearn.datasets import load_digits
from tiny_model import build_vit
from tiny_recipe import TINY_RECIPE
from training_commands import main

from training.architectures.model_reading import read_any_model, read_classifier
from training.architectures.recipe_model import build_model
from training.data.splits import load_splits
from training.engine.run_folder import save_model
from training.errors import DataError, RecipeError, RunError
from training.recipe import DataConfig

DATA = DataConfig("digits", train="train[:700]", validation=0.2, test="train[700:900]")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run with a recipe and an untrained model."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    folder.mkdir()
    recipe = dataclasses.replace(TINY_RECIPE, data=DATA)
    keras.utils.set_random_seed(0)
    model = build_model(recipe.model, tuple("0123456789"))
    save_model(model, folder / "best.keras")
    (folder / "recipe.yaml").write_text(recipe.to_yaml())
    return folder


@pytest.fixture
def result(run, tmp_path, monkeypatch, capsys):
    """A function that runs the command, and returns the JSON and what was printed."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words, model=run):
        out = tmp_path / "out.json"
        main(["probe", str(model), *words, "--cache", "none", "--out", str(out)])
        return json.loads(out.read_text()), capsys.readouterr().out

    return call


def test_fewshot_is_what_the_function_returns(run, result):
    found, printed = result("--shots", "1", "5", "--l2", "1024", "1", "--seeds", "2")
    rows = {(row["shots"], row["l2"]): row for row in found["rows"]}
    assert list(rows) == [(1, 1024), (1, 1), (5, 1024), (5, 1)]
    model = read_classifier(run / "best.keras")
    expected = fewshot_accuracy(model, load_splits(DATA, 1), (1, 5), seeds=2)
    for shots, accuracies in expected.items():
        row = rows[shots, 1024]
        assert row["seeds"] == accuracies
        assert row["accuracy"] == pytest.approx(np.mean(accuracies))
        assert row["deviation"] == pytest.approx(np.std(accuracies, ddof=1))
        assert f"{row['accuracy']:.4f}" in printed
    assert "12 features, 700 training images, 200 test images, 10 classes" in printed
    assert (found["training_images"], found["method"]) == (700, "fewshot")


@pytest.mark.slow
def test_the_options_of_fewshot_count(result):
    """Not whitened and without bias: the paper's plain form."""
    plain = ["--shots", "5", "--whiten", "false", "--bias", "0", "--l2", "0.01"]
    default = ["--shots", "5", "--l2", "0.01"]
    [ours] = result(*plain)[0]["rows"]
    [other] = result(*default)[0]["rows"]
    assert ours["seeds"] != other["seeds"]


def test_linear_chooses_on_the_validation_images_of_the_run(result):
    found, printed = result("--method", "linear", "--l2", "1e9", "1")
    [row] = found["rows"]
    assert (row["l2"], row["optimizer"]) == (1, "lbfgs")
    assert [each["l2"] for each in row["candidates"]] == [1e9, 1]
    assert row["validation_accuracy"] == row["candidates"][1]["validation_accuracy"]
    assert row["validation_accuracy"] * 140 == pytest.approx(
        round(row["validation_accuracy"] * 140)
    )
    assert row["accuracy"] > 0.3
    assert f"{row['accuracy']:.4f}" in printed


@pytest.mark.slow
def test_linear_takes_validation_images_where_there_are_none(result):
    words = ["--method", "linear", "--l2", "1", "--data.validation", "0"]
    [row] = result(*words)[0]["rows"]
    assert row["validation_accuracy"] * 70 == pytest.approx(
        round(row["validation_accuracy"] * 70)
    )


def test_knn_has_a_row_for_each_k(result):
    found, _ = result("--method", "knn")
    assert [row["k"] for row in found["rows"]] == [10, 20, 100, 200]
    assert found["rows"][0]["accuracy"] > 0.3


def test_too_many_shots_or_neighbors_are_one_line(result):
    with pytest.raises(DataError, match="`shots` must be at most .* '\\d' has 6"):
        result("--shots", "1", "80")
    with pytest.raises(DataError, match="at most the 700 training images.*701"):
        result("--method", "knn", "--k", "701")


def test_a_lone_model_needs_a_source(run, result, tmp_path):
    file = tmp_path / "model.keras"
    file.write_bytes((run / "best.keras").read_bytes())
    with pytest.raises(RecipeError, match="--data.source is needed"):
        result(model=file)
    found, _ = result("--data.source", "digits", "--shots", "1", model=file)
    assert (found["source"], found["test_images"]) == ("digits", 360)


@pytest.mark.slow
@few_formats()
def test_images_of_other_classes_can_be_probed(result, tmp_path):
    random = np.random.default_rng(0)
    for name, level in (("dark", 40), ("bright", 200), ("middle", 120)):
        (tmp_path / "levels" / name).mkdir(parents=True)
        for index in range(10):
            pixels = random.normal(level, 5, (9, 9)).astype("uint8")
            Image.fromarray(pixels).save(tmp_path / "levels" / name / f"{index}.png")
    words = ["--data.source", f"folder:{tmp_path / 'levels'}", "--method", "knn"]
    found, _ = result(*words, "--k", "3")
    assert (found["classes"], found["test_images"]) == (3, 6)
    assert found["rows"][0]["accuracy"] > 0.5


@pytest.mark.slow
def test_features_are_cached_in_the_folder(run, tmp_path, capsys):
    words = ["probe", str(run), "--shots", "1", "--cache", str(tmp_path / "features")]
    main(words)
    first = capsys.readouterr().out
    files = sorted((tmp_path / "features").iterdir())
    times = [file.stat().st_mtime_ns for file in files]
    assert len(files) == 2
    main(words)
    assert capsys.readouterr().out == first
    assert [f.stat().st_mtime_ns for f in sorted(files[0].parent.iterdir())] == times


def test_unpooled_and_foreign_models_are_errors(run, tmp_path):
    save_model(build_vit(pooling=None), tmp_path / "tokens.keras")
    inputs = keras.Input((3,))
    save_model(keras.Model(inputs, inputs), tmp_path / "foreign.keras")
    flags = ["--data.source", "digits", "--cache", "none"]
    with pytest.raises(RunError, match="pooled features.*pooling=None"):
        main(["probe", str(tmp_path / "tokens.keras"), *flags])
    foreign = "foreign.keras: .*not a model of keras_vit"
    with pytest.raises(RunError, match=foreign) as error:
        main(["probe", str(tmp_path / "foreign.keras"), *flags])
    assert str(error.value).count("foreign.keras") == 1
    with pytest.raises(RunError, match="nothing") as error:
        main(["probe", str(tmp_path / "nothing"), *flags])
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_checkpoints_are_read_as_what_they_are(tmp_path):
    """A file of Google's layout, which reads normalized pixels."""
    from keras_vit.weights.saving import save_checkpoint

    model = build_vit(image_size=16, patch_size=8)
    save_checkpoint(model, tmp_path / "vit.npz", "google")
    read = read_any_model(str(tmp_path / "vit.npz"))
    assert read.reads_raw_pixels
    raw = load_digits().images[:3, ..., None].repeat(3, -1).repeat(2, 1).repeat(2, 2)
    np.testing.assert_allclose(
        read.predict(raw * 15, verbose=0),
        model.predict(raw * 15 / 127.5 - 1, verbose=0),
        rtol=1e-4,
        atol=1e-4,
    )
