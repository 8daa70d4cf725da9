"""The commands of training on one short run."""

import contextlib
import io
import json

import numpy as np
import pytest
from few_formats import few_formats
from PIL import Image
from run_files import weights
from sklearn.datasets import load_digits
from training_commands import main
from without_pictures import leave_out_pictures

import keras_vit
from training.architectures.model_reading import read_classifier
from training.errors import RecipeError, RunError
from training.recipe import load_recipe
from training.recipes import named_recipe
from training.studies import baselines

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, eagerly):
    """A folder with runs/tiny, trained by the command, and two digits as files."""
    folder = tmp_path_factory.mktemp("work")
    for index in (0, 1):
        pixels = (load_digits().images[index] * (255 / 16)).round().astype("uint8")
        (folder / "images").mkdir(exist_ok=True)
        Image.fromarray(pixels).resize((32, 32)).save(folder / f"images/{index}.png")
    (folder / "images" / "notes.txt").write_text("no image")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        leave_out_pictures(patch.setattr)
        short = ["--epochs=1", "--schedule.warmup_epochs=0.5", "--model.depth=1"]
        short += ["--batch_size=400"]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            main(["fit", "--recipe", "digits", "--name", "tiny", *short])
    (folder / "printed.txt").write_text(printed.getvalue())
    return folder


@pytest.fixture(autouse=True)
def inside(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")


def test_a_run_goes_to_the_folder_of_its_name(folder):
    recipe = load_recipe(folder / "runs" / "tiny" / "recipe.yaml")
    assert (recipe.name, recipe.epochs, recipe.model.depth) == ("tiny", 1, 1)


def test_without_validation_the_last_epoch_is_the_best(folder):
    run = folder / "runs" / "tiny"
    np.testing.assert_equal(weights(run, "best"), weights(run, "last"))


def test_a_finished_run_prints_the_next_commands(folder):
    last = (folder / "printed.txt").read_text().splitlines()[-2:]
    assert last[0].endswith(": keras-vit predict IMAGES --model runs/tiny")
    assert last[1].endswith(": keras-vit export runs/tiny --to models/tiny")


def test_evaluate_prints_what_the_run_reported(folder, capsys):
    report = json.loads((folder / "runs/tiny/report.json").read_text())
    main(["evaluate", "runs/tiny"])
    printed = capsys.readouterr().out
    assert f"accuracy {report['accuracy']:.4f}" in printed
    assert f"macro F1 {report['macro_f1']:.4f} on 360 images" in printed


@pytest.mark.slow
def test_evaluate_accepts_a_file_and_another_split(capsys):
    main(["evaluate", "runs/tiny/last.keras", "--split", "train"])
    assert "train images of digits" in capsys.readouterr().out


def test_evaluate_needs_a_source_for_a_lone_file(folder, capsys):
    (folder / "alone").mkdir(exist_ok=True)
    data = (folder / "runs/tiny/best.keras").read_bytes()
    (folder / "alone" / "model.keras").write_bytes(data)
    with pytest.raises(RecipeError, match="--source is needed"):
        main(["evaluate", "alone/model.keras"])
    main(["evaluate", "alone/model.keras", "--source", "digits"])
    assert "360 images" in capsys.readouterr().out


def write_images(root, class_names, count):
    """Gray images, each of another level, in a folder for each class."""
    for name in class_names:
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            Image.new("L", (8, 8), 20 * index).save(root / name / f"{index}.png")


def test_evaluate_rejects_other_classes(folder):
    write_images(folder / "animals", ("cat", "dog"), 10)
    with pytest.raises(RunError, match="cat, dog"):
        main(["evaluate", "runs/tiny", "--source", "folder:animals"])


def test_evaluate_tells_two_unicode_forms_of_a_class_apart(own_model, folder):
    names = ",".join([*"012345678", "\u00e4"])
    write_images(folder / "forms", [*"012345678", "a\u0308"], 1)
    words = ["--class_names", names, "--source", "folder:forms"]
    with pytest.raises(RunError, match=r"\('\\xe4'\) and .*\('a\\u0308'\)$"):
        main(["evaluate", "own.keras", *words])


@pytest.mark.slow
@few_formats()
def test_evaluate_counts_every_image_of_another_folder(folder, capsys):
    write_images(folder / "digits", "0123456789", 3)
    main(["evaluate", "runs/tiny", "--source", "folder:digits"])
    assert "on 30 images" in capsys.readouterr().out


@pytest.mark.slow
def test_predict_classifies_files_and_folders(capsys):
    main(["predict", "images/0.png", "images", "--model", "runs/tiny", "--top", "2"])
    printed = capsys.readouterr().out
    assert printed.count("images/0.png") == 2
    assert printed.count("images/1.png") == 1


def test_an_invalid_model_file_is_an_error(folder):
    reasons = {
        "a.keras": "'a.keras', which is truncated or corrupt",
        "a.txt": "a.txt: must be a .keras file, a",
    }
    for name, reason in reasons.items():
        (folder / name).write_text("text")
        with pytest.raises(RunError, match=reason) as error:
            main(["predict", "images", "--model", name])
        assert "\n" not in str(error.value)


def test_baselines_are_listed_beside_the_runs(capsys, monkeypatch):
    quick = {name: baselines.CLASSIFIERS[name] for name in ("kNN, k = 3",)}
    monkeypatch.setattr(baselines, "CLASSIFIERS", quick)
    main(["baselines"])
    printed = capsys.readouterr().out
    assert "0.9861" in printed
    assert "tiny" in printed


@pytest.mark.slow
def test_baseline_accuracies_match_known_ones():
    """Accuracies measured with scikit-learn alone on the same split."""
    scores = {
        name: accuracy
        for name, accuracy, _ in baselines.baseline_scores(named_recipe("digits"))
    }
    assert scores.keys() == baselines.CLASSIFIERS.keys()
    assert scores["kNN, k = 3"] == pytest.approx(0.9861, abs=1e-4)
    assert scores["SVM, RBF kernel, gamma 0.001"] == pytest.approx(0.9889, abs=1e-4)


@pytest.fixture(scope="module")
def own_model(folder):
    """The run's model, saved by the library without preprocessing and class names."""
    run = read_classifier(folder / "runs/tiny/best.keras")
    config = {**run.get_config(), "preprocessing": None, "class_names": None}
    model = keras_vit.VisionTransformer.from_config(config)
    model.set_weights(run.get_weights())
    model.save(folder / "own.keras")
    return run


def test_a_model_of_ones_own_needs_class_names(own_model):
    with pytest.raises(RunError, match="no names for its 10 classes.*--class_names"):
        main(["predict", "images", "--model", "own.keras"])


@pytest.mark.slow
def test_a_model_of_ones_own_predicts_and_evaluates(own_model, folder, capsys):
    names = ",".join(own_model.class_names)
    main(["predict", "images", "--model", "runs/tiny"])
    expected = capsys.readouterr().out
    main(["predict", "images", "--model", "own.keras", "--class_names", names])
    assert capsys.readouterr().out == expected
    main(["evaluate", "runs/tiny"])
    accuracy = capsys.readouterr().out.splitlines()[-1]
    (folder / "names.txt").write_text("\n".join(own_model.class_names))
    words = ["--class_names", "names.txt", "--source", "digits"]
    main(["evaluate", "own.keras", *words])
    assert accuracy in capsys.readouterr().out
