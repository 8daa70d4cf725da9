"""Running a study: reuse, resuming, failures, parts, choices, and what is computed."""

import csv
import dataclasses
import json
import logging
import textwrap

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import f1_score
from tiny_recipe import TINY_RECIPE

from training.__main__ import main
from training.architectures.model_reading import read_classifier
from training.architectures.recipe_model import build_model
from training.data.splits import load_splits
from training.errors import Preempted
from training.evaluation.evaluate import evaluate
from training.studies import study_runs

STUDY = """
title: Learning rates
recipe: {recipe}
axes:
  rate:
    0.1: {{optimizer: {{learning_rate: 0.1}}}}
    0.2: {{optimizer: {{learning_rate: 0.2}}}}
    0.3: {{optimizer: {{learning_rate: 0.3}}}}
seeds: [0, 1]
columns: [accuracy, macro_f1, parameters]
figure:
  - {{kind: lines, x: rate, y: accuracy}}
published:
  accuracy: {{0.1: 12.5, elsewhere: 77}}
"""


@pytest.fixture
def study(tmp_path):
    """A function that writes a study of the tiny recipe and returns its path."""

    def write(text=STUDY, name="rates"):
        recipe = tmp_path / "tiny.yaml"
        recipe.write_text(dataclasses.replace(TINY_RECIPE, epochs=1).to_yaml())
        path = tmp_path / f"{name}.yaml"
        path.write_text(textwrap.dedent(text).format(recipe=recipe))
        return str(path)

    return write


@pytest.fixture
def calls(monkeypatch):
    """What a stand-in for `fit` was asked to train; rates above 0.25 fail with it."""
    made = []

    def fit(recipe, folder, resume, draw):
        made.append((folder.name, resume))
        print("the run's own output")
        logging.getLogger("library").warning("the run's own warning")
        rate = recipe.optimizer.learning_rate
        if rate > 0.25:
            raise ValueError("too\nfast")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.yaml").write_text(recipe.to_yaml())
        report = {"accuracy": rate + recipe.seed / 10, "macro_f1": 0.5}
        report |= {"parameters": 2e6, "seconds": 3}
        (folder / "report.json").write_text(json.dumps(report))
        (folder / "history.csv").write_text(f"epoch,val_accuracy\n1,{1 - rate}\n")

    monkeypatch.setattr(study_runs, "fit", fit)
    return made


def run(study, folder, *flags):
    return main(["study", study, "--output_dir", str(folder), *flags])


def table(folder):
    with (folder / "table.csv").open(newline="") as file:
        return {row["row"]: row for row in csv.DictReader(file)}


def test_a_failed_run_is_named_and_the_others_go_on(study, calls, tmp_path, capfd):
    folder = tmp_path / "out"
    logger = logging.getLogger("keras_vit")
    level = logger.level
    assert run(study(), folder) == 1
    assert logger.level == level
    names = [f"{rate}-seed{seed}" for seed in (0, 1) for rate in (0.1, 0.2, 0.3)]
    assert [name for name, _ in calls] == names
    out, err = capfd.readouterr()
    assert "0.3-seed1: failed: ValueError: too fast" in err
    assert err.endswith("study: 2 of 6 runs failed: 0.3-seed0, 0.3-seed1\n")
    assert "2 runs are not finished" in out
    assert "run's own" not in out + err
    log = (folder / "logs" / "0.3-seed0.log").read_text()
    assert "own output" in log
    rows = table(folder)
    assert float(rows["0.1"]["accuracy"]) == pytest.approx(15)  # seeds: 10 and 20 %
    assert float(rows["0.1"]["accuracy deviation"]) == pytest.approx(50**0.5)
    assert float(rows["0.1"]["accuracy published"]) == 12.5
    assert rows["0.3"]["accuracy"] == rows["elsewhere"]["accuracy"] == ""
    assert float(rows["elsewhere"]["accuracy published"]) == 77
    assert "| 0.3 | not run |  | not run |" in (folder / "table.md").read_text()
    with Image.open(folder / "figure.png") as picture:
        assert min(picture.size) > 300


def test_finished_runs_are_reused_and_unfinished_ones_resumed(
    study, calls, tmp_path, capfd
):
    folder = tmp_path / "out"
    run(study(), folder)
    first = table(folder)
    (folder / "0.2-seed1" / "report.json").unlink()
    calls.clear()
    assert run(study(), folder, "--rows", "0.1,0.2") == 0
    assert calls == [("0.2-seed1", True)]
    assert capfd.readouterr().err.count(": finished before") == 3
    assert table(folder) == {k: row for k, row in first.items() if k != "0.3"}


def test_a_dry_run_counts_finished_runs_of_its_own_recipe(
    study, calls, tmp_path, capsys
):
    folder = tmp_path / "out"
    run(study(), folder)
    for flags, count in (((), 4), (("--batch_size", "16"), 0)):
        capsys.readouterr()
        assert run(study(), folder, "--dry_run", *flags) == 0
        assert capsys.readouterr().out.count("(finished)") == count


def test_parts_add_up_and_the_table_is_drawn_from_what_is_there(study, calls, tmp_path):
    path = study(STUDY.replace("    0.3: {{optimizer: {{learning_rate: 0.3}}}}\n", ""))
    one, two = tmp_path / "one", tmp_path / "two"
    for number, folder in enumerate((one, two), start=1):
        assert run(path, folder, "--part", f"{number}/2") == 0
    assert sorted(calls) == sorted(set(calls))
    for seed in (0, 1):  # as copied from another machine
        for rate in (0.1, 0.2):
            source = two / f"{rate}-seed{seed}"
            if source.exists():
                source.rename(one / source.name)
    calls.clear()
    assert run(path, one, "--draw") == 0
    assert not calls
    assert all(
        float(row["macro_f1"]) == 50 for row in table(one).values() if row["macro_f1"]
    )
    assert float(table(one)["0.2"]["accuracy"]) == pytest.approx(25)


@pytest.mark.parametrize(
    ("change", "flags", "words"),
    [
        ("name: other", [], "has the runs of the study rates"),
        ("seeds: [0, 1]", ["--epochs", "5"], "0.1-seed0: contains a run of another"),
    ],
)
def test_a_folder_with_other_runs_is_an_error(
    study, calls, tmp_path, capfd, change, flags, words
):
    folder = tmp_path / "out"
    run(study(), folder)
    before = sorted(folder.rglob("*"))
    calls.clear()
    name = "other" if "name" in change else "rates"
    assert run(study(name=name), folder, *flags) == 1
    assert words in capfd.readouterr().err.splitlines()[-1].replace("\n", "")
    assert not calls
    assert sorted(folder.rglob("*")) == before


def test_a_folder_of_something_else_is_an_error(study, calls, tmp_path, capfd):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    assert run(study(), tmp_path / "out") == 1
    assert "exists and is not a study's" in capfd.readouterr().err
    assert not calls


def test_preemption_ends_the_study(study, tmp_path, monkeypatch):
    def fit(*args, **kwargs):
        raise Preempted("stopped by SIGTERM")

    monkeypatch.setattr(study_runs, "fit", fit)
    assert run(study(), tmp_path / "out") == Preempted.exit_status


CHOOSING = """
title: Chosen
recipe: {recipe}
axes:
  batch: {{64: , 32: {{batch_size: 32}}}}
choose:
  settings: {{data: {{validation: 0.3}}}}
  axes:
    rate:
      0.2: {{optimizer: {{learning_rate: 0.2}}}}
      0.15: {{optimizer: {{learning_rate: 0.15}}}}
columns: [accuracy]
"""


def test_the_best_candidate_on_validation_images_is_trained(study, calls, tmp_path):
    """The stand-in's validation accuracy is 1 - rate, its test accuracy the rate."""
    folder = tmp_path / "out"
    path = study(CHOOSING)
    assert run(path, folder) == 0
    names = ["64-seed0-0.2", "64-seed0-0.15", "64-seed0"]
    assert [name for name, _ in calls[:3]] == names
    measured = json.loads((folder / "64-seed0" / "measured.json").read_text())
    assert measured == {"choice": "0.15"}
    assert float(table(folder)["64"]["accuracy"]) == pytest.approx(15)
    trial = (folder / "choices" / "64-seed0-0.2" / "recipe.yaml").read_text()
    assert "validation: 0.3" in trial
    (folder / "64-seed0" / "report.json").unlink()
    calls.clear()
    assert run(path, folder) == 0
    assert calls == [("64-seed0", True)]  # the trials are kept


CHAIN = """
title: Chain
recipe: {recipe}
axes:
  task:
    first: {{optimizer: {{learning_rate: {first}}}}}
    second: {{model: {{weights: "@first"}}}}
columns: [accuracy]
"""


def test_a_run_whose_beginning_failed_is_named(study, calls, tmp_path, capfd):
    text = CHAIN.replace("{first}", "0.3")
    assert run(study(text), tmp_path / "out") == 1
    error = " ".join(capfd.readouterr().err.split())
    assert "second-seed0: failed: it begins with first-seed0, which is not" in error
    assert [name for name, _ in calls] == ["first-seed0"]


def test_a_moved_folder_is_still_the_studys(study, calls, tmp_path):
    path = study(CHAIN.replace("{first}", "0.2"))
    run(path, tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "moved")
    calls.clear()
    assert run(path, tmp_path / "moved") == 0
    assert not calls


REAL = """
title: Real
recipe: {recipe}
settings: {{model: {{head_stddev: 0.5}}}}
axes:
  task:
    first: {{data: {{source: "digits:quarter_turn"}}}}
    second: {{model: {{weights: "@first"}}}}
columns: [accuracy_before, macro_f1_before, accuracy, fewshot_5, exaflops, core_hours]
figure:
  - {{kind: bars, y: [accuracy_before, accuracy]}}
  - {{kind: curves, y: accuracy}}
"""


@pytest.mark.slow
def test_a_real_study_measures_before_after_and_the_features(study, tmp_path):
    import keras
    from fewshot_reference import fewshot_accuracy

    from training.recipe import load_recipe

    folder = tmp_path / "out"
    assert run(study(REAL), folder) == 0
    row = table(folder)["second"]
    path = folder / "second-seed0"
    recipe = load_recipe(path / "recipe.yaml")
    assert recipe.model.weights == str(folder / "first-seed0" / "best.keras")
    splits = load_splits(recipe.data, 1)
    model = read_classifier(path / "best.keras")
    after = evaluate(model, splits.test)
    assert float(row["accuracy"]) == pytest.approx(100 * after.accuracy)
    shots = np.mean(fewshot_accuracy(model, splits, (5,))[5])
    assert float(row["fewshot_5"]) == pytest.approx(100 * shots)
    keras.utils.set_random_seed(0)
    untrained = build_model(recipe.model, splits.class_names)
    before = evaluate(untrained, splits.test)
    f1 = f1_score(splits.test.labels, before.predictions, average="macro")
    assert float(row["accuracy_before"]) == pytest.approx(100 * before.accuracy)
    assert float(row["macro_f1_before"]) == pytest.approx(100 * f1)
    assert len(set(before.predictions)) > 1  # a random head, not a constant
    report = json.loads((folder / "first-seed0" / "report.json").read_text())
    seen = report["training_images"] // 64 * 64  # in one epoch
    hours = report["cores"] * seen / report["images_per_second"] / 3600
    assert float(row["core_hours"]) == pytest.approx(hours)
    # The compute is that of the pre-training: 4 tokens and the class token.
    n, d, m = 5, 12, 16
    macs = 4 * 16 * d + 4 * n * d * d + 2 * n * n * d + 2 * n * d * m + 4 * d
    images = len(
        load_splits(load_recipe(folder / "first-seed0/recipe.yaml").data, 1).train
    )
    seen = images // 64 * 64
    assert float(row["exaflops"]) == pytest.approx(3 * 2 * macs * seen / 1e18)


TINY_VIT = ("variant=null", "weights=null", "patch_size=16", "width=12", "depth=1")
TINY_VIT += ("mlp_dim=16", "heads=3", "image_size=32")


@pytest.mark.slow
def test_vtab_chooses_trains_and_resumes_on_data_sets_by_name(tmp_path):
    """With made-up images under the names, features and slices of the real ones."""
    import tensorflow_datasets as tfds

    folder = tmp_path / "out"
    flags = [f"--model.{flag}" for flag in TINY_VIT]
    flags += ["--steps=2", "--batch_size=4", "--rows", "eurosat"]
    with tfds.testing.mock_data(num_examples=5):
        assert run("vtab", folder, *flags) == 0
    name = "L16_ImageNet21k-eurosat"
    trials = sorted(path.name for path in (folder / "choices").iterdir())
    assert trials == sorted(
        f"{name}-seed0-{rate}-{steps}"
        for rate in (0.001, 0.003, 0.01, 0.03)
        for steps in (500, 2500)
    )
    for trial in trials:
        report = json.loads((folder / "choices" / trial / "report.json").read_text())
        assert report["training_images"] == 5
        assert "val_accuracy" in report["best_epoch"]
    report = json.loads((folder / f"{name}-seed0" / "report.json").read_text())
    assert report["training_images"] == 10  # both parts
    text = (folder / "table.md").read_text()
    assert "(95.60)" in text
    assert "mean of Specialized" in text
    with tfds.testing.mock_data(num_examples=5):
        assert run("vtab", folder, *flags) == 0  # nothing is trained again
