"""A model's folder on the disk: versions that appear whole, one writer at a time.

    FOLDER/3/            a version; only names that are numbers count for a server
    FOLDER/.staging-*    a version that is being written, or what a killed export left
    FOLDER/.removed-3    a version that was taken away; its number is not used again
    FOLDER/.lock         locked by the one process that writes

The kernel gives the lock back when its holder dies, however it dies. Whoever holds it
may therefore delete every `.staging-*` there is.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import sys
import uuid
from collections.abc import Iterable, Iterator

from ..errors import ExportError

STAGING = ".staging-"
REMOVED = ".removed-"
LOCK = ".lock"
LARGEST = 2**63 - 1  # TensorFlow Serving reads the name as an int64


def version_folders(base_path: pathlib.Path) -> dict[int, pathlib.Path]:
    """The versions in a model's folder, as TensorFlow Serving finds them.

    Args:
        base_path: A folder with one sub-folder for each version. Names that are no
            number do not count; `007` is version 7.

    Returns:
        Folders by number, ascending; none where `base_path` does not exist.
    """
    if not base_path.is_dir():
        return {}
    found = {
        int(path.name): path for path in base_path.iterdir() if _is_number(path.name)
    }
    return dict(sorted(found.items()))


def versions(base_path: pathlib.Path) -> list[int]:
    """The version numbers in a model's folder, ascending; see `version_folders`."""
    return list(version_folders(base_path))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and int(name) <= LARGEST


def version_folder(base_path: pathlib.Path, version: int) -> pathlib.Path:
    """The folder of a version.

    Raises:
        ExportError: There is no such version.
    """
    folders = version_folders(base_path)
    if version not in folders:
        there = ", ".join(map(str, folders)) or "none"
        raise ExportError(f"{base_path}: no version {version}. There are: {there}")
    return folders[version]


@contextlib.contextmanager
def one_writer(folder: pathlib.Path) -> Iterator[None]:
    """Keeps other processes from writing into a folder while the block runs.

    Waits for another writer to end, and says so.

    Args:
        folder: An existing folder.

    Raises:
        OSError: The folder cannot be written.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{folder}: waiting for another writer to end", file=sys.stderr)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def staged_version(
    base_path: pathlib.Path, version: int | None = None
) -> Iterator[tuple[pathlib.Path, int]]:
    """A folder to write a version into, which appears only when complete.

    On leaving the block all of it is flushed to the disk and renamed to its number in
    one step: a server that watches `base_path` never sees a part, whenever the process
    dies. Whatever is raised in the block removes the folder and publishes nothing.

    Args:
        base_path: The model's folder; made when it does not exist.
        version: Its number; default: one more than the largest that ever was.

    Yields:
        The folder to write into, and the version's number.

    Raises:
        ExportError: The version is or was there.
        OSError: The folder cannot be made, written or renamed.
    """
    base_path.mkdir(parents=True, exist_ok=True)
    with one_writer(base_path):
        _delete(base_path.glob(f"{STAGING}*"))
        number = _free_number(base_path, version)
        staging = base_path / f"{STAGING}{uuid.uuid4().hex}"
        staging.mkdir()
        try:
            yield staging, number
            for folder, _, files in os.walk(staging, topdown=False):
                for name in files:
                    flush(pathlib.Path(folder, name))
                flush(pathlib.Path(folder))
            staging.rename(base_path / str(number))
            flush(base_path)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _free_number(base_path: pathlib.Path, version: int | None) -> int:
    taken = versions(base_path)
    gone = list(_removed(base_path))
    if version is None:
        return max([*taken, *gone], default=0) + 1
    if version in [*taken, *gone]:
        was = "is there" if version in taken else "was there and was removed"
        raise ExportError(
            f"{base_path}: version {version} {was}; a version never changes, since "
            "servers do not read it again"
        )
    return version


def _removed(base_path: pathlib.Path) -> dict[int, pathlib.Path]:
    found = {path.name.removeprefix(REMOVED): path for path in base_path.glob(".*")}
    return {int(name): path for name, path in found.items() if _is_number(name)}


def withdraw(base_path: pathlib.Path, version: int) -> pathlib.Path:
    """Takes a version away from the servers that watch the folder, in one step.

    Its files stay until `sweep`. Call it inside `one_writer`.

    Returns:
        Where the files are now.
    """
    hidden = base_path / f"{REMOVED}{version}"
    version_folder(base_path, version).rename(hidden)
    flush(base_path)
    return hidden


def sweep(base_path: pathlib.Path) -> None:
    """Deletes withdrawn versions and what killed exports left.

    A withdrawn version that is newer than all others stays: it holds its number. Call
    it inside `one_writer`.
    """
    newest = max(versions(base_path), default=0)
    gone = _removed(base_path)
    _delete(path for number, path in gone.items() if number < newest)
    _delete(base_path.glob(f"{STAGING}*"))


def _delete(folders: Iterable[pathlib.Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def flush(path: pathlib.Path) -> None:
    """Waits until a file, or the names in a folder, would survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
