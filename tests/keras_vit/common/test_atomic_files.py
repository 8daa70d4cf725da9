"""Files that are replaced atomically."""

import os
import pathlib

import pytest

from keras_vit.common import atomic_files

PRECIOUS = "mine"


def write(path, text="new"):
    with atomic_files.replacing(path) as beside:
        beside.write_text(text)


@pytest.fixture
def precious(tmp_path):
    """A file elsewhere that must stay as it is."""
    path = tmp_path / "precious"
    path.write_text(PRECIOUS)
    yield path
    assert path.read_text() == PRECIOUS


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def test_the_name_is_kept_and_nothing_else_is_left(folder):
    with atomic_files.replacing(folder / "model.keras") as beside:
        beside.write_text("new")
        assert beside.name == "model.keras"  # Keras and NumPy need the suffix
    assert os.listdir(folder) == ["model.keras"]


def test_nobody_else_can_foresee_or_enter_the_folder_of_a_new_file(folder):
    parents = set()
    for _ in range(3):
        with atomic_files.replacing(folder / "note.txt") as beside:
            beside.write_text("new")
            parents.add(beside.parent)
            assert beside.parent.stat().st_mode & 0o777 == 0o700
            assert str(os.getpid()) not in str(beside.relative_to(folder))
    assert len(parents) == 3


def test_a_link_in_the_place_of_the_file_is_replaced_not_followed(folder, precious):
    precious.chmod(0o606)
    (folder / "note.txt").symlink_to(precious)
    write(folder / "note.txt")
    assert not (folder / "note.txt").is_symlink()
    assert (folder / "note.txt").stat().st_mode & 0o777 != 0o606


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_a_new_file_has_the_permissions_of_the_umask(folder, umask, mode):
    before = os.umask(umask)
    try:
        write(folder / "note.txt")
    finally:
        os.umask(before)
    assert (folder / "note.txt").stat().st_mode & 0o777 == mode


def test_the_permissions_of_an_old_file_are_kept(folder):
    (folder / "note.txt").write_text("old")
    (folder / "note.txt").chmod(0o604)
    write(folder / "note.txt")
    assert (folder / "note.txt").stat().st_mode & 0o777 == 0o604


def write_half(path):
    with atomic_files.replacing(path) as beside:
        beside.write_text("half of the n")
        raise KeyboardInterrupt


def test_an_interrupted_write_leaves_only_the_old_file(folder):
    write(folder / "note.txt", "old")
    with pytest.raises(KeyboardInterrupt):
        write_half(folder / "note.txt")
    assert (folder / "note.txt").read_text() == "old"
    assert os.listdir(folder) == ["note.txt"]


@pytest.fixture
def calls(monkeypatch):
    """Names of what is flushed, and the rename, in order."""
    calls = []

    def fsync(descriptor):
        path = pathlib.Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        calls.append(path.name)

    replace = os.replace
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(
        os, "replace", lambda *names: (calls.append("replace"), replace(*names))
    )
    return calls


def test_file_and_names_are_flushed_before_and_after_the_rename(folder, calls):
    write(folder / "note.txt")
    assert calls == ["note.txt", "replace", "shared"]


def test_a_new_folder_appears_with_all_its_files_flushed(folder, calls):
    with atomic_files.replacing(folder / "model") as beside:
        (beside / "inner").mkdir(parents=True)
        (beside / "inner" / "note.txt").write_text("new")
        assert not (folder / "model").exists()
    assert (folder / "model" / "inner" / "note.txt").read_text() == "new"
    assert calls == ["note.txt", "inner", "model", "replace", "shared"]
    assert os.listdir(folder) == ["model"]


def test_a_folder_with_files_is_not_replaced(folder):
    (folder / "model").mkdir()
    (folder / "model" / "note.txt").write_text("old")
    with pytest.raises(OSError), atomic_files.replacing(folder / "model") as beside:
        beside.mkdir()
    assert (folder / "model" / "note.txt").read_text() == "old"
