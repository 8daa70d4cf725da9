"""Class folders: what names and structure say, and all that is wrong at once."""

import os
import shutil
import unicodedata
from pathlib import Path

import pytest
from PIL import Image

from training.data.class_folders import open_class_folders
from training.data.image_index import ImageIndex
from training.data.image_listing import list_files, with_sizes
from training.errors import DataError


@pytest.fixture
def make(tmp_path):
    """A function that writes one image for each path, and returns their root."""
    root = tmp_path / "root"

    def write(*paths):
        for number, path in enumerate(paths):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 3), (number, 0, 0)).save(root / path)
        return root

    return write


def divided(*parts):
    return [f"{part}/{name}/1.png" for part in parts for name in ("ant", "bee")]


@pytest.mark.parametrize(
    "names",
    [
        ("Train", "Val", "Test"),
        ("TRAINING", "Validation", "Testing"),
        ("train_set", "valid", "test-set"),
        ("trainset", "valset", "testset"),
        ("train2017", "val2017", "test2017"),
        ("Training Images", "valid_data", "test_images"),
    ],
)
def test_parts_may_have_other_forms_of_their_names(make, names):
    found = open_class_folders(make(*divided(*names)))
    assert list(found.images) == ["train", "validation", "test"]
    assert found.class_names == ("ant", "bee")
    for part, name in zip(found.images.values(), names, strict=True):
        parents = [[Path(f.path).parent.parent.name for f in each] for each in part]
        assert parents == [[name]] * 2


@pytest.mark.parametrize(
    "names", [("train", "car", "bus"), ("test", "train", "car"), ("Training", "Play")]
)
def test_a_class_may_have_the_name_of_a_part(make, names):
    found = open_class_folders(make(*(f"{name}/1.png" for name in names)))
    assert list(found.images) == ["train"]
    assert found.class_names == tuple(sorted(names))


@pytest.mark.parametrize(
    "names", [("trained", "bee"), ("protest", "bee"), ("val_de", "b")]
)
def test_a_name_that_contains_one_of_a_part_is_a_class(make, names):
    root = make(*(f"{name}/deep/1.png" for name in names))
    assert list(open_class_folders(root).images) == ["train"]


def test_a_part_may_have_a_class_with_the_name_of_a_part(make):
    found = open_class_folders(make("train/train/1.png", "train/test/1.png"))
    assert found.class_names == ("test", "train")


def test_a_class_with_folders_may_also_be_a_part(make):
    root = make("train/steam/1.png", "train/diesel/1.png", "car/1.png")
    with pytest.raises(DataError) as error:
        open_class_folders(root)
    assert "train/ may be parts of the data set" in str(error.value)
    assert "or classes like car/ beside them" in str(error.value)


def test_parts_without_a_common_class_may_be_classes(make):
    root = make("train/a/1.png", "test/b/1.png", "car/1.png")
    with pytest.raises(DataError, match="test/, train/ may be parts.*like car/ beside"):
        open_class_folders(root)


def test_images_directly_in_folders_of_parts_are_ambiguous(make):
    with pytest.raises(DataError, match="test/, train/ may be parts.*or classes"):
        open_class_folders(make("train/1.png", "test/2.png"))


def test_folders_beside_parts_with_the_same_classes_are_passed_over(make):
    root = make(*divided("train", "val"), "unlabeled/1.png")
    found = open_class_folders(root)
    assert list(found.images) == ["train", "validation"]
    assert found.passed_over == [str(root / "unlabeled/1.png")]


@pytest.mark.parametrize("names", [("val", "test"), ("train", "Train")])
def test_each_part_has_one_folder_and_train_is_there(make, names):
    with pytest.raises(DataError, match="must have train/.*one folder for each"):
        open_class_folders(make(*divided(*names)))


def test_parts_must_be_above_classes(make):
    root = make(*(f"{c}/{part}/1.png" for c in "ab" for part in ("train", "test")))
    with pytest.raises(DataError, match="a must be in the folders of the parts"):
        open_class_folders(root)


def test_a_class_may_have_one_folder_with_the_name_of_a_part(make):
    found = open_class_folders(make("ant/train/1.png", "ant/2.png", "bee/1.png"))
    assert [len(each) for each in found.images["train"]] == [2, 1]


def test_a_folder_without_parts_is_listed_once(make, monkeypatch):
    root, listed = make("ant/1.png", "bee/1.png"), []

    def note(folder):
        listed.append(folder.name)
        return list_files(folder)

    monkeypatch.setattr("training.data.class_folders.list_files", note)
    open_class_folders(root)
    assert sorted(listed) == ["ant", "bee"]


def test_the_home_folder_is_expanded(make, monkeypatch):
    root = make("ant/1.png", "bee/1.png")
    monkeypatch.setenv("HOME", str(root.parent))
    assert open_class_folders("~/root").class_names == ("ant", "bee")


@pytest.mark.parametrize("part", ["", "val/"])
def test_two_unicode_forms_of_a_name_are_told_apart(make, part):
    composed = unicodedata.normalize("NFC", "bär")
    other = unicodedata.normalize("NFD", composed)
    prefix = "train/" if part else ""
    root = make(
        f"{prefix}{composed}/1.png",
        f"{prefix}cow/1.png",
        f"{part}{other}/1.png",
        f"{part}cow/2.png",
    )
    with pytest.raises(DataError) as error:
        open_class_folders(root)
    assert f"{composed} ('b\\xe4r')" in str(error.value)
    assert f"{other} ('ba\\u0308r')" in str(error.value)


def test_an_image_behind_a_loop_of_links_counts_once(make):
    root = make("ant/1.png", "ant/more/2.png", "bee/1.png")
    (root / "ant" / "loop").symlink_to(root / "ant")
    (root / "ant" / "more" / "up").symlink_to(root, target_is_directory=True)
    (root / "ant" / "again").symlink_to(root / "ant" / "more")
    (root / "ant" / "same.png").symlink_to("1.png")
    (root / "ant" / "itself").symlink_to("itself")
    found = open_class_folders(root)
    assert [[file.name for file in each] for each in found.images["train"]] == [
        ["1.png", "2.png"],
        ["1.png"],
    ]


def test_an_image_has_its_own_name_and_not_that_of_a_link(make):
    root = make("ant/1.png", "bee/1.png")
    (root / "ant" / "0.png").symlink_to("1.png")
    found = open_class_folders(root)
    assert [file.name for file in found.images["train"][0]] == ["1.png"]


@pytest.mark.parametrize("place", ["", "train/"])
def test_a_link_upwards_is_no_class(make, place):
    root = make(f"{place}ant/1.png", f"{place}bee/1.png")
    (root / place / "up").symlink_to(root, target_is_directory=True)
    (root / place / "above").symlink_to(root.parent, target_is_directory=True)
    found = open_class_folders(root)
    assert found.class_names == ("ant", "bee")
    assert found.passed_over == []


def test_linked_images_and_classes_count(make, tmp_path):
    root = make("ant/1.png", "bee/1.png")
    shutil.move(root / "ant", tmp_path / "elsewhere")
    (root / "ant").symlink_to(tmp_path / "elsewhere")
    (root / "bee" / "2.png").symlink_to(tmp_path / "elsewhere" / "1.png")
    found = open_class_folders(root)
    assert [len(each) for each in found.images["train"]] == [1, 2]


def test_files_that_are_no_images_are_passed_over(make):
    root = make("ant/1.png", "bee/1.png", "2.png")
    (root / "ant" / "notes.txt").write_text("BMW, and no image")
    (root / "bee" / "labels").write_text("")
    (root / "README.md").write_text("")
    (root / "ant" / "1.png").rename(root / "ant" / "picture")  # by its contents
    (root / "bee" / "photo.heic").write_text("")  # an image, if an unreadable one
    found = open_class_folders(root)
    names = [[file.name for file in each] for each in found.images["train"]]
    assert names == [["picture"], ["1.png", "photo.heic"]]
    passed_over = ["2.png", "ant/notes.txt", "bee/labels"]
    assert found.passed_over == [str(root / name) for name in passed_over]


def test_pipes_are_not_opened(make):
    """Reading one waits for a process that writes; here its bytes are an image's."""
    root = make("ant/1.png", "bee/1.png")
    pipes = [root / "ant" / "pipe", root / "pipe"]
    opened = []
    for pipe in pipes:
        os.mkfifo(pipe)
        opened.append(os.open(pipe, os.O_RDWR))
        os.write(opened[-1], (root / "ant" / "1.png").read_bytes())
    try:
        found = open_class_folders(root)
        assert found.passed_over == [str(root / "ant" / "pipe")]
        names = list(map(str, pipes))
        assert ImageIndex.of_files(root, with_sizes(names)).problems == {
            name: f"{name}: must be a regular file" for name in names
        }
    finally:
        for descriptor in opened:
            os.close(descriptor)


@pytest.mark.parametrize("name", ["ant/w\udcff.png", "z\udcff/1.png"])
def test_names_that_are_not_utf_8_are_named_with_all_other_problems(make, name):
    root = make("ant/1.png", "bee/1.png", "cow/1.png")
    (root / name).parent.mkdir(exist_ok=True)
    shutil.copy(root / "ant/1.png", root / name)
    (root / "cow/1.png").unlink()
    bad = next(repr(part) for part in Path(name).parts if "\udcff" in part)
    with pytest.raises(DataError) as error:
        open_class_folders(root)
    assert "2 problems: " in str(error.value)
    assert f"names must be UTF-8: {bad}" in str(error.value)
    assert "no images in class folder cow" in str(error.value)


def test_all_problems_are_in_one_line(make):
    root = make(*divided("train", "val"), "train/cow/1.png", "val/dog/1.png")
    (root / "val" / "ant" / "1.png").unlink()
    (root / "train" / "bee" / "2.png").write_bytes(b"\x89PNG")
    with pytest.raises(DataError) as error:
        open_class_folders(root)
    message = str(error.value)
    assert f"folder:{root}: 3 problems: (1) " in message
    assert "Only in one of them: cow, dog" in message
    assert "no images in class folder ant (validation)" in message
    assert (
        f"1 of 6 images cannot be read (--data.on_bad_image skip ignores them): {root}"
        in message
    )
    assert "train/bee/2.png" in message
    assert "\n" not in message
