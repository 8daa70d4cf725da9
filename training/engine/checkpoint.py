"""Checkpoints of a run: a kill at any moment costs at most the newest one.

Keras stores neither the seeds of dropout nor what callbacks remember (keras#19796), so
a checkpoint here is everything that the next step depends on:

00000120.npz    after step 120: the arrays, and the run they belong to
00000120.json   its commit marker, written last: the size and the SHA-256 of that file

A checkpoint counts where both are there and agree; every other one is torn.
"""

import contextlib
import dataclasses
import hashlib
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  NumPy learns the name bfloat16 from it
import numpy as np
from etils import epath

from .. import storage
from ..errors import RunError
from ..recipe import Recipe

# The place in the .npz of all that is no array, as JSON.
META = "__meta__"


@dataclass(frozen=True)
class Owner:
    """The run that a checkpoint belongs to.

    Args:
        recipe: The recipe's `fingerprint`.
        workers: Processes that train together.
        replicas: Copies of the model in each of them.
        images: The `images_fingerprint` of its data.
    """

    recipe: str
    workers: int = 1
    replicas: int = 1
    images: str = ""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a run after a step.

    Args:
        step: Steps of the whole run that are done.
        arrays: Everything that the next step depends on, by name.
        owner: The run.
        history: One row for each finished epoch.
        seconds: Time of the epoch that is not finished.
    """

    step: int
    arrays: dict[str, np.ndarray]
    owner: Owner
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


class TornError(Exception):
    """A checkpoint that does not count, and why."""


def fingerprint(recipe: Recipe) -> str:
    """A short name of the whole recipe; every change of a value changes it."""
    return hashlib.sha256(recipe.to_yaml().encode()).hexdigest()[:16]


def save(folder: epath.PathLike, checkpoint: Checkpoint, keep: int = 3) -> bool:
    """Writes a checkpoint; then, and only then, deletes the old and the torn ones.

    A checkpoint that cannot be written (a full disk, a bucket out of reach) and one
    that is not worth it (numbers that are not finite) cost one line on stderr: the
    training goes on, and the last good checkpoint stays.

    Args:
        folder: The checkpoints' folder; made where it does not exist.
        checkpoint: The state to save.
        keep: How many complete checkpoints stay, this one included.

    Returns:
        Whether the checkpoint is there.
    """
    folder, step = epath.Path(folder), checkpoint.step
    spoilt = [name for name, a in checkpoint.arrays.items() if not is_finite(a)]
    if spoilt:
        _warn(f"no checkpoint of step {step}: {spoilt[0]} is not finite")
        return False
    try:
        if not _is_complete(folder, step):
            _write(folder, checkpoint)
    except OSError as error:
        _warn(f"no checkpoint of step {step}, the training goes on: {error}")
        return False
    _prune(folder, step, keep)
    return True


def latest(folder: epath.PathLike) -> Checkpoint | None:
    """Reads the newest complete checkpoint; names every torn one that is newer.

    Raises:
        OSError: A checkpoint may be whole, but cannot be read. Going on with an older
            one would delete it.
    """
    folder = epath.Path(folder)
    for step in reversed(_steps(folder)):
        try:
            return _read(folder, step)
        except TornError as reason:
            _warn(f"{_data(folder, step)}: torn, left out: {reason}")
    return None


def restore(
    folder: epath.PathLike, owner: Owner, state: Mapping[str, np.ndarray]
) -> Checkpoint | None:
    """Reads the newest complete checkpoint, if it fits this run.

    Args:
        folder: The checkpoints' folder.
        owner: This run.
        state: This run's arrays, whose names, shapes and types it must have.

    Returns:
        The checkpoint, or None where there is no complete one.

    Raises:
        RunError: It belongs to another recipe, to another number of workers or
            replicas, or to another model.
        OSError: It cannot be read.
    """
    checkpoint = latest(folder)
    if checkpoint is not None:
        path = _data(epath.Path(folder), checkpoint.step)
        _check_owner(path, checkpoint.owner, owner)
        _check_arrays(path, checkpoint.arrays, state)
    return checkpoint


def last_complete(folder: epath.PathLike) -> epath.Path | None:
    """The file of the newest checkpoint with a marker; its content is not checked."""
    steps = _committed(epath.Path(folder))
    return _data(epath.Path(folder), steps[-1]) if steps else None


def is_finite(array: np.ndarray) -> bool:
    """Whether an array has no infinite number and no NaN."""
    # V is how NumPy sees bfloat16.
    return array.dtype.kind not in "fV" or bool(np.isfinite(array).all())


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


def _data(folder: epath.Path, step: int) -> epath.Path:
    return folder / f"{step:08d}.npz"


def _marker(folder: epath.Path, step: int) -> epath.Path:
    return folder / f"{step:08d}.json"


def _write(folder: epath.Path, checkpoint: Checkpoint) -> None:
    """Writes the arrays, and when they are in their place the marker, or nothing."""
    meta = dataclasses.asdict(dataclasses.replace(checkpoint, arrays={}))
    meta["arrays"] = {name: a.dtype.name for name, a in checkpoint.arrays.items()}
    arrays = {**checkpoint.arrays, META: np.array(json.dumps(meta))}
    with storage.os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with storage.writing(_data(folder, checkpoint.step)) as local:
        np.savez(local, allow_pickle=False, **arrays)
        marker = {
            "step": checkpoint.step,
            "bytes": local.stat().st_size,
            "sha256": _digest(local),
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
    """Raises TornError where the checkpoint does not count."""
    with _whole_file(folder, step) as local:
        try:
            with np.load(local) as stored:
                meta = json.loads(str(stored[META]))
                types = meta["arrays"]
                # An .npz keeps the bytes of bfloat16, and forgets the name.
                meta["arrays"] = {n: stored[n].view(types[n]) for n in types}
            meta["owner"] = Owner(**meta["owner"])
            return Checkpoint(**meta)
        except (ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise TornError(f"it cannot be understood: {error}") from None


@contextlib.contextmanager
def _whole_file(folder: epath.Path, step: int) -> Iterator[Path]:
    """Gives the .npz on a local disk; raises TornError unless the marker fits it."""
    marker = _read_marker(folder, step)
    with contextlib.ExitStack() as stack:
        try:
            local = stack.enter_context(storage.reading(_data(folder, step)))
            size = local.stat().st_size
        except FileNotFoundError:
            raise TornError("there is only its marker") from None
        if size != marker["bytes"]:
            raise TornError(f"it has {size} bytes instead of {marker['bytes']}")
        if _digest(local) != marker["sha256"]:
            raise TornError("its bytes are not those that were written")
        yield local


def _read_marker(folder: epath.Path, step: int) -> dict[str, Any]:
    try:
        with storage.reading(_marker(folder, step)) as local:
            marker = json.loads(local.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TornError("it has no marker, so its writing was never finished") from None
    except ValueError:
        raise TornError("its marker is damaged") from None
    whole = isinstance(marker, dict) and {"bytes", "sha256"} <= marker.keys()
    if not whole or marker.get("step") != step:
        raise TornError("its marker is damaged")
    return marker


def _is_complete(folder: epath.Path, step: int) -> bool:
    try:
        with _whole_file(folder, step):
            return True
    except TornError:
        return False


def _names(folder: epath.Path) -> set[str]:
    with storage.os_errors(folder):
        return {path.name for path in folder.iterdir()} if folder.exists() else set()


def _steps(folder: epath.Path) -> list[int]:
    """The steps of all checkpoints, torn ones included, in order."""
    stems = {name.partition(".")[0] for name in _names(folder)}
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _committed(folder: epath.Path) -> list[int]:
    """The steps of those that have both files."""
    names = _names(folder)
    return [
        step
        for step in _steps(folder)
        if {_data(folder, step).name, _marker(folder, step).name} <= names
    ]


def _prune(folder: epath.Path, newest: int, keep: int) -> None:
    """Deletes all but the `keep` newest complete checkpoints up to `newest`.

    One of a later step was found torn when the run resumed, whatever its marker says.
    """
    kept = [step for step in _committed(folder) if step <= newest][-keep:]
    for step in _steps(folder):
        if step not in kept:
            _remove(folder, step)
    for name in _names(folder):
        if name.startswith(storage.UNFINISHED):
            storage.remove(folder / name)


def _remove(folder: epath.Path, step: int) -> None:
    """Deletes the marker first: what a kill leaves does not count."""
    storage.remove(_marker(folder, step))
    storage.remove(_data(folder, step))


def _check_owner(path: epath.Path, stored: Owner, owner: Owner) -> None:
    if stored.recipe != owner.recipe:
        raise RunError(
            f"{path}: checkpoint of another recipe ({stored.recipe}, this run's is "
            f"{owner.recipe})"
        )
    if stored.images != owner.images:
        raise RunError(
            f"{path}: checkpoint of other images: since the run began, some came, went "
            "or changed their names"
        )
    if stored != owner:
        raise RunError(
            f"{path}: checkpoint of {_world(stored)}; this run has {_world(owner)}"
        )


def _world(owner: Owner) -> str:
    return f"{owner.workers} worker(s) with {owner.replicas} replica(s) each"


def _check_arrays(
    path: epath.Path, stored: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray]
) -> None:
    """Raises RunError with the first differences unless all names and shapes agree."""
    names = [*state, *(name for name in stored if name not in state)]
    different = [
        f"{name} is {_kind(stored.get(name))}, this run's {_kind(state.get(name))}"
        for name in names
        if _kind(stored.get(name)) != _kind(state.get(name))
    ]
    if different:
        more = f"; {len(different) - 3} more differ" if len(different) > 3 else ""
        raise RunError(
            f"{path}: checkpoint of another model: {'; '.join(different[:3])}{more}"
        )


def _kind(array: np.ndarray | None) -> str:
    return "absent" if array is None else f"{array.dtype.name} {array.shape}"
