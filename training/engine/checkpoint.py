"""Checkpoints of a run: a kill at any moment costs at most the newest one.

Keras saves neither dropout seeds nor the state of callbacks (keras#19796), so a
checkpoint here is everything that the next step depends on:

00000120.npz    after step 120: the arrays, and metadata about the run
00000120.json   its commit marker, written last: the size and the SHA-256 of that file

A checkpoint is complete where both files exist and agree.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  registers the name bfloat16 with NumPy
import numpy as np
from etils import epath

from keras_vit.typing import Array, Arrays

from .. import storage
from ..errors import RunError
from ..recipe import Recipe, changed_values, parse_recipe
from .progress import Logs

META = "__meta__"  # entry of the .npz that holds the metadata, as JSON
MARKER = ".json"  # the suffix of a commit marker
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
# What has happened where a value of `Owner` is another one.
CHANGED = {
    "images": "other images: some were added, removed or renamed",
    "contents": "other images: the contents of some training or validation images have "
    "changed",
    "frozen": "a classifier on other frozen weights: those of `model.weights` have "
    "changed",
}


@dataclass(frozen=True)
class Owner:
    """The run that a checkpoint belongs to."""

    recipe: str  # YAML, with one epoch, as a run can be extended
    backend: str = "tensorflow"  # Keras's
    workers: int = 1  # processes that train together
    replicas: int = 1  # copies of the model in each of them
    images: str = ""  # the `names_fingerprint` of its data
    contents: str = ""  # the `contents_fingerprint`
    # With `data.cache_features`, the `weights_fingerprint` of the model; they are not
    # in the checkpoint.
    frozen: str = ""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run after a step."""

    step: int  # steps of the whole run that are done
    arrays: Arrays  # all that the next step depends on, by name
    owner: Owner
    # One row for each finished epoch.
    history: list[Logs] = dataclasses.field(default_factory=list)
    seconds: float = 0.0  # so far, of the unfinished epoch
    # The training figures of an epoch that is not evaluated yet.
    logs: Logs = dataclasses.field(default_factory=dict)


class IncompleteError(Exception):
    """A checkpoint is incomplete or damaged."""


def fingerprint(recipe: Recipe) -> str:
    """A hash of the whole recipe, as 16 hexadecimal digits."""
    return hashlib.sha256(recipe.to_yaml().encode()).hexdigest()[:16]


def save(folder: epath.PathLike, checkpoint: Checkpoint, keep: int = 3) -> bool:
    """Write a checkpoint, and after that delete incomplete ones and all but `keep`.

    On a full disk what a kill left is deleted before it is written and, where that is
    not enough, all checkpoints but the newest. Where a checkpoint cannot be written
    even so (an unreachable bucket) or must not be kept (non-finite arrays), a warning
    is printed: the training continues, and the last good checkpoint stays.

    Returns:
        Whether the checkpoint was written.
    """
    folder, step = epath.Path(folder), checkpoint.step
    bad = [name for name, a in checkpoint.arrays.items() if not is_finite(a)]
    if bad:
        _warn(f"no checkpoint of step {step}: {bad[0]} is not finite")
        return False
    try:
        if not _is_written(folder, checkpoint):
            _make_room_and_write(folder, checkpoint)
    except OSError as error:
        _warn(f"no checkpoint of step {step}, the training continues: {error}")
        return False
    _prune(folder, step, keep)
    return True


def latest(folder: epath.PathLike) -> Checkpoint | None:
    """Read the newest complete checkpoint; warn of every newer incomplete one.

    Raises:
        OSError: A checkpoint cannot be read, but may be complete. Resuming from an
            older one would delete it.
    """
    folder = epath.Path(folder)
    for step in reversed(_steps(folder)):
        try:
            return _read(folder, step)
        except IncompleteError as reason:
            _warn(f"{_data(folder, step)}: incomplete, skipped: {reason}")
    return None


def restore(
    folder: epath.PathLike, owner: Owner, state: Mapping[str, Array]
) -> Checkpoint | None:
    """Read the newest complete checkpoint, and check that it fits this run.

    It must be of the same owner, with the names, shapes and types of `state`.

    Returns:
        The checkpoint, or None where there is no marker of one.

    Raises:
        RunError: It belongs to another recipe, to another number of workers or
            replicas, or to another model; or all of them are damaged.
        OSError: It cannot be read.
    """
    checkpoint = latest(folder)
    if checkpoint is not None:
        path = _data(epath.Path(folder), checkpoint.step)
        _check_owner(path, checkpoint.owner, owner)
        _check_arrays(path, checkpoint.arrays, state)
    elif any(name.endswith(MARKER) for name in _names(epath.Path(folder))):
        # Written last: a kill leaves none without a complete checkpoint.
        raise RunError(
            f"{folder}: all checkpoints are damaged; `fit --overwrite` begins a new run"
        )
    return checkpoint


def newest_committed(folder: epath.PathLike) -> epath.Path | None:
    """The newest checkpoint whose two files exist; `latest` compares them too."""
    steps = _committed(epath.Path(folder))
    return _data(epath.Path(folder), steps[-1]) if steps else None


def stored_workers(folder: epath.PathLike) -> int | None:
    """The number of workers of the newest checkpoint; None without a readable one."""
    newest = newest_committed(folder)
    if newest is None:
        return None
    try:
        with storage.local_copy(newest) as local, np.load(local) as stored:
            workers: int = json.loads(str(stored[META]))["owner"]["workers"]
            return workers
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


def is_finite(array: Array) -> bool:
    """Whether an array has no infinite value and no NaN."""
    # V is NumPy's kind of bfloat16.
    return array.dtype.kind not in "fV" or bool(np.isfinite(array).all())


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def _data(folder: epath.Path, step: int) -> epath.Path:
    return folder / f"{step:08d}.npz"


def _marker(folder: epath.Path, step: int) -> epath.Path:
    return folder / f"{step:08d}{MARKER}"


def _make_room_and_write(folder: epath.Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; on a full disk, delete others and retry."""
    try:
        _write(folder, checkpoint)
    except OSError as error:
        full = error.errno in FULL_DISK
        if not full or not _make_room(folder, checkpoint.step, error):
            raise
        _make_room_and_write(folder, checkpoint)  # each time there are fewer files


def _make_room(folder: epath.Path, step: int, error: OSError) -> bool:
    """Delete what a kill left or, without that, all but the newest older checkpoint.

    Returns:
        Whether anything was deleted.
    """
    before = _names(folder)
    older = [other for other in _committed(folder) if other < step]
    _prune(folder, step, keep=len(older))
    if len(_names(folder)) == len(before) and len(older) > 1:
        _warn(f"{error}: only the newest checkpoint is kept")
        _prune(folder, step, keep=1)
    return len(_names(folder)) < len(before)


def _write(folder: epath.Path, checkpoint: Checkpoint) -> None:
    """Write the arrays, and then the marker; on an error leave neither."""
    meta = dataclasses.asdict(dataclasses.replace(checkpoint, arrays={}))
    meta["arrays"] = {name: a.dtype.name for name, a in checkpoint.arrays.items()}
    arrays = {**checkpoint.arrays, META: np.array(json.dumps(meta))}
    with storage.os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with storage.atomic_write(_data(folder, checkpoint.step)) as local:
        np.savez(local, allow_pickle=False, **arrays)
        marker = {
            "step": checkpoint.step,
            "bytes": local.stat().st_size,
            "sha256": _digest(local),
            "evaluated": not checkpoint.logs,
        }
    try:
        storage.write_text(_marker(folder, checkpoint.step), json.dumps(marker))
    except OSError:
        _remove(folder, checkpoint.step)
        raise


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(folder: epath.Path, step: int) -> Checkpoint:
    """Read a checkpoint; raise IncompleteError where it is not complete."""
    with _verified_file(folder, step) as local:
        try:
            with np.load(local) as stored:
                meta = json.loads(str(stored[META]))
                types = meta["arrays"]
                # An .npz keeps the bytes of bfloat16, and forgets the name.
                meta["arrays"] = {n: stored[n].view(types[n]) for n in types}
            meta["owner"] = Owner(**meta["owner"])
            return Checkpoint(**meta)
        except (ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise IncompleteError(f"its format is unknown: {error}") from None


@contextlib.contextmanager
def _verified_file(folder: epath.Path, step: int) -> Iterator[Path]:
    """Yield the .npz as a local file; raise IncompleteError unless the marker fits."""
    marker = _read_marker(folder, step)
    with contextlib.ExitStack() as stack:
        try:
            local = stack.enter_context(storage.local_copy(_data(folder, step)))
            size = local.stat().st_size
        except FileNotFoundError:
            raise IncompleteError("only its marker exists") from None
        if size != marker["bytes"]:
            raise IncompleteError(f"it has {size} bytes instead of {marker['bytes']}")
        if _digest(local) != marker["sha256"]:
            raise IncompleteError("its checksum differs from its marker's")
        yield local


def _read_marker(folder: epath.Path, step: int) -> dict[str, Any]:
    try:
        with storage.local_copy(_marker(folder, step)) as local:
            marker = json.loads(local.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IncompleteError("it has no marker, so writing was interrupted") from None
    except ValueError:
        raise IncompleteError("its marker is damaged") from None
    if (
        not isinstance(marker, dict)
        or not {"bytes", "sha256"} <= marker.keys()
        or marker.get("step") != step
    ):
        raise IncompleteError("its marker is damaged")
    return marker


def _is_written(folder: epath.Path, checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint is there; after an evaluation one from before is not."""
    try:
        with _verified_file(folder, checkpoint.step):
            marker = _read_marker(folder, checkpoint.step)
            evaluated: bool = marker.get("evaluated", True)
            return evaluated == (not checkpoint.logs)
    except IncompleteError:
        return False


def _names(folder: epath.Path) -> set[str]:
    with storage.os_errors(folder):
        return {path.name for path in folder.iterdir()} if folder.exists() else set()


def _steps(folder: epath.Path) -> list[int]:
    """The steps of all checkpoints in order, including incomplete ones."""
    stems = {name.partition(".")[0] for name in _names(folder)}
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _committed(folder: epath.Path) -> list[int]:
    """The steps of the checkpoints that have both files, in order."""
    names = _names(folder)
    return [
        step
        for step in _steps(folder)
        if {_data(folder, step).name, _marker(folder, step).name} <= names
    ]


def _prune(folder: epath.Path, newest: int, keep: int) -> None:
    """Delete all but the `keep` newest complete checkpoints up to `newest`.

    One of a later step was found incomplete when the run resumed, even if its marker
    exists.
    """
    kept = [step for step in _committed(folder) if step <= newest][-keep:]
    for step in _steps(folder):
        if step not in kept:
            _remove(folder, step)
    storage.remove_unfinished(folder)


def _remove(folder: epath.Path, step: int) -> None:
    """Delete a checkpoint; its marker first, as a kill may come in between."""
    storage.remove(_marker(folder, step))
    storage.remove(_data(folder, step))


def _check_owner(path: epath.Path, stored: Owner, owner: Owner) -> None:
    if changes := _changed_values(path, stored.recipe, owner.recipe):
        raise RunError(
            f"{path}: checkpoint of another recipe: {'; '.join(changes)}. Change "
            "recipe.yaml back, or begin a new run with --overwrite"
        )
    if stored.backend != owner.backend:
        raise RunError(
            f"{path}: checkpoint of another backend. KERAS_BACKEND must be "
            f"{stored.backend}. Received: {owner.backend}"
        )
    for name, other in CHANGED.items():
        if getattr(stored, name) != getattr(owner, name):
            raise RunError(f"{path}: checkpoint of {other} since the run began")
    if _topology(stored) != _topology(owner):
        raise RunError(
            f"{path}: checkpoint of {_topology(stored)}; this run has "
            f"{_topology(owner)}"
        )


def _changed_values(path: epath.Path, stored: str, ours: str) -> list[str]:
    """The values in which two recipes differ; one without an option has its default."""
    if stored == ours:
        return []
    there = parse_recipe(stored, str(path))
    return changed_values(there, parse_recipe(ours, "this run's recipe"))


def _topology(owner: Owner) -> str:
    return f"{owner.workers} worker(s) with {owner.replicas} replica(s) each"


def _check_arrays(
    path: epath.Path, stored: Mapping[str, Array], state: Mapping[str, Array]
) -> None:
    """Raise RunError with the first differences unless names, types, shapes agree."""
    names = [*state, *(name for name in stored if name not in state)]
    different = [
        f"{name} is {_type(stored.get(name))}, this run's {_type(state.get(name))}"
        for name in names
        if _type(stored.get(name)) != _type(state.get(name))
    ]
    if different:
        more = f"; {len(different) - 3} more differ" if len(different) > 3 else ""
        raise RunError(
            f"{path}: checkpoint of another model: {'; '.join(different[:3])}{more}"
        )


def _type(array: Array | None) -> str:
    return "absent" if array is None else f"{array.dtype.name} {array.shape}"
