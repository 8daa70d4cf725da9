"""The index of a folder's images: what is read once, and when it is read again."""

import os
import re
import time

import numpy as np
import pytest
from etils import epath
from PIL import Image

from keras_vit import decoding
from training.data import image_index
from training.data.image_index import ImageIndex, cache_folder
from training.data.image_listing import image_files

OLD = time.time_ns() - 10**12  # a time of files that have settled


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))


@pytest.fixture
def root(tmp_path):
    """Four images: of 40 kB without compression, so that each has a middle."""
    random = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for number in range(4):
        pixels = random.integers(0, 256, (101, 131, 3), np.uint8)
        write(tmp_path / "images" / f"{number}.bmp", Image.fromarray(pixels))
    return tmp_path / "images"


def write(path, image):
    image.save(path)
    os.utime(path, ns=(OLD, OLD))


@pytest.fixture
def opened(monkeypatch):
    """The names of the files that are opened."""
    names = []
    inspect = image_index._inspect

    def note(path, *arguments):
        names.append(os.path.basename(path))
        return inspect(path, *arguments)

    monkeypatch.setattr(image_index, "_inspect", note)
    return names


def index(root, **options):
    return ImageIndex.of_files(root, image_files(root), **options)


def change(path, position, modified=OLD + 1):
    """Change one byte of a file, but not its size."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(modified, modified))


def test_a_file_is_opened_once(root, opened):
    first = index(root)
    assert sorted(opened) == ["0.bmp", "1.bmp", "2.bmp", "3.bmp"]
    opened.clear()
    assert index(root) == first
    assert opened == []


@pytest.mark.parametrize("position", [100, -1])
def test_a_changed_file_is_opened_again(root, opened, position):
    first = index(root)
    opened.clear()
    change(root / "2.bmp", position)
    second = index(root)
    assert opened == ["2.bmp"]
    differing = [
        path for path in first.digests if first.digests[path] != second.digests[path]
    ]
    assert differing == [f"{root}/2.bmp"]


def test_a_new_file_is_opened_and_a_missing_one_forgotten(root, opened):
    index(root)
    opened.clear()
    (root / "0.bmp").rename(root / "4.bmp")
    names = [os.path.basename(path) for path in index(root).digests]
    assert names == ["1.bmp", "2.bmp", "3.bmp", "4.bmp"]
    assert opened == ["4.bmp"]


def test_a_file_that_may_be_changing_is_opened_again(root, opened):
    """Within a step of the clock it may change once more, with the same time."""
    now = time.time_ns()
    os.utime(root / "1.bmp", ns=(now, now))
    index(root)
    opened.clear()
    index(root)
    assert opened == ["1.bmp"]


def test_a_copy_has_the_same_digests(root, tmp_path):
    root.rename(tmp_path / "elsewhere")
    before = index(tmp_path / "elsewhere")
    for number in range(4):
        os.utime(tmp_path / "elsewhere" / f"{number}.bmp")
    (tmp_path / "elsewhere").rename(root)
    assert list(index(root).digests.values()) == list(before.digests.values())


def test_digests_are_in_the_order_of_the_paths(root):
    found = index(root)
    paths = [f"{root}/3.bmp", f"{root}/1.bmp"]
    rows = found.digests_of(paths)
    assert rows.shape == (2, 16)
    assert [row.tobytes() for row in rows] == [found.digests[path] for path in paths]


@pytest.mark.parametrize(
    ("name", "contents", "reason"),
    [
        ("a.png", b"", "cannot identify"),
        ("a.jpg", b"<html>not found</html>", "cannot identify"),
        ("a.gif", b"GIF8", "cannot identify"),
    ],
)
def test_a_file_that_is_no_image_is_named_each_time(root, name, contents, reason):
    (root / name).write_bytes(contents)
    os.utime(root / name, ns=(OLD, OLD))
    for _ in range(2):
        [problem] = index(root).problems.values()
        assert problem.startswith(f"{root}/{name}: not a readable image: {reason}")


def test_an_image_of_too_many_pixels_is_named(root):
    Image.new("1", (20_000, 10_000)).save(root / "large.png")
    [problem] = index(root).problems.values()
    prefix = re.escape(f"{root}/large.png: not a readable image: ")
    assert re.match(f"{prefix}(20000 x 10000 pixels|.*exceeds limit)", problem)


def test_what_cannot_be_opened_is_named_until_it_can_be(root):
    (root / "5.png").symlink_to(root / "missing.png")
    [problem] = index(root).problems.values()
    assert problem == f"{root}/5.png: cannot be read: No such file or directory"
    write(root / "missing.png", Image.new("L", (3, 5)))
    assert index(root).problems == {}


def test_the_decoder_has_the_last_word_on_a_header(root):
    (root / "1.bmp").write_bytes(b"not Pillow's")
    asked = []
    found = index(root, decode=asked.append)
    assert [path.name for path in asked] == ["1.bmp"]
    assert found.problems == {}


def test_images_are_decoded_once_where_all_must_be(root):
    whole = (root / "2.bmp").read_bytes()
    (root / "2.bmp").write_bytes(whole[: len(whole) // 2])
    os.utime(root / "2.bmp", ns=(OLD, OLD))
    asked = []

    def decode(path):
        asked.append(path.name)
        return decoding.load_image(path)

    assert index(root, decode=decode).problems == {}  # headers alone
    assert asked == []
    for expected in (["0.bmp", "1.bmp", "2.bmp", "3.bmp"], ["2.bmp"]):
        problems = index(root, decode=decode, decode_all=True).problems
        assert list(problems) == [f"{root}/2.bmp"]
        assert "truncated" in problems[f"{root}/2.bmp"]
        assert sorted(asked) == expected
        asked.clear()


@pytest.mark.parametrize("contents", [b"", b"PK\3\4", b"no archive"])
def test_a_damaged_cache_is_replaced(root, opened, contents):
    first = index(root)
    [cache] = cache_folder().iterdir()
    cache.write_bytes(contents)
    opened.clear()
    assert index(root) == first
    assert len(opened) == 4
    opened.clear()
    assert index(root) == first
    assert opened == []


def test_a_cache_of_another_version_is_not_read(root, opened, monkeypatch):
    index(root)
    opened.clear()
    monkeypatch.setattr(image_index, "__version__", "another")
    index(root)
    assert len(opened) == 4


def test_a_cache_that_cannot_be_written_is_no_error(root, opened, tmp_path):
    (tmp_path / "home").write_text("a file, not a folder")
    assert index(root) == index(root)
    assert len(opened) == 8


def test_two_folders_have_their_own_caches(root, opened):
    (root / "in").mkdir()
    write(root / "in" / "9.bmp", Image.new("L", (3, 5)))
    index(root)
    index(root / "in")
    assert len(list(cache_folder().iterdir())) == 2


@pytest.mark.usefixtures("bucket")
def test_a_bucket_has_an_index(opened):
    root = epath.Path("gs://bucket/images")
    root.mkdir(parents=True)
    (root / "1.png").write_bytes(b"no image")
    found = index(root)
    assert list(found.problems) == ["gs://bucket/images/1.png"]
