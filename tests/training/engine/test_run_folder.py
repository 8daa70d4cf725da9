"""The folder of a run, on a disk and in a bucket, also after a kill."""

import csv
import json
import os
import socket
import subprocess
import sys
import tempfile

import pytest
from etils import epath
from fake_bucket import names

from training.engine import run_folder
from training.errors import RunError
from training.recipe import DataConfig, Recipe

RECIPE = Recipe(data=DataConfig("digits"))
OTHER = Recipe(data=DataConfig("digits"), seed=5)


@pytest.fixture
def folder(root):
    return root / "runs" / "a"


def test_a_new_folder_gets_the_recipe(folder):
    run_folder.prepare_folder(folder, RECIPE, resume=False, overwrite=False)
    assert (folder / "recipe.yaml").read_text() == RECIPE.to_yaml()
    assert names(folder) == ["recipe.yaml"]


@pytest.fixture
def folder_of_another():
    """A run's folder that this process, then not root's, may read but not write."""
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        folder = epath.Path(parent) / "runs"
        run_folder.prepare_folder(folder, RECIPE, resume=False, overwrite=False)
        user = os.geteuid()
        os.chmod(parent, 0o755)
        os.chmod(folder, 0o555)
        if user == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(user)
            os.chmod(folder, 0o755)


def test_a_folder_without_permission_is_refused_before_anything_is_read(
    folder_of_another,
):
    for check in (
        lambda: run_folder.check_folder(folder_of_another / "new", RECIPE, False, True),
        lambda: run_folder.check_folder(folder_of_another, RECIPE, False, True),
        lambda: run_folder.check_resumable(folder_of_another, None),
    ):
        with pytest.raises(RunError, match="cannot be written: Permission denied"):
            check()
    assert names(folder_of_another) == ["recipe.yaml"]


def test_a_run_resumes_only_with_its_own_recipe(folder):
    run_folder.prepare_folder(folder, RECIPE, resume=False, overwrite=False)
    run_folder.prepare_folder(folder, RECIPE, resume=True, overwrite=False)
    with pytest.raises(RunError, match="`seed` is 0 there and 5 here"):
        run_folder.prepare_folder(folder, OTHER, resume=True, overwrite=False)
    with pytest.raises(
        RunError, match="contains an unfinished run; `keras-vit resume .*` continues"
    ):
        run_folder.prepare_folder(folder, RECIPE, resume=False, overwrite=False)


def test_a_finished_run_is_neither_resumed_nor_overwritten(folder):
    run_folder.prepare_folder(folder, RECIPE, resume=False, overwrite=False)
    run_folder.write_report(folder / "report.json", {"accuracy": 0.9, "title": "grün"})
    for resume in (False, True):
        with pytest.raises(RunError, match="contains a finished run; .* --overwrite"):
            run_folder.prepare_folder(folder, RECIPE, resume=resume, overwrite=False)
    report = json.loads((folder / "report.json").read_text())
    assert report == {"accuracy": 0.9, "title": "grün"}


def test_overwriting_deletes_the_run_and_its_recipe_last(folder, monkeypatch):
    run_folder.prepare_folder(folder, RECIPE, resume=False, overwrite=False)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "00000001.npz").write_text("data")
    (folder / "history.csv").write_text("data")
    left = []
    original = epath.gpath.PosixGPath.unlink

    def unlink(path, *args, **kwargs):
        if path.name == "recipe.yaml":
            left.append(names(folder))
        original(path, *args, **kwargs)

    monkeypatch.setattr(epath.gpath.PosixGPath, "unlink", unlink)
    run_folder.prepare_folder(folder, OTHER, resume=False, overwrite=True)
    assert left == [["recipe.yaml"]]
    assert names(folder) == ["recipe.yaml"]
    assert (folder / "recipe.yaml").read_text() == OTHER.to_yaml()


def test_overwriting_does_not_follow_links(tmp_path):
    folder = tmp_path / "run"
    run_folder.prepare_folder(folder, RECIPE, resume=False, overwrite=False)
    (tmp_path / "large_disk").mkdir()
    (tmp_path / "large_disk" / "precious").write_text("data")
    (folder / "checkpoints").symlink_to(tmp_path / "large_disk")
    run_folder.prepare_folder(folder, RECIPE, resume=False, overwrite=True)
    assert names(folder) == ["recipe.yaml"]
    assert (tmp_path / "large_disk" / "precious").exists()


def test_a_folder_that_is_not_a_run_is_not_touched(folder):
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("")
    for overwrite in (False, True):
        with pytest.raises(RunError, match="is not a run"):
            run_folder.prepare_folder(folder, RECIPE, resume=True, overwrite=overwrite)
    assert names(folder) == ["thesis.tex"]


def test_a_run_killed_while_writing_its_recipe_can_start_again(
    tmp_path, leave_unfinished
):
    leave_unfinished(tmp_path / "recipe.yaml")
    run_folder.prepare_folder(tmp_path, RECIPE, resume=True, overwrite=False)
    assert names(tmp_path) == ["recipe.yaml"]
    assert (tmp_path / "recipe.yaml").read_text() == RECIPE.to_yaml()


def test_a_run_that_continues_deletes_what_a_kill_left(tmp_path, leave_unfinished):
    run_folder.prepare_folder(tmp_path, RECIPE, resume=False, overwrite=False)
    leave_unfinished(tmp_path / "best.keras")
    run_folder.prepare_folder(tmp_path, RECIPE, resume=True, overwrite=False)
    assert names(tmp_path) == ["recipe.yaml"]


def test_what_a_kill_left_stays_in_a_folder_that_is_not_a_run(
    tmp_path, leave_unfinished
):
    (tmp_path / "thesis.tex").write_text("")
    leave_unfinished(tmp_path / "best.keras")
    with pytest.raises(RunError, match="is not a run"):
        run_folder.prepare_folder(tmp_path, RECIPE, resume=True, overwrite=True)
    assert len(names(tmp_path)) == 2


def test_a_link_instead_of_the_lock_is_not_followed(tmp_path):
    """In a folder that others may write, it would empty any file of ours."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(precious)
    with (
        pytest.raises(RunError, match="run: cannot be written: .*symbolic link"),
        run_folder.locked(tmp_path / "run"),
    ):
        pass
    assert precious.read_text() == "mine"


def test_a_file_instead_of_the_folder_is_a_one_line_error(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match="is not a run|cannot be written"):
            run_folder.prepare_folder(path, RECIPE, resume=False, overwrite=False)


def test_an_unreachable_bucket_is_a_one_line_error(bucket):
    bucket.unreachable = "gs://"
    with pytest.raises(RunError, match="cannot be written: the network is down"):
        run_folder.prepare_folder(
            "gs://bucket/run", RECIPE, resume=True, overwrite=False
        )


def test_the_history_is_a_table(folder):
    folder.mkdir(parents=True)
    rows = [{"epoch": 1, "loss": 0.25}, {"epoch": 2, "loss": 0.125}]
    run_folder.write_history(folder / "history.csv", rows)
    table = list(csv.DictReader((folder / "history.csv").read_text().splitlines()))
    assert table == [{"epoch": "1", "loss": "0.25"}, {"epoch": "2", "loss": "0.125"}]


def test_a_model_is_saved_atomically(folder, tiny_vit):
    folder.mkdir(parents=True)
    model = tiny_vit(preprocessing=None)
    run_folder.save_model(model, folder / "best.keras")
    assert names(folder) == ["best.keras"]
    assert (folder / "best.keras").read_bytes()[:2] == b"PK"


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a+")
file.write("process 7 on farm, since noon,")
file.flush()
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_lock_names_its_process_and_dies_with_it(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    command = [sys.executable, "-c", HOLDER, folder / ".lock"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        message = "process 7 on farm, since noon, trains there; wait until it ends"
        for overwrite in (False, True):
            with pytest.raises(RunError, match=message):
                run_folder.check_folder(folder, RECIPE, True, overwrite)
        with pytest.raises(RunError, match=message), run_folder.locked(folder):
            pass
        holder.kill()
    assert run_folder.check_folder(folder, RECIPE, True, False) is None


def test_the_lock_says_who_holds_it_and_since_when(tmp_path):
    folder = tmp_path / "run"
    holder = rf"process {os.getpid()} on {socket.gethostname()}, since 2\d+-.* UTC, "
    with run_folder.locked(folder):
        with pytest.raises(RunError, match=holder), run_folder.locked(folder):
            pass
        # A run that is deleted stays locked.
        run_folder.prepare_folder(folder, RECIPE, resume=False, overwrite=False)
        run_folder.prepare_folder(folder, OTHER, resume=False, overwrite=True)
        with pytest.raises(RunError, match=holder), run_folder.locked(folder):
            pass
    with run_folder.locked(folder):
        with pytest.raises(RunError) as error, run_folder.locked(folder):
            pass
        assert str(error.value).count("process") == 1


def test_a_full_disk_at_the_lock_names_the_folder(tmp_path, full_disk):
    with (
        full_disk(0),
        pytest.raises(RunError, match="run: cannot be written: File too large"),
        run_folder.locked(tmp_path / "run"),
    ):
        pass


def test_nothing_is_locked_in_a_bucket(bucket):
    folder = epath.Path("gs://bucket/run")
    with run_folder.locked(folder), run_folder.locked(folder):
        assert not folder.exists()


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_run_with_two_epochs_and_no_checkpoint_does_not_begin_anew(folder, rows):
    run_folder.prepare_folder(folder, RECIPE, resume=False, overwrite=False)
    history = [{"epoch": number + 1, "loss": 0.5} for number in range(rows)]
    run_folder.write_history(folder / "history.csv", history)
    if rows < 2:
        assert run_folder.check_folder(folder, RECIPE, True, False) == RECIPE
        return
    with pytest.raises(RunError, match="no checkpoint any more, after 2 epochs"):
        run_folder.check_folder(folder, RECIPE, resume=True, overwrite=False)
    run_folder.check_folder(folder, RECIPE, resume=True, overwrite=True)
