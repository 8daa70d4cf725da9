"""Atomic file access on a disk and in a bucket."""

import errno
import os

import pytest
from etils import epath
from fake_bucket import names

from training import storage


def test_a_file_can_be_written_read_and_rewritten(root):
    for text in ("a long text in grüner Schrift", "short"):
        storage.write_text(root / "note.txt", text)
        with storage.local_copy(root / "note.txt") as local:
            assert local.read_text(encoding="utf-8") == text
        assert names(root) == ["note.txt"]


def test_a_file_keeps_its_old_content_until_the_new_is_complete(root):
    storage.write_text(root / "note.txt", "old")
    with storage.atomic_write(root / "note.txt") as local:
        local.write_text("new")
        assert (root / "note.txt").read_text() == "old"
        assert local.suffix == ".txt"
    assert (root / "note.txt").read_text() == "new"


def write_and_stop(path):
    with storage.atomic_write(path) as local:
        local.write_text("half of the n")
        raise KeyboardInterrupt


def test_an_interrupted_write_leaves_only_the_old_file(root):
    storage.write_text(root / "note.txt", "old")
    with pytest.raises(KeyboardInterrupt):
        write_and_stop(root / "note.txt")
    assert (root / "note.txt").read_text() == "old"
    assert names(root) == ["note.txt"]


def test_the_bytes_are_flushed_before_the_rename(tmp_path, monkeypatch):
    calls = []

    def fsync(descriptor):
        calls.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    replace = os.replace
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(
        os, "replace", lambda *names: (calls.append("replace"), replace(*names))
    )
    storage.write_text(tmp_path / "note.txt", "text")
    assert calls == ["note.txt", "replace", tmp_path.name]


def write_to_a_full_disk(path):
    with storage.atomic_write(path), open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")


def test_an_error_of_a_write_names_the_file(root):
    """Python's own has no path where a disk is full."""
    with pytest.raises(OSError, match="No space left on device.*note.txt") as error:
        write_to_a_full_disk(root / "note.txt")
    assert error.value.errno == errno.ENOSPC
    assert not names(root)


def test_an_interrupted_upload_is_an_error_and_removed(bucket):
    bucket.break_copy_after = 3
    with pytest.raises(OSError, match="network broke off") as error:
        storage.write_text("gs://bucket/note.txt", "a longer text")
    assert error.value.errno == errno.EIO
    assert names(epath.Path("gs://bucket")) == []


def test_a_missing_file_is_a_file_not_found_error(root):
    with (
        pytest.raises(FileNotFoundError),
        storage.local_copy(root / "nothing.txt") as local,
    ):
        local.read_text()
    storage.remove(root / "nothing.txt")


def test_an_unreachable_bucket_is_a_one_line_error(bucket):
    bucket.unreachable = "gs://"
    with (
        pytest.raises(OSError, match="the network is down") as error,
        storage.local_copy("gs://bucket/note.txt"),
    ):
        pass
    assert "\n" not in str(error.value)
    storage.remove("gs://bucket/note.txt")


@pytest.mark.parametrize(
    ("path", "remote"),
    [("gs://bucket/a", True), ("runs/a", False), ("/a/b", False), ("C:/a", False)],
)
def test_only_urls_are_remote(path, remote):
    assert storage.is_remote(epath.Path(path)) is remote
