"""report.md and the pictures, also where figures are missing."""

import dataclasses
import math
import shlex
import types

import numpy as np
import pytest
import tensorflow as tf
import yaml
from etils import epath
from PIL import Image

from keras_vit import ImagePreprocessing
from training.cli import parse, recipe_of
from training.evaluate import Evaluation
from training.recipe import DataConfig, Recipe
from training.reporting import pictures
from training.reporting.report import write_markdown

RECIPE = Recipe(
    name="pets_b16",
    description="Fine-tuning | a *test*",
    reference="arXiv:2010.11929, Table 5",
    published_accuracy=0.9443,
    data=DataConfig("digits"),
)
ROW = {"epoch": 1, "loss": 2.0, "accuracy": 0.5, "learning_rate": 1e-3, "seconds": 4.0}


def evaluation(classes=3, count=60, wrong=6):
    """All predictions are right except the first `wrong`, which are the next class."""
    labels = np.arange(count) % classes
    predicted = np.where(np.arange(count) < wrong, (labels + 1) % classes, labels)
    probabilities = np.eye(classes, dtype="float32")[predicted]
    names = tuple(f"class {number}" for number in range(classes))
    return Evaluation(names, labels, probabilities)


def result(scores, **more):
    return {
        **scores.summary(),
        "best_epoch": {**ROW, "epoch": 2, "val_accuracy": 0.875},
        "training_images": 1234,
        "bad_images": [],
        "parameters": 85_800_194,
        "seconds": 7200.0,
        "versions": {"keras": "3.15.1"},
        **more,
    }


def written(folder, scores=None, recipe=RECIPE, **more):
    figures = result(scores or evaluation(), **more)
    write_markdown(folder, figures, recipe, [ROW, {**ROW, "epoch": 2}])
    return (folder / "report.md").read_text("utf-8")


def tables(text):
    """The Markdown tables: lists of rows, each a list of cells."""
    blocks = [block.split("\n") for block in text.split("\n\n")]
    blocks = [block for block in blocks if block[0].startswith("| ")]
    return [
        [[c.strip() for c in line[1:-1].split(" | ")] for line in block]
        for block in blocks
    ]


def test_the_report_has_the_runs_figures(tmp_path):
    text = written(
        tmp_path,
        devices=4,
        device_name="NVIDIA A100-SXM4-40GB",
        images_per_second=1234.56,
        accelerator_hours=8.0,
    )
    figures = dict(tables(text)[0][2:])
    assert figures == {
        "test accuracy": "0.9000",
        "published accuracy": "0.9443 (arXiv:2010.11929, Table 5)",
        "macro F1": "0.9000",
        "best epoch": "2 of 2",
        "its validation accuracy": "0.8750",
        "training images": "1,234",
        "test images": "60",
        "parameters": "85,800,194",
        "seconds of training and validation": "7,200.0",
        "images per second (last epoch)": "1,234.6",
        "devices": "4 x NVIDIA A100-SXM4-40GB",
        "accelerator-hours": "8",
        "core-days": "0.3333 of NVIDIA A100-SXM4-40GB (the paper counts those of "
        "TPUv3)",
    }
    assert "keras 3.15.1" in text


@pytest.mark.parametrize("unknown", [None, math.nan])
def test_unknown_figures_are_omitted(tmp_path, unknown):
    best = {**ROW, "val_accuracy": unknown}
    recipe = dataclasses.replace(RECIPE, published_accuracy=None)
    text = written(
        tmp_path,
        recipe=recipe,
        best_epoch=best,
        devices=1,
        device_name="CPU",
        images_per_second=unknown,
        accelerator_hours=unknown,
    )
    figures = dict(tables(text)[0][2:])
    for name in ("published accuracy", "its validation accuracy", "devices"):
        assert name not in figures
    assert "images per second (last epoch)" not in figures
    assert "nan" not in text.lower().split("<details>")[0]
    assert "None" not in text.split("<details>")[0]


def test_every_class_has_its_row(tmp_path):
    scores = evaluation(classes=3, count=60, wrong=1)
    rows = tables(written(tmp_path, scores))[1]
    # The first image is a 0 classified as a 1.
    assert rows[2:] == [
        ["class 0", "1.0000", "0.9500", "0.9744", "20"],
        ["class 1", "0.9524", "1.0000", "0.9756", "20"],
        ["class 2", "1.0000", "1.0000", "1.0000", "20"],
    ]


def test_only_the_worst_of_many_classes_are_listed(tmp_path):
    names = tuple(f"class {number}" for number in range(120))
    labels = np.arange(3 * 119) % 119  # none of the last class
    predictions = np.where(np.arange(3 * 119) == 70, 71, labels)
    text = written(tmp_path, Evaluation(names, labels, np.eye(120)[predictions]))
    rows = tables(text)[1][2:]
    assert len(rows) == 50
    assert [row[0] for row in rows[:2]] == ["class 70", "class 71"]
    assert rows[2][3] == "1.0000"  # a class without images is not a bad one
    assert "50 classes of lowest F1, of 120" in text


def test_names_do_not_break_the_table(tmp_path):
    names = ("a | b", "__init__ <b>", "many\nlines")
    scores = dataclasses.replace(evaluation(), class_names=names)
    rows = tables(written(tmp_path, scores))[1][2:]
    assert [row[0] for row in rows] == [
        r"a \| b",
        r"\_\_init\_\_ \<b\>",
        "many lines",
    ]


def test_the_command_and_the_recipe_repeat_the_run(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(RECIPE.to_yaml())
    text = written(folder)
    command = next(line for line in text.split("\n") if line.startswith("keras-vit"))
    words = shlex.split(command)
    assert words[:2] == ["keras-vit", "fit"]
    options = parse(words[1:]).fit
    assert options.output_dir != folder
    assert recipe_of(options) == RECIPE
    embedded = text.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(embedded) == yaml.safe_load(RECIPE.to_yaml())


def test_only_existing_pictures_are_shown(tmp_path):
    assert "![" not in written(tmp_path)
    pictures.draw_curves([ROW], tmp_path / "curves.png")
    pictures.draw_confusion_matrix(evaluation(), tmp_path / "confusion_matrix.png")
    text = written(tmp_path)
    assert "![Curves](curves.png)" in text
    assert "![Confusion matrix](confusion_matrix.png)" in text
    assert "misclassified" not in text
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "confusion_matrix.png",
        "curves.png",
        "report.md",
    ]


def lines_of(monkeypatch, history, path):
    """The curves that are drawn: title -> label -> values."""
    drawn = {}

    def keep(figure, path):
        for axis in figure.axes:
            lines = {line.get_label(): line for line in axis.lines}
            drawn[axis.get_title()] = {
                label: (list(line.get_xdata()), list(line.get_ydata()))
                for label, line in lines.items()
                if not label.startswith("_")
            }

    monkeypatch.setattr(pictures, "_save", keep)
    pictures.draw_curves(history, path)
    return drawn


def test_curves_show_what_the_history_has(tmp_path, monkeypatch):
    history = [
        {**ROW, "val_loss": 3.0, "val_accuracy": 0.25, "gradient_norm": 9.0},
        {**ROW, "epoch": 2, "loss": None, "val_loss": math.nan, "val_accuracy": 0.5},
    ]
    drawn = lines_of(monkeypatch, history, tmp_path / "curves.png")
    np.testing.assert_equal(
        drawn,
        {
            "Loss": {
                "training": ([1, 2], [2.0, math.nan]),
                "validation": ([1, 2], [3.0, math.nan]),
            },
            "Accuracy": {
                "training": ([1, 2], [0.5, 0.5]),
                "validation": ([1, 2], [0.25, 0.5]),
            },
            "Learning rate": {"training": ([1, 2], [1e-3, 1e-3])},
            "Gradient norm of the last step": {"training": ([1, 2], [9.0, math.nan])},
        },
    )


BLUE = (31, 119, 180)  # matplotlib's first color, of a curve


@pytest.mark.parametrize("epochs", [1, 500])
def test_curves_of_any_length_are_drawn(tmp_path, epochs):
    history = [{**ROW, "epoch": n + 1, "loss": math.inf} for n in range(epochs)]
    pictures.draw_curves(history, epath.Path(tmp_path / "curves.png"))
    picture = np.asarray(Image.open(tmp_path / "curves.png").convert("RGB"))
    assert picture.shape == (840, 1200, 3)
    learning_rate = picture[420:, :600]  # the panel without a legend
    assert (learning_rate == BLUE).all(axis=-1).any()


@pytest.mark.parametrize("classes", [2, 31, 160])
def test_a_confusion_matrix_of_any_size_is_drawn(tmp_path, classes):
    scores = evaluation(classes, 2 * classes, wrong=1)
    pictures.draw_confusion_matrix(scores, tmp_path / "matrix.png")
    assert Image.open(tmp_path / "matrix.png").width > 500


def test_the_confusion_matrix_colors_start_at_zero(tmp_path):
    labels = np.repeat([0, 0, 1, 1], [50, 40, 45, 48])
    predictions = np.repeat([0, 1, 0, 1], [50, 40, 45, 48])
    scores = Evaluation(("a", "b"), labels, np.eye(2)[predictions])
    pixels = pictures.confusion_matrix_image(scores)
    assert pixels.dtype == np.uint8
    # The smallest of the four counts is darker than zero would be.
    lightest = (pixels == [247, 251, 255]).all(axis=-1)
    assert lightest.mean() < 0.02


@pytest.mark.parametrize("channels", [1, 3])
def test_example_pixels_are_not_rescaled(tmp_path, channels):
    images = np.zeros((2, 16, 16, channels), "uint8")
    images[0] = 100
    images[1, ..., 0] = 250
    grid = pictures.example_grid(images)
    second = (250, 250, 250) if channels == 1 else (250, 0, 0)
    for color in ((100, 100, 100), second):
        assert (grid == color).all(axis=-1).mean() > 0.1  # more than the title's edges
    pictures.draw_examples(np.repeat(images, 20, axis=0), tmp_path / "examples.png")
    assert Image.open(tmp_path / "examples.png").width > 1000


def test_long_names_keep_both_ends():
    long = pictures._shorten("Cymbidium aloifolium var. alba")
    assert len(long) <= 18
    assert long.startswith("Cymb")
    assert long.endswith("alba")
    assert pictures._shorten("daisy") == "daisy"


def test_the_most_confident_mistakes_come_first(tmp_path, monkeypatch):
    shares = np.array([0.4, 0.1, 0.3, 0.2])  # of the right class, the first of two
    scores = Evaluation(
        ("a", "b"), np.zeros(4, int), np.stack([shares, 1 - shares], axis=1)
    )
    split = types.SimpleNamespace(
        read=lambda index: tf.fill([8, 8, 1], tf.cast(index, tf.uint8))
    )
    drawn, mosaic = [], pictures._mosaic
    monkeypatch.setattr(
        pictures, "_mosaic", lambda *given: drawn.append(given) or mosaic(*given)
    )
    path = tmp_path / "misclassified.png"
    pictures.draw_misclassified(scores, split, ImagePreprocessing(8), path)
    [(images, captions)] = drawn
    assert [image[0, 0, 0] for image in images] == [1, 3, 2, 0]
    for caption, share in zip(captions, ("90%", "80%", "70%", "60%"), strict=True):
        assert share in caption
    assert path.exists()


def test_a_perfect_model_has_a_picture_too(tmp_path):
    scores = evaluation(wrong=0)
    pictures.draw_misclassified(
        scores, None, ImagePreprocessing(8), tmp_path / "misclassified.png"
    )
    assert (tmp_path / "misclassified.png").exists()
