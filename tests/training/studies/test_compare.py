"""`compare`: scores before and after training, reuse of runs, written files."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from lxml import html
from PIL import Image
from sklearn.metrics import f1_score
from tiny_recipe import CNN_RECIPE, TINY_RECIPE, changed
from training_commands import main
from without_pictures import leave_out_pictures

from training.architectures.model_reading import read_classifier
from training.data.splits import load_splits
from training.errors import RecipeError, RunError
from training.evaluation.evaluate import evaluate
from training.recipe import DataConfig
from training.studies import compare as module
from training.studies.columns import read_history
from training.studies.compare import compare

pytestmark = pytest.mark.usefixtures("eagerly")
SHORT = {"epochs": 1, "batch_size": 100}
VIT = changed(TINY_RECIPE, name="vit", published_accuracy=0.75, **SHORT)
CNN = changed(CNN_RECIPE, name="cnn", **SHORT)

REPORTS = {
    "vit": {"parameters": 2025, "accuracy": 0.9, "macro_f1": 0.8, "seconds": 7.0},
    "cnn": {"parameters": 1999, "accuracy": 0.7, "macro_f1": 0.6, "seconds": 5.0},
}


def write_run(recipe, run, resume):
    """Write what `compare` reads of a run, instead of training."""
    run.mkdir(exist_ok=True)
    (run / "recipe.yaml").write_text(recipe.to_yaml())
    (run / "report.json").write_text(json.dumps(REPORTS[recipe.name]))
    rows = ["epoch,loss,accuracy,val_loss,val_accuracy", "1,2.5,0.1,2.25,0.2"]
    (run / "history.csv").write_text("\n".join([*rows, "2,1.5,0.3,1.25,0.4\n"]))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Folder and rows of a comparison of runs that `write_run` wrote."""
    folder = tmp_path_factory.mktemp("compare")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "fit", write_run)
        return folder, compare([VIT, CNN], folder)


def test_before_training_every_image_gets_the_first_class(compared):
    test = load_splits(VIT.data, channels=1).test
    zeros = np.zeros(len(test), int)
    for row in compared[1]:
        assert row.accuracy_before == pytest.approx((test.labels == 0).mean())
        f1 = f1_score(test.labels, zeros, average="macro")
        assert row.macro_f1_before == pytest.approx(f1)


def test_rows_have_the_figures_of_the_reports(compared):
    rows = compared[1]
    assert [row.name for row in rows] == ["vit", "cnn"]
    assert [row.published_accuracy for row in rows] == [0.75, None]
    for row in rows:
        figures = {name: getattr(row, name) for name in REPORTS[row.name]}
        assert figures == REPORTS[row.name]


@pytest.mark.slow
def test_rows_match_the_best_models(tmp_path, monkeypatch):
    leave_out_pictures(monkeypatch.setattr)
    test = load_splits(VIT.data, channels=1).test
    for row in compare([VIT, CNN], tmp_path):
        model = read_classifier(tmp_path / row.name / "best.keras")
        assert row.accuracy == pytest.approx(evaluate(model, test).accuracy)
        assert row.parameters == model.count_params()
        assert row.seconds > 0


def test_a_table_and_a_picture_are_written(compared):
    folder, rows = compared
    written = json.loads((folder / "comparison.json").read_text())["rows"]
    assert written == [dataclasses.asdict(row) for row in rows]
    page = html.parse(folder / "comparison.html").getroot()
    table = [
        [cell.text_content() for cell in row]
        for row in page.xpath("//table[@id='recipes']//tr")
    ]
    assert table == [list(module.COLUMNS), *(row.cells() for row in rows)]
    assert page.xpath("//table//a/@href") == ["vit/report.html", "cnn/report.html"]
    assert page.xpath("//img/@src")[0].startswith("data:image/png;base64,")
    with Image.open(folder / "curves.png") as picture:
        assert picture.size[0] > picture.size[1] > 400


@pytest.mark.parametrize("names", [["vit"], ["vit", "cnn"]])
def test_each_curve_is_labeled_with_its_images(compared, monkeypatch, tmp_path, names):
    """Validation images, except for the CNN, whose history here has none."""
    folder, _ = compared
    histories = {name: read_history(folder / name) for name in names}
    images = dict.fromkeys(names, "validation")
    if "cnn" in names:
        images["cnn"] = "training"
        for row in histories["cnn"]:
            del row["val_loss"], row["val_accuracy"]
    kept = []
    monkeypatch.setattr(module, "save", lambda figure, _: kept.append(figure))
    module.draw_curves(histories, tmp_path / "again.png")
    for axis, key in zip(kept[0].axes, ("loss", "accuracy"), strict=True):
        assert axis.get_title() == key.capitalize()
        drawn = {line.get_label(): list(line.get_ydata()) for line in axis.lines}
        assert drawn == {
            f"{name} ({kind})": [
                row[f"val_{key}" if kind == "validation" else key]
                for row in histories[name]
            ]
            for name, kind in images.items()
        }


def test_finished_runs_are_reused(compared, monkeypatch):
    folder, rows = compared
    monkeypatch.setattr(module, "fit", None)
    monkeypatch.setattr(module, "untrained_scores", None)
    assert compare([VIT, CNN], folder) == rows


@pytest.mark.slow
def test_an_unfinished_run_is_resumed(compared, tmp_path, monkeypatch):
    folder, rows = compared
    (tmp_path / "vit").mkdir()
    (tmp_path / "vit" / "recipe.yaml").write_text(VIT.to_yaml())

    def finish(recipe, run, resume):
        assert (recipe, run, resume) == (VIT, tmp_path / "vit", True)
        shutil.copytree(folder / "vit", run, dirs_exist_ok=True)

    monkeypatch.setattr(module, "fit", finish)
    assert compare([VIT], tmp_path) == rows[:1]


def test_another_recipe_in_the_folder_is_rejected(compared):
    other = dataclasses.replace(VIT, batch_size=50)
    with pytest.raises(RunError, match=r"vit: contains a run of another recipe"):
        compare([CNN, other], compared[0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": DataConfig("digits", test=0.3)}, ["same data", "0.3", "vit", "cnn"]),
        ({"name": "vit"}, ["different names", "vit, vit"]),
    ],
)
def test_recipes_that_cannot_be_compared_are_errors(tmp_path, changes, words):
    with pytest.raises(RecipeError) as error:
        compare([VIT, dataclasses.replace(CNN, **changes)], tmp_path)
    assert all(word in str(error.value) for word in words)
    assert not list(tmp_path.iterdir())


def test_flags_apply_to_all_recipes(tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        module, "compare", lambda recipes, folder: seen.update({folder: recipes})
    )
    main(
        [
            *("compare", "digits", "digits-cnn", "--output_dir", str(tmp_path)),
            *("--epochs", "9", "--optimizer.learning_rate=7e-5"),
            *("--data.validation", "0.25", "--model.variant=null"),
        ]
    )
    ((folder, recipes),) = seen.items()
    assert folder == tmp_path
    assert [recipe.name for recipe in recipes] == ["digits", "digits-cnn"]
    for recipe in recipes:
        assert (recipe.epochs, recipe.data.validation) == (9, 0.25)
        assert recipe.optimizer.learning_rate == 7e-5
        assert recipe.optimizer.weight_decay == 0.01
        assert recipe.model.variant is None
    assert recipes[1].model.architecture == "cnn"


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["digits", "digitz"], ["digitz", "digits-cnn"]),
        (["digits", "--epochs", "x"], ["epochs", "a whole number", "x"]),
        (["digits", "--epoch", "1"], ["--epoch"]),
        (["digits", "--name", "x"], ["--name"]),
        ([], ["required: recipes"]),
    ],
)
def test_a_command_line_mistake_is_a_one_line_error(words, reported):
    with pytest.raises(RecipeError) as error:
        main(["compare", *words])
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in reported)
