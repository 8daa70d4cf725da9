"""Copies of versions appear complete or not at all, whatever happens meanwhile."""

import os
import shutil
import subprocess
import sys

import killed_forks
import pytest

from keras_vit.common.command_line import CommandError
from keras_vit.common.file_names import MANIFEST
from serving.__main__ import main
from serving.rollout import manifest
from serving.rollout.copy_command import copy_version
from serving.rollout.versions import STAGING, one_writer, staged_version, versions
from serving.rollout.versions import withdraw as withdraw_version


def put(base_path, version=None, export_format="savedmodel"):
    """Publish a version of three files; returns its folder."""
    with staged_version(base_path, version) as (folder, number):
        (folder / "variables").mkdir()
        (folder / "saved_model.pb").write_text(f"version {number}")
        (folder / "variables" / "variables.data").write_bytes(os.urandom(100_000))
        (folder / "variables" / "variables.index").write_text("index")
        manifest.write(folder, {"created": "now", "export_format": export_format})
    return base_path / str(number)


@pytest.fixture
def source(tmp_path):
    return put(tmp_path / "from", 3)


@pytest.fixture
def target(tmp_path):
    return tmp_path / "to"


def contents(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in paths}


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def copy(*arguments):
    return main(["copy", *map(str, arguments)])


def run(code, *arguments):
    """Copy in a process of its own, which the code restricts or ends."""
    head = (
        "import os, pathlib, resource, sys\n"
        "_, source, target = sys.argv\n"
        "sys.argv[0] = 'keras-vit'  # without Keras\n"
        "from serving.rollout.copy_command import copy_version\n"
        "source, target = pathlib.Path(source), pathlib.Path(target)\n"
    )
    command = [sys.executable, "-c", head + code, *map(str, arguments)]
    subprocess.run(command, check=True)


def test_a_version_keeps_its_number_and_contents(source, target, capsys):
    assert copy(source, target) == 0
    assert contents(target / "3") == contents(source)
    assert names(target) == [".lock", "3"]
    line = f"{target}/3: copied from {source}, 0.1 MB\n"
    assert capsys.readouterr().out == line


def test_a_version_can_get_another_number(source, target):
    assert copy(source, target, "--version", "7") == 0
    assert versions(target) == [7]


def test_a_copy_can_be_read_by_every_user_whatever_the_umask(source, target):
    before = os.umask(0o077)
    try:
        copy(source, target)
    finally:
        os.umask(before)
    for path in (target, target / "3", *(target / "3").rglob("*")):
        readable = 0o555 if path.is_dir() else 0o444
        assert path.stat().st_mode & readable == readable, path


def test_the_same_copy_again_does_nothing(source, target, capsys):
    copy(source, target)
    before = (target / "3").stat().st_mtime_ns
    capsys.readouterr()
    assert copy(source, target) == 0
    assert (target / "3").stat().st_mtime_ns == before
    assert "is there already, with the same contents" in capsys.readouterr().out


def test_a_number_in_use_for_other_contents_is_refused(source, target, capsys):
    put(target, 3)
    before = contents(target / "3")
    assert copy(source, target) == 1
    assert contents(target / "3") == before
    error = capsys.readouterr().err
    assert f"{target}/3: has other contents than {source}" in error
    assert "--version" in error


def test_what_cp_left_half_copied_is_not_taken_for_a_copy(source, target, capsys):
    shutil.copytree(source, target / "3")
    (target / "3" / "variables" / "variables.data").unlink()
    assert copy(source, target) == 1
    assert "variables/variables.data: missing" in capsys.readouterr().err


def test_a_removed_number_is_not_used_again(source, target, capsys):
    put(target, 3)
    with one_writer(target):
        withdraw_version(target, 3)
    assert copy(source, target) == 1
    assert "version 3 existed and was removed" in capsys.readouterr().err


def damage_data(folder):
    (folder / "variables" / "variables.data").write_bytes(b"half")


def move_outside(path):
    """Leave a link to what was there."""
    outside = path.parents[1] / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def pipe_for_manifest(folder):
    (folder / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST)


UNREADABLE = "has no readable assets.extra/manifest.json"
NOT_COPIED = {
    "damaged": (damage_data, "contradicts its manifest: variables/variables.data: cha"),
    "incomplete": (
        lambda folder: shutil.rmtree(folder / "variables"),
        "variables/variables.data: missing",
    ),
    "a new file": (lambda folder: (folder / "new").write_text(""), "new: new"),
    "a linked file": (
        lambda folder: move_outside(folder / "saved_model.pb"),
        "saved_model.pb: not a file or folder",
    ),
    "a linked folder": (
        lambda folder: move_outside(folder / "variables"),
        "variables: not a file or folder",
    ),
    "a pipe": (
        lambda folder: os.mkfifo(folder / "pipe"),
        "pipe: not a file or folder",
    ),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), UNREADABLE),
    "a pipe for a manifest": (pipe_for_manifest, UNREADABLE),
    "a nested manifest": (
        lambda folder: (folder / MANIFEST).write_text("[" * 100_000),
        UNREADABLE,
    ),
    "a manifest without files": (
        lambda folder: (folder / MANIFEST).write_text('{"format": 1}'),
        UNREADABLE,
    ),
}


@pytest.mark.parametrize(("change", "message"), NOT_COPIED.values(), ids=NOT_COPIED)
def test_an_incomplete_or_foreign_source_is_refused(
    source, target, capsys, change, message
):
    change(source)
    assert copy(source, target) == 1
    assert message in capsys.readouterr().err
    assert names(target) == []


def test_a_source_that_changes_meanwhile_is_not_published(source, target):
    def change(doing):
        if doing.startswith("copying"):
            damage_data(source)

    (source / "saved_model.pb").rename(source / "a.pb")  # copied before the data
    manifest.write(source, {"export_format": "savedmodel"})
    with pytest.raises(CommandError, match="has changed while it was copied: var"):
        copy_version(source, target, 3, change)
    assert names(target) == [".lock"]


def test_a_full_disk_leaves_nothing(source, target, full_disk):
    """As far as it can be had here: no file may become larger than half of one."""
    with (
        full_disk(50_000),
        pytest.raises(CommandError, match=f"^{target}/3: not copied.*: File too"),
    ):
        copy_version(source, target, 3, lambda _: None)
    assert names(target) == [".lock"]


def test_a_kill_at_any_step_leaves_a_complete_version_or_none(source, tmp_path):
    """At each step in turn, until a copy gets through."""
    targets = killed_forks.folders("copies", tmp_path / "to", str(source))
    outcomes = [versions(target) for target in targets]
    for target, outcome in zip(targets, outcomes, strict=True):
        if outcome:
            assert contents(target / "3") == contents(source)
    assert outcomes.count([]) > 5
    assert [3] in outcomes[:-1]


def test_a_kill_in_the_middle_of_a_file_is_swept_by_the_next_copy(source, target):
    run(
        "copied = []\n"
        "def stop(doing):\n"
        "    copied.extend([doing] if doing.startswith('copying') else [])\n"
        "    if len(copied) == 2: os._exit(0)\n"
        "copy_version(source, target, 3, stop)\n"
        "sys.exit('not stopped')\n",
        source,
        target,
    )
    [left] = target.glob(f"{STAGING}*")
    assert versions(target) == []
    assert contents(left)
    assert copy(source, target) == 0
    assert names(target) == [".lock", "3"]


def test_a_models_folder_is_copied_newest_first_and_resumed(source, target, capsys):
    put(source.parent)
    put(source.parent)
    (source.parent / ".staging-of-a-killed-export").mkdir()
    copy(source, target)
    capsys.readouterr()
    assert copy(source.parent, target) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        f"{target}/{number}" for number in (5, 4, 3)
    ]
    assert "is there already" in lines[-1]
    assert names(target) == [".lock", "3", "4", "5"]


def test_a_version_that_cannot_be_copied_does_not_stop_the_others(
    source, target, capsys
):
    damage_data(put(source.parent))
    assert copy(source.parent, target) == 1
    assert versions(target) == [3]
    error = capsys.readouterr().err
    assert error.startswith(f"keras-vit copy: {source.parent}/4: contradicts")
    assert error.count("\n") == 1


def test_formats_are_not_mixed(source, target, capsys):
    put(target, 1, "onnx")
    assert copy(source, target) == 1
    assert "all versions of a folder must be of one format" in capsys.readouterr().err
    assert versions(target) == [1]


def test_wrong_folders_are_refused(source, target, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "runs" / "digits").mkdir(parents=True)
    for arguments, status, message in (
        ((tmp_path / "none", target), 1, "none: no such folder"),
        ((tmp_path / "runs", target), 1, "runs: has no versions"),
        ((source, target / "3"), 2, "TO must be a model's folder"),
        ((source, source.parent.parent), 1, "must hold versions only"),
        ((source, tmp_path / "file"), 1, "cannot be written: it is a file"),
        ((source, tmp_path / "file" / "vit"), 1, "Not a directory"),
        ((source, "gs://bucket/vit"), 2, "must be a folder on this machine"),
        ((source.parent, target, "--version", "1"), 2, "needs a single version"),
        ((source, target, "--version", "0"), 2, "must be a number from 1"),
    ):
        assert copy(*arguments) == status, arguments
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert not target.exists()


def test_a_large_file_needs_little_memory(source, target):
    """A file of 80 MB, in a process that may have 40 MB more than before."""
    with (source / "variables" / "variables.data").open("wb") as file:
        file.truncate(80_000_000)
    manifest.write(source, {"export_format": "savedmodel"})

    run(
        "used = int(pathlib.Path('/proc/self/statm').read_text().split()[0])\n"
        "limit = used * resource.getpagesize() + 40_000_000\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "copy_version(source, target, 3, lambda _: None)\n",
        source,
        target,
    )
    assert versions(target) == [3]
