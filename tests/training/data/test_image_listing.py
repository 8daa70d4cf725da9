"""Image files are listed with sizes and times, in one order on every machine."""

import mimetypes
import os

import pytest
from etils import epath

from training.data.image_listing import ImageFile, image_files, is_image, list_files


def write(root, *names):
    for size, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(bytes(size))


def test_image_files_have_sizes_and_times(tmp_path):
    write(tmp_path, "b.png", "a/c.jpg", ".hidden/1.png", "notes.txt")
    os.utime(tmp_path / "b.png", ns=(0, 1_234_567_891))
    first, second = image_files(tmp_path)
    assert second == ImageFile(f"{tmp_path}/b.png", 0, 1_234_567_891)
    assert (first.path, first.size, first.name) == (f"{tmp_path}/a/c.jpg", 1, "c.jpg")


def test_files_are_sorted_by_their_folders_and_names(tmp_path):
    names = ["a-b/1.png", "a/b/1.png", "a/2.png", "a.png", "a b/1.png", "A/1.png"]
    write(tmp_path, *names)
    found = [name.removeprefix(f"{tmp_path}/") for name in list_files(tmp_path)]
    assert found == sorted(names, key=lambda name: name.split("/"))


def test_names_in_the_working_directory_have_no_prefix(tmp_path, monkeypatch):
    write(tmp_path, "a.png", "b/c.png")
    monkeypatch.chdir(tmp_path)
    assert list_files(epath.Path(".")) == ["a.png", "b/c.png"]


def test_a_link_to_nothing_is_listed(tmp_path):
    (tmp_path / "a.png").symlink_to("missing.png")
    assert image_files(tmp_path) == [ImageFile(f"{tmp_path}/a.png", 0, 0)]


@pytest.mark.usefixtures("bucket")
def test_files_of_a_bucket_have_sizes():
    root = epath.Path("gs://bucket/images")
    root.mkdir(parents=True)
    (root / "1.png").write_bytes(bytes(7))
    [file] = image_files(root)
    assert file.path == "gs://bucket/images/1.png"
    assert file.size == 7


def test_a_name_means_the_same_on_every_machine(monkeypatch, tmp_path):
    """A machine's own list of types, such as /etc/mime.types, is not read."""
    write(tmp_path, "a.notes")
    mimetypes.init()
    monkeypatch.setitem(mimetypes.types_map, ".notes", "image/x-notes")
    assert mimetypes.guess_type("a.notes")[0] == "image/x-notes"
    assert not is_image(f"{tmp_path}/a.notes")
    assert is_image(f"{tmp_path}/a.heic")
