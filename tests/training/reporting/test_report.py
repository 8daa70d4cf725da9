"""report.html and the pictures, also where figures are missing."""

import base64
import dataclasses
import io
import math
import shlex
import shutil

import keras
import numpy as np
import pytest
import yaml
from etils import epath
from long_cases import long_after
from lxml import html
from PIL import Image
from sklearn.calibration import calibration_curve
from training_commands import parse

from keras_vit import ImageClassifier, ImagePreprocessing
from keras_vit.analysis import figures
from training.evaluation.evaluate import Evaluation
from training.flags import recipe_of
from training.recipe import DataConfig, Recipe
from training.reporting import pictures
from training.reporting.report import mistakes_of, write_report

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

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


def written(folder, scores=None, recipe=RECIPE, mistakes=(), **more):
    """The page of a run, parsed."""
    scores = scores or evaluation()
    history = [ROW, {**ROW, "epoch": 2}]
    write_report(folder, result(scores, **more), recipe, history, scores, mistakes)
    return html.parse(folder / "report.html").getroot()


def rows(page, path):
    """The rows of a table: lists of cells."""
    cells = [row.xpath("./td") for row in page.xpath(f"{path}//tr")]
    return [[cell.text_content() for cell in row] for row in cells if row]


def figures_of(page):
    """What the page says of the run, by name."""
    tiles = page.xpath("//dl/div")
    top = {tile[0].text: tile[1].text for tile in tiles}
    return top | dict(rows(page, "//h2[text()='The run']/.."))


def test_the_report_has_the_runs_figures(tmp_path):
    page = written(
        tmp_path,
        devices=4,
        device_name="NVIDIA A100-SXM4-40GB",
        images_per_second=1234.56,
        accelerator_hours=8.0,
    )
    assert figures_of(page) == {
        "test accuracy": "0.9000",
        "macro F1": "0.9000",
        "calibration error": "0.1000",
        "published accuracy": "0.9443 (arXiv:2010.11929, Table 5)",
        "best epoch": "2 of 2",
        "its validation accuracy": "0.8750",
        "training images": "1,234",
        "test images": "60",
        "parameters": "85,800,194",
        "seconds of training and validation": "7,200.0",
        "images per second": "1,235",
        "images per second in the last epoch": "1,234.6",
        "devices": "4 x NVIDIA A100-SXM4-40GB",
        "accelerator-hours": "8",
        "core-days": "0.3333 of NVIDIA A100-SXM4-40GB (the paper counts those of "
        "TPUv3)",
    }
    assert "keras 3.15.1" in page.xpath("//footer")[0].text


@pytest.mark.parametrize("unknown", [None, math.nan])
def test_unknown_figures_are_omitted(tmp_path, unknown):
    best = {**ROW, "val_accuracy": unknown}
    recipe = dataclasses.replace(RECIPE, published_accuracy=None)
    page = written(
        tmp_path,
        recipe=recipe,
        best_epoch=best,
        devices=1,
        device_name="CPU",
        images_per_second=unknown,
        accelerator_hours=unknown,
    )
    figures = figures_of(page)
    for name in ("published accuracy", "its validation accuracy", "devices"):
        assert name not in figures
    assert not any("images per second" in name for name in figures)
    assert not {"nan", "None"} & set(figures.values())


def test_every_class_has_its_row(tmp_path):
    scores = evaluation(classes=3, count=60, wrong=1)
    page = written(tmp_path, scores)
    # The first image is a 0 classified as a 1.
    assert rows(page, "//table[@id='classes']") == [
        ["class 0", "1.0000", "0.9500", "0.9744", "20"],
        ["class 1", "0.9524", "1.0000", "0.9756", "20"],
        ["class 2", "1.0000", "1.0000", "1.0000", "20"],
    ]
    assert rows(page, "//table[@id='confusions']") == [
        ["class 0", "class 1", "1", "5.0 %"]
    ]


def test_the_most_frequent_of_many_errors_are_listed(tmp_path):
    names = tuple(f"class {number}" for number in range(120))
    labels = np.arange(3 * 119) % 119  # none of the last class
    predictions = np.where(labels < 40, labels + 1, labels)
    predictions[labels == 70] = 119  # three times, the others only in part
    predictions[:40] = labels[:40]
    scores = Evaluation(names, labels, np.eye(120)[predictions])
    page = written(tmp_path, scores)
    listed = rows(page, "//table[@id='confusions']")
    assert len(listed) == 20
    assert listed[0] == ["class 70", "class 119", "3", "100.0 %"]
    assert listed[1] == ["class 0", "class 1", "2", "66.7 %"]
    assert len(rows(page, "//table[@id='classes']")) == 120


def test_names_are_shown_as_they_are(tmp_path):
    names = ("a | b", "<script>alert(1)</script>", "{{ title }}")
    scores = dataclasses.replace(evaluation(), class_names=names)
    recipe = dataclasses.replace(RECIPE, name="<b>", description="&amp;")
    page = written(tmp_path, scores, recipe)
    listed = rows(page, "//table[@id='classes']")
    assert [row[0] for row in listed] == list(names)
    assert page.xpath("//h1")[0].text == "<b>"
    assert page.xpath("//h1/following::p")[0].text == "&amp;"
    assert len(page.xpath("//script")) == 1


def test_the_command_and_the_recipe_repeat_the_run(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(RECIPE.to_yaml())
    page = written(folder)
    command, embedded = (each.text for each in page.xpath("//pre/code"))
    words = shlex.split(command)
    assert words[:2] == ["keras-vit", "fit"]
    options = parse("fit", words[2:])
    assert options.output_dir != folder
    assert recipe_of(options) == RECIPE
    assert yaml.safe_load(embedded) == yaml.safe_load(RECIPE.to_yaml())


@pytest.mark.slow
def test_existing_pictures_are_in_the_file(tmp_path):
    assert not written(tmp_path).xpath("//img")
    pictures.draw_curves([ROW], tmp_path / "curves.png")
    matrix = pictures.confusion_figure(evaluation())
    pictures.save(matrix, tmp_path / "confusion_matrix.png")
    shown = written(tmp_path).xpath("//img/@src")
    assert [decoded(uri).size for uri in shown] == [
        Image.open(tmp_path / name).size
        for name in ("curves.png", "confusion_matrix.png")
    ]


def decoded(uri):
    """The image in a data URI."""
    return Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))


@pytest.mark.parametrize("side", long_after(1, [8, 128]))
def test_wrong_images_are_shown_with_attention(tmp_path, tiny_vit, side):
    """One patch differs: the attention of a model of one block is the rollout's."""
    model = tiny_vit(image_size=side, patch_size=side // 4, channels=3, classes=3)
    images = [np.full((side, side, 3), 40 * n, "uint8") for n in range(3)]
    scores = evaluation(classes=3, wrong=3)
    shown = scores.mistakes(2)
    names = [f"photos/class {n % 3}/{n}.jpg" for n in range(60)]
    mistakes = mistakes_of(model, scores, shown, images[:2], names)
    page = written(tmp_path, scores, mistakes=mistakes)
    found = page.xpath("//li")
    assert len(found) == 2
    maps = model.attention_rollout_model().predict(np.stack(images[:2]), verbose=0)
    for number, item in enumerate(found):
        image, heat = item.xpath(".//img/@src")
        pixels = np.asarray(decoded(image).convert("RGB")).astype(int)
        assert abs(pixels - 40 * number).max() <= 2
        assert f"class {number}/{shown[number]}.jpg" in item.text_content()
        assert item.xpath("./p/@title") == [names[shown[number]]]
        assert f"true: class {number}" in item.text_content()
        assert f"predicted: class {number + 1}, 100 %" in item.text_content()
        # Inferno's colors become lighter with each step.
        light = np.asarray(decoded(heat).convert("L")).astype(float)
        patches = light.reshape(4, side // 4, 4, side // 4).mean(axis=(1, 3))
        assert np.corrcoef(patches.ravel(), maps[number].ravel())[0, 1] > 0.9
    assert len(page.xpath("//input[@type='range']")) == 1


def test_a_model_without_attention_has_images_alone(tmp_path):
    backbone = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten()])
    model = ImageClassifier(
        backbone=backbone, classes=3, preprocessing=ImagePreprocessing(8)
    )
    scores = evaluation(wrong=1)
    images = [np.zeros((8, 8, 1), "uint8")]
    mistakes = mistakes_of(model, scores, scores.mistakes(1), images, ["digit 0"])
    page = written(tmp_path, mistakes=mistakes)
    assert len(page.xpath("//li//img")) == 1
    assert not page.xpath("//input")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_tables_are_sorted_on_request(tmp_path):
    from playwright.sync_api import sync_playwright

    written(tmp_path, evaluation(classes=12, count=130, wrong=25))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.goto((tmp_path / "report.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390

        def column(number):
            cells = page.locator(f"#classes tbody td:nth-child({number})")
            return cells.all_text_contents()

        names = column(1)
        page.get_by_role("button", name="recall").click()
        recalls = [float(text) for text in column(3)]
        assert recalls == sorted(recalls)
        assert recalls[0] < recalls[-1]
        page.get_by_role("button", name="recall").press("Enter")
        assert [float(text) for text in column(3)] == sorted(recalls, reverse=True)
        heading = page.locator("#classes th", has_text="recall")
        assert heading.get_attribute("aria-sort") == "descending"
        page.get_by_role("button", name="class", exact=True).click()
        assert column(1) == names  # class 2 before class 10
        browser.close()


@pytest.mark.parametrize("classes", [2, 7])
def test_calibration_is_that_of_scikit_learn(classes):
    random = np.random.default_rng(classes)
    probabilities = random.dirichlet(np.ones(classes), 500).astype("float32")
    probabilities[:5] = np.eye(classes)[0]  # confidence 1 is in the last bin
    labels = random.integers(0, classes, 500)
    scores = Evaluation(tuple("abcdefg"[:classes]), labels, probabilities)
    confidence, accuracy, count = scores.reliability().T
    best = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    expected = calibration_curve(right, best, n_bins=15)
    np.testing.assert_allclose([accuracy, confidence], expected, rtol=1e-6)
    edges = np.ceil(best.astype("float64") * 15)  # bins are open on their left
    shares = [
        abs(best[edges == b].mean() - right[edges == b].mean()) * (edges == b).mean()
        for b in np.unique(edges)
    ]
    np.testing.assert_allclose(scores.calibration_error, sum(shares), rtol=1e-6)
    assert count.sum() == 500


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

    monkeypatch.setattr(pictures, "save", keep)
    pictures.draw_curves(history, path)
    return drawn


def test_curves_show_what_the_history_has(tmp_path, monkeypatch):
    history = [
        {**ROW, "val_loss": 3.0, "val_accuracy": 0.25, "gradient_norm": 9.0},
        {**ROW, "epoch": 2, "loss": None, "val_loss": math.nan, "val_accuracy": 0.5},
    ]
    drawn = lines_of(monkeypatch, history, tmp_path / "curves.png")
    del drawn[""]  # no speed was measured
    label = "training, augmented images"
    np.testing.assert_equal(
        drawn,
        {
            "Loss": {
                label: ([1, 2], [2.0, math.nan]),
                "validation": ([1, 2], [3.0, math.nan]),
                "best epoch, 2": ([2, 2], [0, 1]),
            },
            "Accuracy": {
                label: ([1, 2], [0.5, 0.5]),
                "validation": ([1, 2], [0.25, 0.5]),
                "best epoch, 2": ([2, 2], [0, 1]),
            },
            "Learning rate": {label: ([1, 2], [1e-3, 1e-3])},
            "Gradient norm of the last step": {label: ([1, 2], [9.0, math.nan])},
            "Seconds, with validation": {label: ([1, 2], [4.0, 4.0])},
        },
    )


BLUE = (31, 119, 180)  # matplotlib's first color, of a curve


@pytest.mark.parametrize("epochs", long_after(1, [500, 1]))
def test_curves_of_any_length_are_drawn(tmp_path, epochs):
    history = [{**ROW, "epoch": n + 1, "loss": math.inf} for n in range(epochs)]
    pictures.draw_curves(history, epath.Path(tmp_path / "curves.png"))
    picture = np.asarray(Image.open(tmp_path / "curves.png").convert("RGB"))
    assert picture.shape == (840, 1680, 3)
    learning_rate = picture[420:, :560]  # a panel without a legend
    assert (learning_rate == BLUE).all(axis=-1).any()


@pytest.mark.parametrize("classes", long_after(1, [2, 160, 31]))
def test_a_confusion_matrix_of_any_size_is_drawn(tmp_path, classes):
    scores = evaluation(classes, 2 * classes, wrong=1)
    pictures.save(pictures.confusion_figure(scores), tmp_path / "matrix.png")
    assert Image.open(tmp_path / "matrix.png").width > 500


def test_the_confusion_matrix_colors_start_at_zero(tmp_path):
    labels = np.repeat([0, 0, 1, 1], [50, 40, 45, 48])
    predictions = np.repeat([0, 1, 0, 1], [50, 40, 45, 48])
    scores = Evaluation(("a", "b"), labels, np.eye(2)[predictions])
    pixels = figures.pixels(pictures.confusion_figure(scores))
    assert pixels.dtype == np.uint8
    # The smallest of the four counts is darker than zero would be.
    lightest = (pixels == [247, 251, 255]).all(axis=-1)
    assert lightest.mean() < 0.02


@pytest.mark.parametrize("channels", [1, 3])
def test_example_pixels_are_not_rescaled(tmp_path, channels):
    images = np.zeros((2, 16, 16, channels), "uint8")
    images[0] = 100
    images[1, ..., 0] = 250
    grid = figures.pixels(pictures.example_figure(images))
    second = (250, 250, 250) if channels == 1 else (250, 0, 0)
    for color in ((100, 100, 100), second):
        assert (grid == color).all(axis=-1).mean() > 0.1  # more than the title's edges
    many = pictures.example_figure(np.repeat(images, 20, axis=0))
    pictures.save(many, tmp_path / "examples.png")
    assert Image.open(tmp_path / "examples.png").width > 1000


def test_long_names_keep_both_ends():
    long = pictures._shorten("Cymbidium aloifolium var. alba")
    assert len(long) <= 18
    assert long.startswith("Cymb")
    assert long.endswith("alba")
    assert pictures._shorten("daisy") == "daisy"


def test_the_most_confident_mistakes_come_first(tmp_path, monkeypatch):
    shares = np.array([0.4, 0.1, 0.3, 0.2, 0.9])  # of the right class, first of two
    scores = Evaluation(
        ("a", "b"), np.zeros(5, int), np.stack([shares, 1 - shares], axis=1)
    )
    shown = scores.mistakes(3)
    assert list(shown) == [1, 3, 2]
    drawn, mosaic = [], pictures._mosaic
    monkeypatch.setattr(
        pictures, "_mosaic", lambda *given: drawn.append(given) or mosaic(*given)
    )
    path = tmp_path / "misclassified.png"
    images = [np.full((8, 8, 1), index, "uint8") for index in shown]
    pictures.draw_misclassified(scores, shown, images, path)
    [(images, captions)] = drawn
    assert [image[0, 0, 0] for image in images] == [1, 3, 2]
    for caption, share in zip(captions, ("90%", "80%", "70%"), strict=True):
        assert share in caption
    assert path.exists()


def test_a_perfect_model_has_pictures_too(tmp_path):
    scores = evaluation(wrong=0)
    path = tmp_path / "misclassified.png"
    pictures.draw_misclassified(scores, scores.mistakes(9), [], path)
    pictures.draw_reliability(scores, tmp_path / "reliability.png")
    assert path.exists()
    assert not written(tmp_path, scores).xpath("//table[@id='confusions']")


def test_of_many_classes_the_most_confused_are_named():
    labels = np.repeat(np.arange(100), 4)
    predictions = labels.copy()
    predictions[labels == 90] = 3
    predictions[labels == 50] = 51
    scores = Evaluation(
        tuple(f"c{n}" for n in range(100)), labels, np.eye(100)[predictions]
    )
    figure = pictures.confusion_figure(scores)
    named = [text.get_text() for text in figure.axes[1].get_yticklabels()]
    assert named == ["c3", "c50", "c51", "c90"]
    counts = {text.get_text() for text in figure.axes[1].texts}
    assert counts == {"4"}
