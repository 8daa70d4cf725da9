"""Serving's files that are replaced atomically, and the lock of a folder."""

import os

import pytest

from serving.atomic_write import write_atomically
from serving.rollout.versions import one_writer


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def precious(tmp_path):
    """A file elsewhere that must stay as it is."""
    path = tmp_path / "precious"
    path.write_text("mine")
    yield path
    assert path.read_text() == "mine"


def test_the_new_content_has_no_name_that_others_can_foresee(folder, monkeypatch):
    names = []
    replace = os.replace
    monkeypatch.setattr(
        os, "replace", lambda old, new: (names.append(old), replace(old, new))
    )
    for content in (b"1", b"2"):
        write_atomically(folder / "a.json", content)
        assert (folder / "a.json").read_bytes() == content
    first, second = (os.path.dirname(name) for name in names)
    assert first != second
    assert str(os.getpid()) not in os.path.relpath(first, folder)
    assert os.listdir(folder) == ["a.json"]


def test_a_link_in_the_place_of_the_file_is_replaced_not_followed(folder, precious):
    (folder / "a.json").symlink_to(precious)
    write_atomically(folder / "a.json", b"new")
    assert not (folder / "a.json").is_symlink()


def test_a_new_file_has_the_permissions_of_the_umask(folder):
    before = os.umask(0o027)
    try:
        write_atomically(folder / "a.json", b"new")
    finally:
        os.umask(before)
    assert (folder / "a.json").stat().st_mode & 0o777 == 0o640


def test_a_link_instead_of_the_lock_is_not_followed(folder, tmp_path):
    (folder / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"), one_writer(folder):
        pass
    assert not (tmp_path / "elsewhere").exists()
