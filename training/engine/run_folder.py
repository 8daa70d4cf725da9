"""The folder of a run: its layout, preparation, and reading and writing its files.

recipe.yaml           the resolved recipe
history.csv           one row for each epoch
tensorboard/          for `tensorboard --logdir runs`
checkpoints/          what `keras-vit resume` continues from; see `checkpoint`
best.keras last.keras the models
report.json           the result; a run that has one is finished
report.html           the result on a page, in one file
*.png                 pictures
.lock                 on a disk: locked by the process that trains

The folder can be in a bucket: gs://bucket/runs/name.

Keras is imported by the functions that need it: a missing run is reported before.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import datetime
import fcntl
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from etils import epath

from keras_vit.common.atomic_files import UNFINISHED, open_no_link
from keras_vit.common.file_names import CHECKPOINTS, HISTORY, LOCK, RECIPE, REPORT
from keras_vit.common.similar_names import did_you_mean

from .. import storage
from ..errors import RunError, require
from ..recipe import Recipe, changed_values, load_recipe

# The contents of report.json, or of another JSON file about a run.
Report: TypeAlias = dict[str, Any]

if TYPE_CHECKING:
    import keras

    from .progress import Logs


def check_folder(
    folder: epath.PathLike,
    recipe: Recipe,
    resume: bool,
    overwrite: bool,
    extend: bool = False,
) -> Recipe | None:
    """Check, without writing, that a run can start or continue in a folder.

    With `resume` and `extend` the recipe may have more epochs than the folder's, and
    the run there may be finished.

    Returns:
        The recipe in the folder, where a run continues.

    Raises:
        RunError: The folder contains files that would be lost, or another recipe; the
            run's checkpoints are gone; another process trains there; or the folder
            cannot be written.
    """
    folder = epath.Path(folder)
    check_writable(folder)
    if (folder / LOCK).exists():
        with locked(folder):
            pass
    return _checked_recipe(folder, recipe, resume, overwrite, extend)


def _checked_recipe(
    folder: epath.Path, recipe: Recipe, resume: bool, overwrite: bool, extend: bool
) -> Recipe | None:
    with _run_errors(folder):
        if (folder / RECIPE).exists():
            if overwrite:
                return None
            return _check_old_run(folder, recipe, resume, extend)
        if folder.exists() and not _is_empty(folder):
            raise RunError(
                f"{folder}: exists and is not a run; choose another --output_dir"
            )
    return None


def check_writable(folder: epath.PathLike) -> None:
    """Raise RunError where a folder on a disk cannot be created, or files in it.

    Nothing stays of the file that is created to see it. `os.access` would not know the
    rules of a file server.
    """
    if storage.is_remote(folder):
        return
    path = Path(folder).absolute()
    existing = next(p for p in (path, *path.parents) if os.path.exists(p))
    with _run_errors(epath.Path(folder)), tempfile.TemporaryFile(dir=existing):
        pass


def prepare_folder(
    folder: epath.PathLike,
    recipe: Recipe,
    resume: bool,
    overwrite: bool,
    extend: bool = False,
) -> None:
    """Prepare a folder for a new run, and write the recipe into it.

    A run that continues is only checked, and what a kill left half-written deleted: its
    checkpoint, which is read later, may not fit. `begin_extension` then changes what a
    longer run changes. The caller holds the folder's lock.

    Args and errors: Those of `check_folder`; the folder is created where it does not
    exist.
    """
    folder = epath.Path(folder)
    old = _checked_recipe(folder, recipe, resume, overwrite, extend)
    storage.remove_unfinished(folder)
    if old is not None:
        return
    with _run_errors(folder):
        if overwrite and (folder / RECIPE).exists():
            _delete_run(folder)
        folder.mkdir(parents=True, exist_ok=True)
        storage.write_text(folder / RECIPE, recipe.to_yaml())


def begin_extension(folder: epath.PathLike, recipe: Recipe) -> None:
    """Delete a run's report, and write the recipe with more epochs.

    The best model and the checkpoints stay. The caller holds the folder's lock, and has
    restored the newest checkpoint.

    Raises:
        RunError: The folder cannot be written.
    """
    folder = epath.Path(folder)
    with _run_errors(folder):
        # First: a kill before the recipe is written leaves an unfinished run.
        (folder / REPORT).unlink(missing_ok=True)
        storage.write_text(folder / RECIPE, recipe.to_yaml())


@contextlib.contextmanager
def locked(folder: epath.PathLike) -> Iterator[None]:
    """Hold the lock of a folder, in which no other process can then train.

    The folder is created where it does not exist. The operating system releases the
    lock when this process ends, however it ends. Nothing is locked in a bucket, nor on
    a disk without locks.

    Raises:
        RunError: Another process holds it, which the message names; or the folder
            cannot be written.
    """
    if storage.is_remote(folder):
        yield
        return
    with contextlib.ExitStack() as stack:
        with _run_errors(epath.Path(folder)):
            Path(folder).mkdir(parents=True, exist_ok=True)
            # Without a buffer, which on a full disk would fail again as it is closed.
            file = stack.enter_context(
                open(Path(folder, LOCK), "a+b", buffering=0, opener=open_no_link)
            )
            _lock(file, folder)
        yield


def _lock(file: FileIO, folder: epath.PathLike) -> None:
    """Lock an open file until it is closed, and write into it who has done so."""
    file.seek(0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(
            f"{folder}: {file.read().decode() or 'another process'} trains there; wait "
            "until it ends, or stop it"
        ) from None
    except OSError as error:  # such as ENOLCK of a network file system
        print(f"warning: {folder} cannot be locked: {error.strerror}", file=sys.stderr)
        return
    began = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    file.truncate(0)
    holder = f"process {os.getpid()} on {socket.gethostname()}, since {began},"
    file.write(holder.encode())


def _refuse_lost_checkpoints(folder: epath.Path) -> None:
    """Raise RunError where a run without a checkpoint has finished epochs.

    A kill leaves one at most, as there is a checkpoint after each.
    """
    try:
        with storage.local_copy(folder / HISTORY) as local:
            epochs = len(local.read_text(encoding="utf-8").splitlines()) - 1
    except FileNotFoundError:
        return
    if epochs > 1:
        raise RunError(
            f"{folder}: has no checkpoint any more, after {epochs} epochs; "
            "`fit --overwrite` begins a new run"
        )


@contextlib.contextmanager
def _run_errors(folder: epath.Path) -> Iterator[None]:
    """Raise RunError where the folder cannot be read or written."""
    try:
        with storage.os_errors(folder):
            yield
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be written: {error.strerror or error}"
        ) from None


def read_recipe(folder: epath.PathLike) -> Recipe:
    """Read the recipe of the run in a folder.

    Raises:
        RunError: There is no run in this folder.
        RecipeError: The recipe is not valid.
    """
    folder = epath.Path(folder)
    try:
        with storage.local_copy(folder / RECIPE) as local:
            return load_recipe(local) if local.is_file() else _no_run(folder)
    except FileNotFoundError:
        return _no_run(folder)


def check_resumable(folder: epath.PathLike, epochs: int | None) -> Recipe:
    """The recipe of the run in a folder, if it can be resumed.

    Raises:
        RunError: There is no run in this folder, it is finished and not extended, or
            the folder cannot be written.
        RecipeError: The recipe is not valid, or has more epochs.
    """
    recipe = read_recipe(folder)
    wanted = f"at least the run's {recipe.epochs}"
    require(epochs is None or epochs >= recipe.epochs, "--epochs", wanted, epochs)
    if is_finished(folder) and epochs in (None, recipe.epochs):
        raise RunError(
            f"{folder}: the run is finished; --epochs with a number above "
            f"{recipe.epochs} extends it"
        )
    check_writable(folder)
    return recipe


def _no_run(folder: epath.Path) -> NoReturn:
    parent = folder.parent
    runs = [path.parent.name for path in parent.glob(f"*/{RECIPE}")]
    raise RunError(
        f"{folder}: is not the folder of a run, as it has no {RECIPE}."
        f"{did_you_mean(folder.name, runs, f'{parent}/')}"
    )


def is_finished(folder: epath.PathLike) -> bool:
    """Whether the run in a folder has its report."""
    return bool((epath.Path(folder) / REPORT).exists())


def _delete_run(folder: epath.Path) -> None:
    """Delete a run, the recipe last: until then the folder is recognized as a run.

    The locked file stays: another process would lock a new one.
    """
    for path in folder.iterdir():
        if path.is_dir() and not os.path.islink(path):
            path.rmtree()
        elif path.name not in (RECIPE, LOCK):
            path.unlink()
    (folder / RECIPE).unlink()


def _is_empty(folder: epath.Path) -> bool:
    """Whether a folder is empty, apart from what a run killed at its start leaves."""
    return folder.is_dir() and all(
        path.name == LOCK or path.name.startswith(UNFINISHED)
        for path in folder.iterdir()
    )


def _check_old_run(
    folder: epath.Path, recipe: Recipe, resume: bool, extend: bool
) -> Recipe:
    finished = is_finished(folder)
    if not resume or (finished and not extend):
        state = "a finished run" if finished else "an unfinished run"
        command = f"`keras-vit resume {folder}"
        goes_on = (
            f"{command} --epochs N` extends" if finished else f"{command}` continues"
        )
        raise RunError(
            f"{folder}: contains {state}; {goes_on} it, --overwrite deletes it, --name "
            "or --output_dir writes elsewhere"
        )
    from . import checkpoint  # here, as NumPy would take a fifth of --help's time

    if checkpoint.newest_committed(folder / CHECKPOINTS) is None:
        if finished:
            raise RunError(
                f"{folder}: has no checkpoint that a longer run could begin at"
            )
        _refuse_lost_checkpoints(folder)
    old = read_recipe(folder)
    same_length = dataclasses.replace(recipe, epochs=old.epochs) if extend else recipe
    if changes := changed_values(old, same_length):
        raise RunError(
            f"{folder}: the run there has other values: {'; '.join(changes)}. "
            f"`keras-vit resume {folder}` continues with its own"
        )
    return old


def write_history(path: epath.PathLike, history: list[Logs]) -> None:
    """Write the history as CSV, one row for each epoch.

    A figure that some epochs lack is empty there.
    """
    names = dict.fromkeys(name for row in history for name in row)
    with (
        storage.atomic_write(path) as local,
        local.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(history)


def save_model(model: keras.Model, path: epath.PathLike) -> None:
    """Save the plain model atomically."""
    with storage.atomic_write(path) as local:
        model.save(local)


def write_report(path: epath.PathLike, report: Report) -> None:
    """Write a report as indented JSON."""
    storage.write_text(path, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
