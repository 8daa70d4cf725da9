"""ImageNet's other labels, on made-up label files and images of one color each.

The classifier sees an image's gray level L, and ranks the classes by their distance
from L: its first is L, then its neighbors.
"""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from few_formats import few_formats
from PIL import Image
from training_commands import main

import keras_vit
from training.engine.run_folder import save_model
from training.errors import DataError, RecipeError, RunError, TrainingError
from training.evaluation import label_sets
from training.evaluation.label_sets import accuracy_of_sets, evaluate_labels

pytestmark = pytest.mark.usefixtures("eagerly")
CLASSES = 17


@pytest.fixture(autouse=True)
def few_classes(monkeypatch):
    monkeypatch.setattr(label_sets, "CLASSES", CLASSES)
    monkeypatch.setenv("COLUMNS", "200")
    with few_formats():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A file with a classifier whose logits are 2 c L - c^2, L = level / 10."""
    inputs = keras.Input((6, 5, 3))
    backbone = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(inputs))
    classifier = keras_vit.ImageClassifier(
        backbone=backbone,
        classes=CLASSES,
        preprocessing=keras_vit.ImagePreprocessing((6, 5), mean=0.0, std=10.0),
        class_names=[f"name {index}" for index in range(CLASSES)],
    )
    numbers = np.arange(CLASSES, dtype="float32")
    kernel = np.stack([2 * numbers, 0 * numbers, 0 * numbers])
    classifier.get_layer("head").set_weights([kernel, -(numbers**2)])
    file = tmp_path_factory.mktemp("model") / "model.keras"
    save_model(classifier, file)
    return str(file)


def draw(path, level, frame=None):
    """An image of one level, so of the class `level`, with or without a frame."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (10, 12), (10 * level,) * 3)
    if frame is not None:
        image = Image.new("RGB", (14, 16), (10 * frame, 0, 0))
        image.paste((10 * level,) * 3, (2, 2, 12, 14))
    image.save(path, "PNG")


def test_top_1_and_top_5_count_any_right_class():
    probabilities = np.eye(7)[[0, 1, 2, 3]] + np.linspace(0.6, 0, 7)
    # Rows rank: 0 1 2 3 4, 1 0 2 3 4, 2 0 1 3 4, 3 0 1 2 4.
    right = [frozenset(s) for s in ([5, 0], [0, 6], [], [6])]
    expected = {"top_1": 1 / 3, "top_5": 2 / 3, "images": 3}
    assert accuracy_of_sets(probabilities, right) == pytest.approx(expected)


@pytest.fixture
def validation(tmp_path):
    """Images 1 to 4 of ImageNet's validation set in folders of classes, and others."""
    root = tmp_path / "val"
    levels = {3: 7, 1: 2, 4: 9, 2: 16}  # in another order than their numbers
    for number, level in levels.items():
        name = f"ILSVRC2012_val_{number:08d}.JPEG"
        draw(root / f"n{50 - number:08d}" / name, level)
    draw(root / "n00000001" / "other.png", 3)
    return root


def labels_file(tmp_path, lists):
    file = tmp_path / "real.json"
    file.write_text(json.dumps(lists))
    return f"real:{file}"


def test_real_labels_belong_to_the_numbers_in_the_names(
    model, validation, tmp_path, capsys
):
    """Image 2 has no labels, and does not count."""
    labels = labels_file(tmp_path, [[11, 2], [], [5, 16], [10]])
    source = f"folder:{validation}"
    result = evaluate_labels(model, labels, source)
    expected = {"top_1": 1 / 3, "top_5": 1.0, "images": 3}
    assert result == pytest.approx(expected)
    main(["evaluate", model, "--labels", labels, "--source", source])
    line = "ImageNet-ReaL: top-1 0.3333, top-5 1.0000 on 3 images"
    assert capsys.readouterr().out.splitlines() == [line, line]


@pytest.mark.parametrize("count", [3, 5])
def test_real_labels_of_another_length_are_an_error(model, validation, tmp_path, count):
    labels = labels_file(tmp_path, [[1]] * count)
    with pytest.raises(DataError, match=f"{count} lists and 4 images") as error:
        evaluate_labels(model, labels, f"folder:{validation}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1", "must be JSON"), ("{}", "must be a JSON list"), (None, "cannot be read")],
)
def test_malformed_label_files_are_errors(model, validation, tmp_path, text, message):
    file = tmp_path / "real.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(DataError, match=message):
        evaluate_labels(model, f"real:{file}", f"folder:{validation}")


def test_an_unreadable_image_is_one_line(model, validation, tmp_path):
    next(validation.rglob("*2.JPEG")).write_bytes(b"no image")
    labels = labels_file(tmp_path, [[1]] * 4)
    with pytest.raises(DataError, match="1 of 4 images cannot be read"):
        evaluate_labels(model, labels, f"folder:{validation}")


def test_no_label_at_all_is_an_error(model, validation, tmp_path):
    labels = labels_file(tmp_path, [[]] * 4)
    with pytest.raises(DataError, match="no image has a label"):
        evaluate_labels(model, labels, f"folder:{validation}")


def test_folders_of_imagenet_v2_are_numbers(model, tmp_path):
    """Sorted as text, 10 to 16 would be the classes 2 to 8."""
    for number in range(CLASSES):
        draw(tmp_path / "v2" / str(number) / "a.png", number)
    source = f"folder:{tmp_path / 'v2'}"
    everything = {"top_1": 1.0, "top_5": 1.0, "images": CLASSES}
    assert evaluate_labels(model, "imagenet_v2", source) == everything
    assert evaluate_labels(model, "imagenet", source)["top_1"] < 0.5


def test_folders_of_imagenet_are_in_the_order_of_their_names(model, tmp_path):
    for number in range(CLASSES):
        draw(tmp_path / "val" / f"n{100 + number:08d}" / "a.png", number)
    source = f"folder:{tmp_path / 'val'}"
    assert evaluate_labels(model, "imagenet", source)["top_1"] == 1
    with pytest.raises(DataError, match="called 0 to 16.*'n00000100'"):
        evaluate_labels(model, "imagenet_v2", source)


def test_another_number_of_classes_is_an_error(model, tmp_path):
    for number in range(3):
        draw(tmp_path / "few" / str(number) / "a.png", number)
    with pytest.raises(DataError, match="17 classes. Received: 3"):
        evaluate_labels(model, "imagenet_v2", f"folder:{tmp_path / 'few'}")


@pytest.fixture
def objectnet(tmp_path):
    """Three classes of ObjectNet, of which ImageNet has two, one of them twice."""
    root = tmp_path / "objectnet"
    mappings = {
        "folder_to_objectnet_label.json": {
            "air_freshener": "Air freshener",
            "alarm_clock": "Alarm clock",
            "backpack": "Backpack",
        },
        "objectnet_to_imagenet_1k.json": {
            "Alarm clock": "analog clock; digital clock",
            "Backpack": "backpack, back pack",
        },
        # Line 0 is class 9 of the classifiers, line 1 is class 4, line 2 is class 16.
        "pytorch_to_imagenet_2012_id.json": {"16": 2, "9": 0, "4": 1},
    }
    (root / "mappings").mkdir(parents=True)
    for name, content in mappings.items():
        (root / "mappings" / name).write_text(json.dumps(content))
    lines = "digital clock\nbackpack, back pack\nanalog clock\n"
    (root / "mappings" / "imagenet_to_label_2012_v2").write_text(lines)
    for folder, levels in (
        ("air_freshener", [0, 1]),
        ("alarm_clock", [9, 16, 3]),
        ("backpack", [4, 5]),
    ):
        for level in levels:
            draw(root / "images" / folder / f"{level}.png", level, frame=25)
    return root


def test_objectnet_counts_the_classes_that_imagenet_has(model, objectnet):
    """Alarm clocks are 9 or 16: of levels 9, 16, 3 two are right, and of 4, 5 one."""
    result = evaluate_labels(model, f"objectnet:{objectnet}", None)
    assert result == pytest.approx({"top_1": 3 / 5, "top_5": 4 / 5, "images": 5})


@pytest.mark.slow
def test_objectnets_frame_is_cut_off(model, objectnet, monkeypatch):
    monkeypatch.setattr(label_sets, "OBJECTNET_FRAME", 1)
    result = evaluate_labels(model, f"objectnet:{objectnet}", None)
    assert result["top_1"] < 3 / 5


def test_mappings_that_do_not_fit_each_other_are_one_line(model, objectnet):
    file = objectnet / "mappings" / "imagenet_to_label_2012_v2"
    file.write_text(file.read_text().replace("analog", "sand"))
    with pytest.raises(DataError, match="Received: 'analog clock'"):
        evaluate_labels(model, f"objectnet:{objectnet}", None)


def test_an_objectnet_without_images_is_an_error(model, objectnet):
    (objectnet / "images").rename(objectnet / "pictures")
    with pytest.raises(DataError, match="must have images/CLASS"):
        evaluate_labels(model, f"objectnet:{objectnet}", None)


@pytest.mark.parametrize(
    ("labels", "source", "message"),
    [
        ("reel:x", None, "Received: 'reel:x'. Did you mean real?"),
        ("real", "folder:x", "Received: 'real'"),
        ("imagenet_v2:x", "folder:x", "`labels` must be"),
        ("imagenet_v2", None, "`source` must be given"),
        ("objectnet:x", "folder:x", "`source` must be left out"),
        ("imagenet", "digits", "folder:PATH or tfds:NAME"),
    ],
)
def test_wrong_flags_are_one_line(model, labels, source, message):
    with pytest.raises(RecipeError, match=re.escape(message)):
        evaluate_labels(model, labels, source)


def test_a_model_of_other_classes_is_an_error(model, monkeypatch):
    monkeypatch.setattr(label_sets, "CLASSES", 1000)
    with pytest.raises(RunError, match="1,000 classes.*Received: 17"):
        evaluate_labels(model, "imagenet", "folder:x")


def test_real_labels_of_tensorflow_datasets(model, monkeypatch, tmp_path):
    """Examples as imagenet2012_real has them; mock_data makes the images."""
    import tensorflow_datasets as tfds

    random = np.random.default_rng(0)
    lists = [[3, 5], [], [16], [0, 1, 2]]

    def examples(self, *args, **kwargs):
        images = random.integers(0, 256, (4, 9, 8, 3), "uint8")
        return tf.data.Dataset.from_tensor_slices(
            {
                "image": [tf.io.encode_png(image) for image in images],
                "real_label": tf.ragged.constant(lists, dtype=tf.int64),
            }
        )

    with tfds.testing.mock_data(num_examples=4, as_dataset_fn=examples):
        found = label_sets.open_label_set("real", "tfds:imagenet2012_real", 3)
    assert [set(right) for right in found.right] == [set(each) for each in lists]
    assert found.images.read(2).shape == (9, 8, 3)


def test_a_missing_data_set_is_one_line(model):
    with pytest.raises(TrainingError) as error:
        evaluate_labels(model, "real", "tfds:imagenet2012_real")
    assert "\n" not in str(error.value)
