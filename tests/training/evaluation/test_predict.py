"""`predict`: files, folders, lists; tables; pictures of attention."""

import csv
import io
import json
import os
from pathlib import Path

import keras
import numpy as np
import pytest
from long_cases import long_after
from PIL import Image
from training_commands import main

from keras_vit import ImageClassifier, ImagePreprocessing
from training.errors import DataError, RecipeError
from training.evaluation.predict import predict
from training.evaluation.prediction_files import (
    Prediction,
    find_images,
    picture_names,
    standard_input,
    write_table,
)

pytestmark = pytest.mark.usefixtures("eagerly")
NAMES = ("ant", "bee", "crab")


@pytest.fixture(scope="module")
def model(tiny_vit):
    """A ViT of 4 x 4 patches."""
    return tiny_vit(
        image_size=16,
        patch_size=4,
        depth=1,
        channels=3,
        classes=3,
        class_names=NAMES,
        preprocessing=ImagePreprocessing(16),
    )


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """The working directory: photos/ with a.png, b.jpg, more/a.tif and no images."""
    monkeypatch.chdir(tmp_path)
    Path("photos/more").mkdir(parents=True)
    random = np.random.default_rng(0)
    for name, size in (("a.png", 16), ("b.jpg", 40), ("more/a.tif", 16)):
        pixels = random.integers(0, 256, (size, size, 3), "uint8")
        Image.fromarray(pixels).save(f"photos/{name}")
    Path("photos/notes.txt").write_text("")
    Path("photos/.a.png").write_text("")
    return Path("photos")


@pytest.fixture
def stdin(monkeypatch):
    """A function that sets what is on standard input."""

    def set_stdin(data):
        standard_input.cache_clear()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    yield set_stdin
    standard_input.cache_clear()


@pytest.fixture
def saved(model, photos):
    """The model as a file in the working directory."""
    model.save("model.keras")
    return "model.keras"


def scores(model, path):
    """The model's own probabilities of an image of its size."""
    logits = model(np.asarray(Image.open(path))[np.newaxis])
    return keras.ops.convert_to_numpy(keras.ops.softmax(logits))[0]


def test_predictions_are_the_models(model, photos):
    files = [photos / "a.png", photos / "more" / "a.tif"]
    for file, prediction in zip(files, predict(model, files, top=3), strict=True):
        expected = scores(model, file)
        best = expected.argsort()[::-1]
        assert [name for name, _ in prediction.classes] == [NAMES[i] for i in best]
        np.testing.assert_allclose(
            [score for _, score in prediction.classes], expected[best], rtol=1e-5
        )


def test_files_folders_patterns_and_lists_are_found(photos, stdin):
    files = [photos / "a.png", photos / "b.jpg", photos / "more" / "a.tif"]
    assert find_images(["photos"]) == files
    assert find_images(["photos/b.jpg", "photos/*.png"]) == [files[1], files[0]]
    stdin(b"photos/more\n\nphotos/a.png\n")
    assert find_images(["-"]) == [files[2], files[0]]
    for argument in ("nothing/*.png", "photos/c.png"):
        with pytest.raises(DataError, match="there is no such image"):
            find_images(["photos", argument])


@pytest.mark.parametrize(
    "data",
    [b"\xef\xbb\xbfphotos/a.png\r\n", b" \n\nphotos/a.png  \n \n", b"photos/a.png"],
    ids=["byte order mark", "blanks", "no end of line"],
)
def test_a_list_may_have_blanks_and_a_byte_order_mark(photos, stdin, data):
    stdin(data)
    assert find_images(["-"]) == [photos / "a.png"]


def test_a_dash_in_a_list_is_no_list(photos, stdin):
    stdin(b"photos/a.png\n-\n")
    with pytest.raises(DataError, match="^-: there is no such image file"):
        find_images(["-"])


@pytest.mark.parametrize("data", [b"", b" \n\n"])
def test_nothing_on_standard_input_is_an_error_of_its_own(stdin, data):
    stdin(data)
    with pytest.raises(DataError, match="^-: standard input must be .* nothing$"):
        find_images(["-"])


def test_a_closed_standard_input_is_an_error(stdin, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(DataError, match="^-: standard input is closed$"):
        find_images(["-"])


def test_images_of_a_folder_are_those_that_training_takes(photos):
    (photos / "a.png").rename(photos / "scan")
    os.mkfifo(photos / "pipe.png")
    assert find_images(["photos"]) == [
        photos / "b.jpg",
        photos / "more" / "a.tif",
        photos / "scan",
    ]


def test_neither_an_image_nor_a_list_on_standard_input_is_an_error(stdin):
    stdin(b"%PDF-1.4\xff\x00")
    with pytest.raises(DataError, match="must be an image, or a list.*10 bytes"):
        find_images(["-"])


@pytest.mark.parametrize("name", long_after(1, ["a.png", "b.jpg", "more/a.tif"]))
def test_an_image_on_standard_input_is_classified(saved, stdin, capsys, name):
    main(["predict", f"photos/{name}", "--model", saved, "--out", "file.csv"])
    stdin(Path("photos", name).read_bytes())
    words = ["--model", saved, "--attention", "looks", "--out", "stdin.csv"]
    main(["predict", "-", *words])
    assert Path("looks/stdin.png").is_file()
    of_file, of_stdin = (
        Path(table).read_text().splitlines() for table in ("file.csv", "stdin.csv")
    )
    assert of_stdin[1].startswith("/dev/stdin,1,")
    assert of_stdin[1].split(",")[1:] == of_file[1].split(",")[1:]


def test_a_damaged_image_on_standard_input_is_an_error(saved, stdin, capsys):
    stdin(Path("photos/a.png").read_bytes()[:99])
    assert main(["predict", "-", "--model", saved]) == 1
    assert capsys.readouterr().err.startswith("/dev/stdin: not a readable image")


def test_a_picture_has_the_name_of_its_file():
    files = ["a/x.png", "b/x.jpg", "b/x-2.png", "b/x.gif", "b/c/0.1.png"]
    names = picture_names([Path("photos") / file for file in files])
    expected = ["a/x.png", "b/x.png", "b/x-2.png", "b/x-3.png", "b/c/0.1.png"]
    assert names == [Path(name) for name in expected]
    assert picture_names([Path("deep/photos/000.jpg")]) == [Path("000.png")]


def test_an_invalid_file_is_reported_and_the_others_are_classified(saved, capsys):
    Path("photos/bad.png").write_text("no image")
    assert main(["predict", "photos", "--model", saved, "--out", "a.csv"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("photos/bad.png: not a readable image")
    assert captured.out == "a.csv: 3 images\n"
    with open("a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows if row["error"]] == ["photos/bad.png"]
    assert [row["image"] for row in rows if row["class"]] == [
        "photos/a.png",
        "photos/b.jpg",
        "photos/more/a.tif",
    ]


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_a_table_has_the_predictions(saved, model, suffix):
    main(
        ["predict", "photos/a.png", "--model", saved, "--top=2", "--out", f"t{suffix}"]
    )
    text = Path(f"t{suffix}").read_text()
    expected = scores(model, "photos/a.png")
    best = expected.argsort()[::-1][:2]
    if suffix == ".json":
        [entry] = json.loads(text)
        assert (entry["image"], entry["error"]) == ("photos/a.png", None)
        rows = [(row["class"], row["probability"]) for row in entry["classes"]]
    else:
        read = list(csv.DictReader(io.StringIO(text)))
        assert [row["rank"] for row in read] == ["1", "2"]
        rows = [(row["class"], float(row["probability"])) for row in read]
    assert [name for name, _ in rows] == [NAMES[i] for i in best]
    np.testing.assert_allclose([p for _, p in rows], expected[best], rtol=1e-5)


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_a_name_that_is_not_utf_8_is_escaped_in_a_table(photos, suffix):
    write_table(Path(f"t{suffix}"), [Prediction(Path("w\udcff.png"), [("ant", 1.0)])])
    assert "w\\udcff.png" in Path(f"t{suffix}").read_text()


def test_attention_is_drawn_beside_each_image(saved, model, capsys):
    main(["predict", "photos", "--model", saved, "--attention", "looks"])
    drawn = sorted(str(path) for path in Path("looks").rglob("*.png"))
    assert drawn == ["looks/a.png", "looks/b.png", "looks/more/a.png"]
    assert "looks: what the model looks at" in capsys.readouterr().out
    picture = np.asarray(Image.open("looks/a.png"))
    assert picture.shape == (448, 896, 3)
    image = np.asarray(Image.open("photos/a.png"))
    np.testing.assert_array_equal(picture[14::28, 14:448:28], image)
    # The image is gray there: what is left is inferno, lighter with each step.
    rollout = model.attention_rollout_model().predict(image[np.newaxis], verbose=0)[0]
    light = np.asarray(Image.fromarray(picture[:, 448:]).convert("L")).astype(float)
    light -= 0.4 * picture[:, :448].mean(axis=-1)
    patches = light.reshape(4, 112, 4, 112).mean(axis=(1, 3))
    assert np.corrcoef(patches.ravel(), rollout.ravel())[0, 1] > 0.9


def test_a_model_without_attention_draws_none(photos):
    backbone = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()])
    model = ImageClassifier(
        backbone=backbone,
        classes=3,
        preprocessing=ImagePreprocessing(8),
        class_names=NAMES,
    )
    files = find_images(["photos"])
    assert len(predict(model, files)) == 3
    with pytest.raises(RecipeError, match="--attention: needs a VisionTransformer"):
        predict(model, files, attention=Path("looks"))
    assert not Path("looks").exists()
