"""Versions appear atomically despite kills and concurrent exports; manifests."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import publish_runs
import pytest

from keras_vit.common.command_line import CommandError
from keras_vit.common.file_names import MANIFEST
from serving.rollout import manifest
from serving.rollout.versions import (
    REMOVED,
    STAGING,
    one_writer,
    staged_version,
    sweep,
    versions,
    withdraw,
)

ROOT = pathlib.Path(__file__).parents[3]


def start(base_path, *arguments):
    process = subprocess.Popen(
        [sys.executable, publish_runs.__file__, base_path, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout.readline() == b"ready\n"
    return process


def put(base_path, **keywords):
    with staged_version(base_path, **keywords) as (folder, number):
        (folder / "saved_model.pb").write_text(f"version {number}")
    return number


def check_complete(base_path):
    """Check that every visible version has all its files."""
    for number in versions(base_path):
        for name in ("variables/variables.index", "saved_model.pb"):
            text = (base_path / str(number) / name).read_text()
            assert text == publish_runs.TEXT, f"{number}/{name}"


def leftovers(base_path):
    return list(base_path.glob(f"{STAGING}*"))


def test_version_numbers_ascend_and_are_not_reused(tmp_path):
    assert [put(tmp_path) for _ in range(2)] == [1, 2]
    assert put(tmp_path, version=7) == 7
    assert put(tmp_path) == 8
    with pytest.raises(CommandError, match="version 7 exists"):
        put(tmp_path, version=7)
    with one_writer(tmp_path):
        withdraw(tmp_path, 8)
    with pytest.raises(CommandError, match="version 8 existed and was removed"):
        put(tmp_path, version=8)
    assert put(tmp_path) == 9
    assert versions(tmp_path) == [1, 2, 7, 9]


def test_an_error_in_the_block_leaves_nothing(tmp_path):
    staged = staged_version(tmp_path)
    folder, _ = staged.__enter__()
    (folder / "saved_model.pb").write_text("half")
    assert not staged.__exit__(RuntimeError, RuntimeError(), None), "it is raised on"
    assert versions(tmp_path) == []
    assert leftovers(tmp_path) == []


def test_a_kill_at_any_step_leaves_a_complete_version_or_none(tmp_path):
    """At each step in turn, until a run gets through."""
    outcomes = []
    for kill_at in range(1, 100):
        base_path = tmp_path / str(kill_at)
        process = start(base_path, 1, kill_at)
        returncode = process.wait(30)
        outcomes.append(versions(base_path))
        check_complete(base_path)
        assert put(base_path) == len(outcomes[-1]) + 1, "the next export goes on"
        assert leftovers(base_path) == [], "and cleans up"
        if returncode == 0:
            break
        assert returncode == -signal.SIGKILL
    assert returncode == 0
    assert outcomes.count([]) > 5
    assert [1] in outcomes[:-1]


def test_concurrent_exports_get_different_numbers(tmp_path):
    processes = [start(tmp_path, 5) for _ in range(3)]
    assert [process.wait(30) for process in processes] == [0, 0, 0]
    assert versions(tmp_path) == list(range(1, 16))
    check_complete(tmp_path)


def test_sweep_waits_for_a_writer(tmp_path):
    def clean():
        with one_writer(tmp_path):
            sweep(tmp_path)

    with staged_version(tmp_path) as (folder, _):
        cleaner = threading.Thread(target=clean)
        cleaner.start()
        cleaner.join(0.3)
        assert cleaner.is_alive(), "it must wait"
        assert folder.is_dir()
    cleaner.join(30)
    assert versions(tmp_path) == [1]


def test_everything_is_flushed_before_the_rename_and_the_folder_after_it(
    tmp_path, monkeypatch
):
    flushed, at_rename = [], []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor):
        flushed.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def record_rename(path, target):
        at_rename.extend(flushed)
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_rename)
    with staged_version(tmp_path) as (folder, _):
        (folder / "variables").mkdir()
        (folder / "variables" / "data").write_text("1")
        (folder / "saved_model.pb").write_text("2")
        inside = {path.stat().st_ino for path in (folder, *folder.rglob("*"))}
    assert set(at_rename) == inside
    assert flushed[-1] == tmp_path.stat().st_ino


def test_withdrawn_versions_are_deleted_once_a_newer_one_exists(tmp_path):
    for _ in range(3):
        put(tmp_path)
    (tmp_path / f"{STAGING}of-a-killed-export").mkdir()
    with one_writer(tmp_path):
        withdraw(tmp_path, 1)
        withdraw(tmp_path, 3)
        sweep(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"2", f"{REMOVED}3", ".lock"}, "3 keeps its number from reuse"


@pytest.fixture
def version(tmp_path):
    """A version of three files with a manifest."""
    (tmp_path / "variables").mkdir()
    for name in ("saved_model.pb", "variables/data", "variables/index"):
        (tmp_path / name).write_text(name)
    manifest.write(tmp_path, {"created": "now"})
    return tmp_path


def test_the_manifest_lists_every_file(version):
    written = manifest.read_if_valid(version)
    assert list(written["files"]) == [
        "saved_model.pb",
        "variables/data",
        "variables/index",
    ]
    # From `printf variables/data | sha256sum`.
    assert written["files"]["variables/data"] == {
        "bytes": 14,
        "sha256": "9a886bebd973bccf900c592b29706d279593fcb5ad7e87d36c810aef1030f817",
    }
    assert manifest.damage(version) == []


def test_the_manifest_is_the_same_for_the_same_files(version):
    for number in range(30):
        (version / f"file-{number * 7 % 30}").write_text("")
    written = manifest.write(version, {"created": "now"})
    before = (version / MANIFEST).read_bytes()
    assert list(written["files"]) == sorted(written["files"])
    manifest.write(version, {"created": "now"})
    assert (version / MANIFEST).read_bytes() == before


def test_damage_is_found(version):
    (version / "saved_model.pb").write_text("saved_model.pc")  # of the same size
    (version / "variables/index").unlink()
    (version / "variables/other").write_text("")
    assert sorted(manifest.damage(version)) == [
        "saved_model.pb: changed",
        "variables/index: missing",
        "variables/other: new",
    ]


def test_a_version_without_a_manifest(version):
    shutil.rmtree(version / "assets.extra")
    assert manifest.read_if_valid(version) is None


def test_a_link_instead_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"), one_writer(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()
