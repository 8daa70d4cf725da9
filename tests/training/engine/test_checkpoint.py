"""Checkpoints: atomicity, pruning, recovery, and rejection of other runs'."""

import dataclasses
import errno
import hashlib
import json

import killed_forks
import numpy as np
import pytest
from etils import epath
from fake_bucket import names
from long_cases import long_after
from small_checkpoints import OWNER, RECIPE, make, state

from keras_vit.common import atomic_files
from training import storage
from training.engine import checkpoint
from training.engine.checkpoint import latest, restore, save
from training.errors import RunError
from training.recipe import DataConfig, OptimizerConfig, Recipe


def files_of(*steps):
    return sorted(f"{step:08d}.{end}" for step in steps for end in ("npz", "json"))


def check_is(loaded, step):
    """Check the step's arrays: bits, shapes and types."""
    expected = state(step)
    assert loaded.step == step
    assert list(loaded.arrays) == list(expected)
    for name, array in expected.items():
        assert loaded.arrays[name].dtype == array.dtype
        assert loaded.arrays[name].shape == array.shape
        assert loaded.arrays[name].tobytes() == array.tobytes()


@pytest.fixture
def folder(root):
    return root / "checkpoints"


def test_a_checkpoint_round_trip_is_bit_exact(folder):
    assert save(folder, make(120))
    loaded = latest(folder)
    check_is(loaded, 120)
    assert (loaded.owner, loaded.history) == (OWNER, [{"epoch": 1, "loss": 120.1}])
    assert names(folder) == files_of(120)


def test_numpy_alone_reads_the_arrays(tmp_path):
    save(tmp_path, make(7))
    with np.load(tmp_path / "00000007.npz") as arrays:
        np.testing.assert_array_equal(arrays["model_0"], state(7)["model_0"])


def test_latest_is_none_without_checkpoints(folder):
    assert latest(folder) is None
    assert checkpoint.newest_committed(folder) is None
    assert restore(folder, OWNER, state(0)) is None


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_complete_checkpoints_are_kept(folder, keep):
    for step in (5, 40, 100000000, 200000000):
        save(folder, make(step), keep)
    assert names(folder) == files_of(*[5, 40, 100000000, 200000000][-keep:])
    assert checkpoint.newest_committed(folder) == folder / "200000000.npz"
    check_is(latest(folder), 200000000)


# Incomplete files. The newest of two checkpoints is damaged.


MARKER, DATA = "00000002.json", "00000002.npz"


def cut(share):
    return rewrite(DATA, lambda data: data[: int(len(data) * share)])


def flip(share):
    def flipped(data):
        place = int(len(data) * share)
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    return rewrite(DATA, flipped)


def rewrite(name, new):
    """A function that deletes a file, or gives it other bytes."""

    def damage(folder):
        data = (folder / name).read_bytes()
        (folder / name).unlink()
        if new is not None:
            (folder / name).write_bytes(new(data) if callable(new) else new)

    return damage


SHARES = [0.0, 0.5, 0.9999]
DAMAGES = {
    **{f"cut at {share}": (cut(share), "bytes instead of") for share in SHARES},
    **{f"bit at {share}": (flip(share), "its checksum differs") for share in SHARES},
    "no marker": (rewrite(MARKER, None), "it has no marker"),
    "no data": (rewrite(DATA, None), "only its marker exists"),
    "empty marker": (rewrite(MARKER, b""), "its marker is damaged"),
    "half a marker": (rewrite(MARKER, b'{"step": 2, "byt'), "its marker is damaged"),
    "a marker of JSON": (rewrite(MARKER, b"[3]"), "its marker is damaged"),
    "not text": (rewrite(MARKER, "\x00\ud7ff".encode()), "its marker is damaged"),
    "another's marker": (
        rewrite(MARKER, b'{"step": 1, "bytes": 9, "sha256": "a"}'),
        "its marker is damaged",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_an_incomplete_checkpoint_is_reported_and_the_previous_one_used(
    folder, name, capsys
):
    damage, reason = DAMAGES[name]
    save(folder, make(1))
    save(folder, make(2))
    damage(folder)
    check_is(latest(folder), 1)
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1
    assert str(folder / "00000002.npz") in warnings[0]
    assert reason in warnings[0]


def test_a_file_of_an_unknown_format_is_skipped(tmp_path, capsys):
    save(tmp_path, make(1))
    save(tmp_path, make(2))
    np.savez(tmp_path / DATA, other=np.zeros(3))
    data = (tmp_path / DATA).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    marker = {"step": 2, "bytes": len(data), "sha256": digest}
    (tmp_path / MARKER).write_text(json.dumps(marker))
    check_is(latest(tmp_path), 1)
    assert "its format is unknown" in capsys.readouterr().err


def test_incomplete_checkpoints_are_deleted_only_after_the_next_is_complete(
    folder, capsys, leave_unfinished
):
    for step in (1, 2, 3):
        save(folder, make(step))
    rewrite("00000002.json", None)(folder)
    if not storage.is_remote(folder):
        leave_unfinished(folder / "00000009.npz")
    assert latest(folder).step == 3
    assert "00000002.npz" in names(folder)
    save(folder, make(4))
    assert names(folder) == files_of(1, 3, 4)


def test_a_later_incomplete_checkpoint_never_displaces_a_good_one(folder):
    """Its marker and size are right, but a bit was flipped on the disk."""
    save(folder, make(1), keep=1)
    save(folder, make(2), keep=2)
    flip(0.5)(folder)
    assert latest(folder).step == 1
    save(folder, make(1), keep=1)
    assert names(folder) == files_of(1)
    check_is(latest(folder), 1)


def test_a_good_checkpoint_is_not_written_twice(folder):
    """Else a kill between its two files would leave an incomplete one."""
    save(folder, make(3))
    before = (folder / "00000003.npz").read_bytes()
    assert save(folder, make(3, arrays=state(4)))
    assert (folder / "00000003.npz").read_bytes() == before


def test_an_incomplete_checkpoint_of_the_same_step_is_rewritten(folder):
    save(folder, make(2))
    flip(0.5)(folder)
    assert save(folder, make(2))
    check_is(latest(folder), 2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", ["model_0", "model_1"])
def test_non_finite_arrays_are_never_saved(tmp_path, capsys, place, value):
    save(tmp_path, make(1))
    arrays = state(2)
    arrays[place].flat[1] = value
    assert save(tmp_path, make(2, arrays=arrays), keep=1) is False
    assert names(tmp_path) == files_of(1)
    assert f"no checkpoint of step 2: {place} is not finite" in capsys.readouterr().err


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_full_disk_is_a_warning_and_keeps_the_last_checkpoint(
    tmp_path, capsys, full_disk, size
):
    save(tmp_path, make(1))
    arrays = {**state(2), "model_0": np.ones((100, 100), "float32")}
    with full_disk(size):
        assert save(tmp_path, make(2, arrays=arrays), keep=1) is False
    assert names(tmp_path) == files_of(1)
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1
    assert "no checkpoint of step 2, the training continues" in warnings[0]
    check_is(latest(tmp_path), 1)
    assert save(tmp_path, make(3), keep=1)
    assert names(tmp_path) == files_of(3)


@pytest.mark.parametrize("calls", [1, 2])
def test_a_disk_full_at_any_write_leaves_nothing_behind(tmp_path, monkeypatch, calls):
    """The data, then the marker. /dev/full is always full."""
    save(tmp_path, make(1))
    left = [calls]

    def flush(path):
        if path.suffix:
            left[0] -= 1
            if left[0] == 0:
                with open("/dev/full", "wb", buffering=0) as full:
                    full.write(b"x")

    monkeypatch.setattr(atomic_files, "flush", flush)
    assert save(tmp_path, make(2), keep=1) is False
    assert names(tmp_path) == files_of(1)


def test_an_interrupted_copy_keeps_the_last_good_checkpoint(bucket, capsys):
    folder = epath.Path("gs://bucket/checkpoints")
    save(folder, make(1))
    bucket.break_copy_after = 300
    assert save(folder, make(2), keep=1) is False
    bucket.break_copy_after = None
    assert names(folder) == files_of(1)
    assert "the network broke off" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["gs://", ".npz", ".json"])
def test_an_unreachable_bucket_stops_a_resume_but_not_training(bucket, capsys, part):
    """Skipping an unreadable one would restart the run and delete it."""
    folder = epath.Path("gs://bucket/checkpoints")
    save(folder, make(1))
    bucket.unreachable = part
    assert save(folder, make(2), keep=1) is False
    assert "the network is down" in capsys.readouterr().err
    with pytest.raises(OSError, match="the network is down"):
        latest(folder)
    bucket.unreachable = None
    check_is(latest(folder), 1)


@pytest.mark.parametrize("keep", long_after(1, [3, 1]))
def test_a_kill_during_a_save_leaves_the_old_or_the_new_checkpoint(tmp_path, keep):
    """At each change of the folder in turn, until a save gets through."""
    found = []
    for folder in killed_forks.folders("saves", tmp_path, str(keep)):
        loaded = latest(folder)
        check_is(loaded, loaded.step)
        found.append(loaded.step)
        assert save(folder, make(3), keep)
        kept = sorted({1, loaded.step, 3})[-keep:]
        assert names(folder) == files_of(*kept)
    assert len(found) > 10
    assert found == sorted(found)
    assert set(found) == {1, 2}


# Checkpoints of other runs.


def test_a_checkpoint_of_another_model_is_rejected(folder):
    save(folder, make(2))
    arrays = {**state(2, size=11), "model_9": np.zeros(2, "float32")}
    del arrays["seed_0"]
    with pytest.raises(RunError, match="checkpoint of another model") as error:
        restore(folder, OWNER, arrays)
    assert str(error.value).startswith(f"{folder / DATA}: ")
    for difference in (
        "model_0 is float32 (7, 5), this run's float32 (11, 5)",
        "model_9 is absent, this run's float32 (2,)",
        "seed_0 is uint32 (2,), this run's absent",
    ):
        assert difference in str(error.value)
    assert "\n" not in str(error.value)


def test_only_the_first_differences_are_listed(tmp_path):
    save(tmp_path, make(2))
    arrays = {name: np.zeros(1, "int8") for name in state(2)}
    with pytest.raises(RunError, match="; 1 more differ$"):
        restore(tmp_path, OWNER, arrays)


def test_a_checkpoint_of_another_dtype_is_rejected(tmp_path):
    save(tmp_path, make(2))
    arrays = {**state(2), "model_1": np.zeros(3, "float32")}
    with pytest.raises(RunError, match=r"model_1 is bfloat16 \(3,\)"):
        restore(tmp_path, OWNER, arrays)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"recipe": RECIPE.replace("\nseed: 0", "\nseed: 5")},
            "another recipe: `seed` is 0 there and 5 here. Change recipe.yaml back",
        ),
        ({"backend": "jax"}, "KERAS_BACKEND must be tensorflow. Received: jax"),
        ({"workers": 3}, r"2 worker\(s\) with 3 .* has 3 worker\(s\) with 3"),
        ({"replicas": 4}, r"2 worker\(s\) with 3 .* has 2 worker\(s\) with 4"),
        ({"images": "a"}, "some were added, removed or renamed"),
        ({"contents": "a"}, "the contents of some .* have changed"),
    ],
)
def test_a_checkpoint_of_another_run_is_rejected(tmp_path, changes, message):
    save(tmp_path, make(2))
    owner = dataclasses.replace(OWNER, **changes)
    with pytest.raises(RunError, match=message):
        restore(tmp_path, owner, state(2))


def test_an_option_that_an_older_recipe_lacks_has_its_default(tmp_path):
    older = RECIPE.replace("accumulation: 1\n", "")
    assert older != RECIPE
    owner = dataclasses.replace(OWNER, recipe=older)
    save(tmp_path, dataclasses.replace(make(2), owner=owner))
    check_is(restore(tmp_path, OWNER, state(2)), 2)


@pytest.mark.parametrize("name", [name for name in DAMAGES if name != "no marker"])
def test_a_run_of_which_all_checkpoints_are_damaged_does_not_begin_anew(
    folder, name, capsys
):
    save(folder, make(2))
    DAMAGES[name][0](folder)
    with pytest.raises(
        RunError, match="all checkpoints are damaged; `fit --overwrite`"
    ):
        restore(folder, OWNER, state(2))


def test_a_kill_in_the_first_checkpoint_leaves_a_run_that_begins_anew(folder, capsys):
    save(folder, make(2))
    DAMAGES["no marker"][0](folder)
    assert restore(folder, OWNER, state(2)) is None


def test_the_number_of_workers_is_read_alone(folder):
    assert checkpoint.stored_workers(folder) is None
    save(folder, make(2))
    assert checkpoint.stored_workers(folder) == 2


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A function that makes the disk full with so many .npz files."""
    original = np.savez

    def set_room(count):
        def savez(path, **arrays):
            others = set(tmp_path.rglob("*.npz")) - {path}
            if len(others) >= count:
                path.write_bytes(b"half")
                raise OSError(errno.ENOSPC, "No space left on device")
            original(path, **arrays)

        monkeypatch.setattr(np, "savez", savez)

    return set_room


@pytest.mark.parametrize("complete", [(1,), (1, 2)])
def test_a_full_disk_gets_room_from_what_a_kill_left(
    tmp_path, room, capsys, leave_unfinished, complete
):
    for step in complete:
        save(tmp_path, make(step))
    leave_unfinished(tmp_path / "00000007.npz")
    (tmp_path / "00000005.npz").write_text("without its marker")
    room(len(complete) + 1)
    assert save(tmp_path, make(4))
    assert names(tmp_path) == files_of(*complete, 4)
    assert capsys.readouterr().err == ""


def test_a_full_disk_with_one_checkpoint_is_not_tried_for_ever(tmp_path, room, capsys):
    save(tmp_path, make(1))
    room(1)
    assert not save(tmp_path, make(2))
    assert names(tmp_path) == files_of(1)
    assert "no checkpoint of step 2, the training" in capsys.readouterr().err


def test_a_full_disk_gets_room_from_older_checkpoints(tmp_path, room, capsys):
    for step in (1, 2, 3):
        save(tmp_path, make(step))
    room(2)
    assert save(tmp_path, make(4))
    assert names(tmp_path) == files_of(3, 4)
    [line] = capsys.readouterr().err.splitlines()
    assert f"No space left on device: '{tmp_path / '00000004.npz'}'" in line


def test_a_checkpoint_that_fits_is_restored(tmp_path):
    save(tmp_path, make(2))
    check_is(restore(tmp_path, OWNER, state(9)), 2)


def test_every_change_of_a_recipe_changes_its_fingerprint():
    data = DataConfig("digits")
    recipes = [
        Recipe(data=data),
        Recipe(data=data, seed=1),
        Recipe(data=data, optimizer=OptimizerConfig(ema=0.9)),
        Recipe(data=DataConfig("digits", split_seed=1)),
    ]
    fingerprints = {checkpoint.fingerprint(recipe) for recipe in recipes}
    assert len(fingerprints) == 4
    assert checkpoint.fingerprint(Recipe(data=data)) in fingerprints
