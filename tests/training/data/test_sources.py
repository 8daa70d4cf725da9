"""Sources: folders, TensorFlow Datasets, a user's own; Pillow is the reference."""

import dataclasses
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from etils import epath
from long_cases import long_after
from PIL import Image
from sklearn.datasets import load_sample_image
from tiny_recipe import TINY_RECIPE

from keras_vit import ImagePreprocessing
from training.data.folder import open_folder
from training.data.pipeline import evaluation_images, training_batches
from training.data.python_source import open_python
from training.data.splits import load_splits
from training.data.tfds import open_tfds
from training.errors import DataError
from training.evaluation.prediction_files import find_images
from training.recipe import DataConfig


@pytest.fixture(scope="module")
def photograph():
    return Image.fromarray(load_sample_image("flower.jpg")[100:140, 200:232])


@pytest.fixture
def folder(tmp_path, photograph):
    """12 images of each of the classes ant, bee and cow; returns the folder."""
    for number, name in enumerate(("cow", "ant", "bee")):
        (tmp_path / name).mkdir()
        for index in range(12):
            image = photograph.rotate(30 * index).resize((20 + number, 17))
            image.save(tmp_path / name / f"{index:02}.png")
    return tmp_path


def read(split, index):
    return split.read(tf.constant(index, tf.int64)).numpy()


def test_classes_are_sorted_and_files_have_their_labels(folder):
    source = open_folder(folder)
    assert source.class_names == ("ant", "bee", "cow")
    for name, label in zip(source.train.names, source.train.labels, strict=True):
        assert f"/{source.class_names[label]}/" in name


def test_a_folder_without_test_images_is_split(folder):
    splits = load_splits(DataConfig(f"folder:{folder}", validation=0.25, test=0.25), 3)
    parts = [splits.train, splits.validation, splits.test]
    assert [len(part) for part in parts] == [20, 7, 9]
    assert len({name for part in parts for name in part.names}) == 36
    np.testing.assert_array_equal(np.bincount(splits.test.labels), [3, 3, 3])


def test_a_folder_is_always_split_in_the_same_way(folder):
    config = DataConfig(f"folder:{folder}")
    assert load_splits(config, 3).test.names == load_splits(config, 3).test.names


def test_train_and_test_folders_are_used_as_they_are(tmp_path, folder):
    root = tmp_path / "divided"
    for level, names in (("train", ("ant", "bee")), ("test", ("ant", "bee"))):
        for name in names:
            (root / level).mkdir(parents=True, exist_ok=True)
            (root / level / name).symlink_to(folder / name)
    splits = load_splits(DataConfig(f"folder:{root}", validation=0.0), 3)
    assert [len(splits.train), len(splits.test)] == [24, 24]
    assert all("/test/" in name for name in splits.test.names)


def test_a_train_folder_alone_is_split(folder):
    for name in ("ant", "bee", "cow"):
        (folder / "train").mkdir(exist_ok=True)
        (folder / name).rename(folder / "train" / name)
    splits = load_splits(DataConfig(f"folder:{folder}", validation=0.0, test=0.5), 3)
    assert [len(splits.train), len(splits.test)] == [18, 18]


def test_different_classes_in_train_and_test_are_an_error(folder):
    for level, name in (("train", "ant"), ("train", "bee"), ("test", "ant")):
        (folder / level).mkdir(exist_ok=True)
        (folder / level / name).symlink_to(folder / name)
    (folder / "test" / "cow").symlink_to(folder / "cow")
    with pytest.raises(DataError, match="bee, cow"):
        open_folder(folder)


@pytest.mark.parametrize("names", [("train", "val"), ("training", "validation")])
def test_a_folder_may_have_validation_images_of_its_own(folder, names):
    for level in names:
        (folder / level).mkdir()
        for name in ("ant", "bee"):
            (folder / level / name).symlink_to(folder / name)
    source = open_folder(folder)
    assert list(source.parts) == ["train", "validation"]
    assert (source.validation_part, source.test_part) == ("validation", None)


def test_a_folder_that_was_not_meant_is_an_error(folder):
    with pytest.raises(DataError, match="no such folder. `--data.source .* another$"):
        open_folder(folder / "nowhere")
    with pytest.raises(DataError, match=f"Did you mean folder:{folder}?"):
        open_folder(f"{folder}x")
    (folder / "a.zip").touch()
    with pytest.raises(DataError, match="must be a folder, not a file"):
        open_folder(folder / "a.zip")


def test_a_folder_without_classes_is_an_error(folder, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(DataError, match="at least 2 class folders.*folders: none$"):
        open_folder(empty)
    (empty / "images").symlink_to(folder)
    with pytest.raises(DataError, match="Did you mean folder:.*/images?"):
        open_folder(empty)
    (empty / "1.jpg").touch()
    with pytest.raises(DataError, match="folders: images; files: 1.jpg$"):
        open_folder(empty)


def test_an_empty_class_folder_is_an_error(folder):
    (folder / "dog").mkdir()
    with pytest.raises(DataError, match="no images in class folder dog"):
        open_folder(folder)


def test_too_few_images_to_split_are_a_one_line_error(folder):
    for path in sorted((folder / "ant").iterdir())[1:]:
        path.unlink()
    config = DataConfig(f"folder:{folder}")
    with pytest.raises(
        DataError, match="the test images .* share of 0.2.*at least 2.*: 1 of ant"
    ):
        load_splits(config, 3)
    small = dataclasses.replace(config, test=0.05)
    (folder / "ant" / "2.png").write_bytes((folder / "ant" / "00.png").read_bytes())
    with pytest.raises(
        DataError, match="of the 3 classes, and as many left. Received: 2 of 26$"
    ):
        load_splits(small, 3)


@pytest.fixture
def damaged(folder):
    """The folder with a text file and two damaged images; returns it and these."""
    whole = (folder / "ant" / "03.png").read_bytes()
    (folder / "ant" / "03.png").write_bytes(whole[: len(whole) // 2])
    (folder / "cow" / "page.jpg").write_text("<html>not found</html>")
    (folder / "cow" / "notes.txt").write_text("no image")
    return folder, ("ant/03.png", "cow/page.jpg")


def test_files_without_an_image_header_are_counted_and_named(damaged):
    folder, (_, page) = damaged
    with pytest.raises(DataError, match="1 of 37 images cannot be read") as error:
        open_folder(folder)
    assert page in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_image_is_named_where_it_is_decoded(damaged):
    folder, (half, page) = damaged
    (folder / page).unlink()
    split = open_folder(folder).train
    with pytest.raises(DataError, match=f"1 of 36 images cannot be read: .*/{half}: "):
        evaluation_images(split, ImagePreprocessing((4, 4)))


def test_invalid_images_can_be_skipped(damaged):
    folder, names = damaged
    source = open_folder(folder, on_bad_image="skip")
    assert len(source.train) == 35
    assert len(source.bad_images) == 2
    for name in names:
        assert any(name in reason for reason in source.bad_images)
        assert not any(name in kept for kept in source.train.names)


def test_a_file_that_is_no_image_is_reported_and_passed_over(damaged, capsys):
    folder, _ = damaged
    source = open_folder(folder, on_bad_image="skip")
    assert not any("notes.txt" in name for name in source.train.names)
    [line] = capsys.readouterr().err.splitlines()
    assert "1 files are passed over" in line
    assert line.endswith("cow/notes.txt")


def test_an_image_in_two_splits_is_a_warning_that_names_both(folder, capsys):
    for level in ("train", "test"):
        (folder / level).mkdir()
    for name in ("ant", "bee", "cow"):
        (folder / name).rename(folder / "train" / name)
        (folder / "test" / name).mkdir()
        Image.new("RGB", (5, 5)).save(folder / "test" / name / "x.png")
    copied = folder / "test" / "cow" / "copy.png"
    copied.write_bytes((folder / "train" / "ant" / "07.png").read_bytes())
    load_splits(DataConfig(f"folder:{folder}", validation=0.0), 3)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: one image is in two splits")
    assert line.endswith(f": {folder}/train/ant/07.png = {copied}")


def test_a_class_of_only_invalid_images_is_an_error(damaged):
    folder, _ = damaged
    (folder / "dog").mkdir()
    (folder / "dog" / "a.png").write_bytes(b"\x89PNG")
    with pytest.raises(DataError, match="no images in class folder dog"):
        open_folder(folder, on_bad_image="skip")


LITTER_FILES = (
    *("Thumbs.db", "thumbs.db", "ehthumbs.db", "desktop.ini", "Desktop.ini"),
    *(".DS_Store", "._0.png", ".directory", ".hidden.jpg", "Icon\r"),
)
LITTER_FOLDERS = (
    *("__MACOSX", "$RECYCLE.BIN", "System Volume Information", "lost+found"),
    *("@eaDir", ".cache", ".Trashes", ".ipynb_checkpoints"),
)


def test_system_files_are_neither_images_nor_classes(folder):
    before = open_folder(folder)
    for place in (folder, folder / "ant"):
        for name in LITTER_FILES:
            (place / name).write_text("")
        for name in LITTER_FOLDERS:
            (place / name).mkdir()
            (place / name / "._a.png").write_text("")
            (place / name / "b.jpg").write_text("")
    after = open_folder(folder)
    assert len(after.train) == 36
    assert after.class_names == before.class_names
    assert len(find_images([str(folder)])) == 36


@pytest.mark.parametrize("name", long_after(1, ["zzz.jpg", "zzz.TIF"]))
def test_tiff_files_are_read_beside_others(folder, photograph, name):
    path = folder / "bee" / name
    photograph.save(path, "tiff")
    split = open_folder(folder).train
    for name, expected in ((str(path), photograph), (split.names[0], None)):
        pixels = read(split, split.names.index(name))
        expected = expected or Image.open(name)
        np.testing.assert_array_equal(pixels, np.asarray(expected))
    recipe = dataclasses.replace(TINY_RECIPE, batch_size=37)
    (batch, _), *_ = training_batches(split, recipe, ImagePreprocessing(8))
    assert batch.shape == (37, 8, 8, 3)


def test_bytes_of_other_files_stay_whole_beside_a_tiff_file(folder, photograph):
    """A black bitmap ends in zeros, which NumPy's bytes drop."""
    photograph.save(folder / "bee" / "a.tif")
    black = folder / "bee" / "black.bmp"
    Image.new("RGB", (5, 3)).save(black)
    split = open_folder(folder).train
    [index] = [i for i, name in enumerate(split.names) if name == str(black)]
    for contents in (
        split.encoded(tf.constant(index, tf.int64)),
        *tf.data.Dataset.from_tensors(np.int64(index)).map(split.encoded),
    ):
        assert contents.numpy() == black.read_bytes()


def test_each_name_belongs_to_its_pixels(folder, photograph):
    path = folder / "bee" / "zzz.png"
    photograph.save(path)
    split = open_folder(folder).train
    pixels = read(split, split.names.index(str(path)))
    np.testing.assert_array_equal(pixels, np.asarray(photograph))


def test_gray_models_get_gray_images(folder):
    assert read(open_folder(folder, channels=1).train, 0).shape == (17, 21, 1)


@pytest.fixture
def tfds():
    return pytest.importorskip("tensorflow_datasets")


def test_tfds_images_match_its_own_reader(tfds):
    with tfds.testing.mock_data(num_examples=5):
        source = open_tfds("mnist", channels=1)
        pairs = list(tfds.load("mnist", split="train", as_supervised=True))
    for index, (image, label) in enumerate(pairs):
        np.testing.assert_array_equal(read(source.train, index), image)
        assert source.train.labels[index] == label


def test_missing_tfds_data_error_says_how_to_get_them(tfds, tmp_path, monkeypatch):
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    with pytest.raises(DataError, match="--data.download true"):
        open_tfds("mnist")


def test_an_unknown_data_set_is_a_one_line_error(tfds):
    with pytest.raises(DataError, match="Dataset cifer10 not found") as error:
        open_tfds("cifer10")
    assert "\n" not in str(error.value)


def test_a_data_set_without_class_labels_is_an_error(tfds):
    with (
        tfds.testing.mock_data(num_examples=2),
        pytest.raises(DataError, match="must have an image and a class label"),
    ):
        open_tfds("voc/2007")


@pytest.mark.parametrize(
    ("name", "classes"),
    long_after(
        2,
        [
            ("imagenet2012", 1000),
            ("mnist", 10),
            ("cifar10", 10),
            ("cifar100", 100),
            ("oxford_iiit_pet", 37),
            ("oxford_flowers102", 102),
        ],
    ),
)
def test_the_recipes_data_sets_work_with_mock_data(tfds, name, classes):
    config = DataConfig(
        f"tfds:{name}", "train[:60]", validation="train[60:]", test="validation"
    )
    with tfds.testing.mock_data(num_examples=64):
        splits = load_splits(config, 3)
    assert len(splits.class_names) == classes
    parts = (splits.train, splits.validation, splits.test)
    assert [len(part) for part in parts] == [60, 4, 64]
    for part in parts:
        assert read(part, 0).dtype == np.uint8
        assert read(part, 0).shape[-1] == 3
        assert part.encoded(tf.constant(0, tf.int64)).dtype == tf.string


@pytest.fixture(scope="module", params=long_after(1, ["tfrecord", "array_record"]))
def prepared(request, tmp_path_factory):
    """A data set of 60 images in four files, written by TFDS; its name and folder."""
    tfds = pytest.importorskip("tensorflow_datasets")
    if request.param == "array_record":
        pytest.importorskip("array_record")
    folder, name = tmp_path_factory.mktemp("tfds"), f"numbered_{request.param}"

    def example(number):
        return {
            "image": tf.fill([4, 5, 3], tf.cast(number, tf.uint8)),
            "label": number % 7,
        }

    def examples(count):
        return tf.data.Dataset.range(count).map(example)

    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(None, None, 3)),
                "label": tfds.features.ClassLabel(num_classes=7),
            }
        ),
        split_datasets={"train": examples(60), "test": examples(9)},
        data_dir=folder,
        file_format=request.param,
        download_config=tfds.download.DownloadConfig(num_shards=4),
    )
    return name, folder


def expected_order(name, folder):
    """Every fourth image in TFDS's own order, read by slices."""
    import tensorflow_datasets as tfds

    load = tfds.data_source if "array_record" in name else tfds.load
    slices = [f"train[{place}:{place + 1}]" for place in range(0, 60, 4)]
    return [
        int(np.asarray(example["image"])[0, 0, 0])
        for part in load(name, split=slices, data_dir=folder)
        for example in part
    ]


@pytest.mark.parametrize("limit", [2**30, 10])
def test_tfds_slices_match_its_own(prepared, monkeypatch, limit):
    name, folder = prepared
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(folder))
    monkeypatch.setattr("training.data.tfds.MEMORY_LIMIT", limit)
    if limit == 10 and "tfrecord" in name:
        with pytest.raises(DataError, match="tfds build .*=array_record") as error:
            open_tfds(name)
        assert "\n" not in str(error.value)
        return
    train = open_tfds(name).train
    dataset = tf.data.Dataset.range(60).map(train.read, num_parallel_calls=4)
    order = [int(image[0, 0, 0]) for image in dataset]
    assert order[::4] == expected_order(name, folder)
    assert sorted(order) == list(range(60))
    assert order != list(range(60))
    np.testing.assert_array_equal(train.labels, np.array(order) % 7)


def test_an_unknown_part_of_a_data_set_is_an_error(prepared, monkeypatch):
    name, folder = prepared
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(folder))
    message = r"must be of .*train.*Received: 'valid\[:5\]'"
    with pytest.raises(DataError, match=message):
        load_splits(DataConfig(f"tfds:{name}", validation="valid[:5]"), 3)


def numbered(count, size=(4, 5, 3), label=lambda number: number % 3):
    return tf.data.Dataset.range(count).map(
        lambda number: (tf.fill(size, tf.cast(number, tf.uint8)), label(number))
    )


@pytest.fixture
def user(monkeypatch):
    """Opens python:own:data, whose function returns the argument."""

    def open_it(returned, channels=3):
        module = types.ModuleType("own")
        module.data = lambda: returned
        monkeypatch.setitem(sys.modules, "own", module)
        return open_python("own:data", channels)

    return open_it


def test_a_users_arrays_are_encoded_losslessly(user):
    names = ["a", "b", "c"]
    source = user({"train": numbered(9), "test": numbered(4), "class_names": names})
    assert source.class_names == ("a", "b", "c")
    assert [len(source.train), len(source.test)] == [9, 4]
    for number in range(9):
        assert (read(source.train, number) == number).all()
        assert source.train.labels[number] == number % 3
        contents = source.train.encoded(tf.constant(number)).numpy()
        assert contents.startswith(b"\x89PNG")


def test_a_users_files_are_not_reencoded(user, folder):
    paths = sorted(map(str, (folder / "ant").iterdir()))
    files = tf.data.Dataset.from_tensor_slices(paths).map(
        lambda path: (tf.io.read_file(path), tf.constant(1, tf.int32))
    )
    source = user({"train": files, "class_names": ["a", "b"]})
    assert source.test is None
    with Image.open(paths[2]) as image:
        np.testing.assert_array_equal(read(source.train, 2), np.asarray(image))


def test_a_users_datasets_are_split_by_the_recipe(user, monkeypatch):
    user({"train": numbered(30), "validation": numbered(6), "class_names": "abc"})
    splits = load_splits(
        DataConfig("python:own:data", "train[:20]", "validation", "train[20:]"), 1
    )
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [20, 6, 10]
    assert read(splits.test, 0).shape == (4, 5, 1)


WRONG = {
    "a list": ([1], "must return a dictionary with `class_names` and `train`.*list"),
    "no names": ({"train": numbered(3)}, "`class_names`.*Received: .*'train'"),
    "no train": ({"test": numbered(3), "class_names": "abc"}, "`train`, a tf.data"),
    "an array": ({"train": np.zeros(3), "class_names": "abc"}, "'train': 'ndarray'"),
    "another part": (
        {"train": numbered(3), "trian": numbered(3), "class_names": "abc"},
        "must return class_names, train, validation, test. Received: trian",
    ),
    "floats": (
        {
            "train": numbered(3).map(lambda x, y: (tf.cast(x, tf.float32), y)),
            "class_names": "abc",
        },
        "train: must be a tf.data.Dataset of pairs.*float32",
    ),
    "batches": (
        {"train": numbered(3).batch(2), "class_names": "abc"},
        "integer, unbatched. Received",
    ),
    "one-hot labels": (
        {"train": numbered(3, label=lambda n: tf.one_hot(n, 3)), "class_names": "abc"},
        "and an integer",
    ),
    "four channels": (
        {"train": numbered(3, size=(4, 5, 4)), "class_names": "abc"},
        r"uint8 \[h, w, 1 or 3\]",
    ),
    "a label out of range": (
        {"train": numbered(3, label=lambda n: n + 5), "class_names": "abc"},
        "labels must be from 0 to 2, as there are 3 classes. Received: 5 for",
    ),
    "a negative label": (
        {"train": numbered(3, label=lambda n: n - 1), "class_names": "abc"},
        "labels must be from 0 to 2.*Received: -1 for",
    ),
    "no images": (
        {"train": numbered(3), "test": numbered(0), "class_names": "abc"},
        "python:own:data: test: there are no images",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_return_value_is_a_one_line_error(user, case):
    returned, message = WRONG[case]
    with pytest.raises(DataError, match=message) as error:
        user(returned)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_at_all:data", "No module named 'nowhere_at_all'"),
        ("keras_vit:data_of_mine", "no attribute 'data_of_mine'"),
        ("keras_vit", "python:keras_vit: "),
    ],
)
def test_a_missing_function_is_an_error(name, message):
    with pytest.raises(DataError, match=message):
        open_python(name)


def test_a_users_data_must_fit_into_memory(user, monkeypatch):
    monkeypatch.setattr("training.data.python_source.MEMORY_LIMIT", 300)
    with pytest.raises(DataError, match="must be at most 300 bytes.*after"):
        user({"train": numbered(90), "class_names": "abc"})


@pytest.mark.parametrize(
    "levels", [("train", "val", "valid"), ("val", "test"), ("test",)]
)
def test_parts_that_would_be_ignored_are_rejected(tmp_path, levels):
    for level in levels:
        for name in ("cat", "dog"):
            (tmp_path / level / name).mkdir(parents=True)
    with pytest.raises(DataError, match="must have train/, and may"):
        open_folder(tmp_path)


@pytest.mark.usefixtures("bucket")
def test_a_folder_can_be_in_a_bucket():
    root = epath.Path("gs://bucket/images")
    for name, count in {"cat": 2, "dog": 3}.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((3, 5, 3), 20 * number, "uint8")
            (root / name / f"{number}.png").write_bytes(
                tf.io.encode_png(pixels).numpy()
            )
    (root / "dog" / "9.png").write_bytes(b"no image")
    source = open_folder(root, on_bad_image="skip")
    assert source.class_names == ("cat", "dog")
    assert source.parts["train"].labels.tolist() == [0, 0, 1, 1, 1]
    assert source.parts["train"].names[0] == "gs://bucket/images/cat/0.png"
    assert len(source.bad_images) == 1
    assert source.bad_images[0].startswith("gs://bucket/images/dog/9.png: not a read")
