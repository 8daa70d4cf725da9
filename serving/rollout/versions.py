"""A model's folder on the disk: versions appear atomically, one writer at a time.

    FOLDER/3/            a version; only names that are numbers count for a server
    FOLDER/.staging-*    a version that is being written, or left by a killed export
    FOLDER/.removed-3    a version that was removed; its number is not reused
    FOLDER/.lock         locked by the writing process

The kernel releases the lock when its holder dies. Whoever holds it may therefore delete
every `.staging-*`.
"""

import contextlib
import fcntl
import pathlib
import shutil
import sys
import uuid
from collections.abc import Iterable, Iterator

from keras_vit.common.atomic_files import flush_all, open_no_link, rename
from keras_vit.common.command_line import CommandError
from keras_vit.common.file_names import LOCK

STAGING = ".staging-"
REMOVED = ".removed-"
LARGEST = 2**63 - 1  # TensorFlow Serving reads the name as an int64


def version_folders(base_path: pathlib.Path) -> dict[int, pathlib.Path]:
    """Find the versions in a model's folder as TensorFlow Serving does.

    Args:
        base_path: A folder with one sub-folder for each version. Names that are not
            numbers are ignored; `007` is version 7.

    Returns:
        Folders by number, ascending; empty if `base_path` does not exist.
    """
    if not base_path.is_dir():
        return {}
    found = {
        int(path.name): path for path in base_path.iterdir() if is_number(path.name)
    }
    return dict(sorted(found.items()))


def versions(base_path: pathlib.Path) -> list[int]:
    """List the version numbers in a model's folder, ascending."""
    return list(version_folders(base_path))


def check_base_path(base_path: pathlib.Path) -> None:
    """Check that a folder can be a model's: it holds versions only, or is missing."""
    if base_path.exists() and not base_path.is_dir():
        raise CommandError(f"{base_path}: cannot be written: it is a file")
    folders = version_folders(base_path)
    visible = base_path.glob("[!.]*") if base_path.is_dir() else ()
    others = sorted(
        {path.name for path in visible} - {p.name for p in folders.values()}
    )
    if others:
        raise CommandError(
            f"{base_path}: must hold versions only. Received: {', '.join(others[:5])}. "
            "Give the model a folder of its own"
        )


def is_number(name: str) -> bool:
    """Whether a folder of this name is a version."""
    return name.isascii() and name.isdigit() and int(name) <= LARGEST


def version_folder(base_path: pathlib.Path, version: int) -> pathlib.Path:
    """The folder of a version; CommandError if there is none."""
    folders = version_folders(base_path)
    if version not in folders:
        there = ", ".join(map(str, folders)) or "none"
        raise CommandError(f"{base_path}: no version {version}. There are: {there}")
    return folders[version]


@contextlib.contextmanager
def one_writer(folder: pathlib.Path) -> Iterator[None]:
    """Hold the write lock of a folder.

    Waits for another writer, and says so.
    """
    with open(folder / LOCK, "ab", opener=open_no_link) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{folder}: waiting for another writer", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def staged_version(
    base_path: pathlib.Path, version: int | None = None
) -> Iterator[tuple[pathlib.Path, int]]:
    """Create a folder to write a version into, which appears only when complete.

    When the block ends, all of it is flushed to the disk and renamed to its number: a
    server that watches `base_path` never sees an incomplete version, even if the
    process is killed. An exception in the block removes the folder.

    Args:
        base_path: The model's folder; created if missing. Every user can read what is
            created, whatever the umask, as servers run as another one.
        version: Its number; default: one more than the largest ever used.

    Yields:
        The folder to write into, and the version's number.

    Raises:
        CommandError: The number is or was in use.
        OSError: The folder cannot be created, written or renamed.
    """
    if not base_path.is_dir():
        base_path.mkdir(parents=True, exist_ok=True)
        _make_readable(base_path)
    with one_writer(base_path):
        _delete(base_path.glob(f"{STAGING}*"))
        number = _free_number(base_path, version)
        staging = base_path / f"{STAGING}{uuid.uuid4().hex}"
        staging.mkdir()
        try:
            yield staging, number
            for path in (staging, *staging.rglob("*")):
                _make_readable(path)
            flush_all(staging)
            rename(staging, base_path / str(number))
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _make_readable(path: pathlib.Path) -> None:
    mode = path.stat().st_mode
    readable = mode | (0o555 if path.is_dir() else 0o444)
    if readable != mode:  # some network mounts have no modes to change
        path.chmod(readable)


def _free_number(base_path: pathlib.Path, version: int | None) -> int:
    taken = versions(base_path)
    gone = list(_removed(base_path))
    if version is None:
        return max([*taken, *gone], default=0) + 1
    if version in [*taken, *gone]:
        used = "exists" if version in taken else "existed and was removed"
        raise CommandError(
            f"{base_path}: version {version} {used}; a version never changes, since "
            "servers do not read it again"
        )
    return version


def _removed(base_path: pathlib.Path) -> dict[int, pathlib.Path]:
    found = {path.name.removeprefix(REMOVED): path for path in base_path.glob(".*")}
    return {int(name): path for name, path in found.items() if is_number(name)}


def withdraw(base_path: pathlib.Path, version: int) -> pathlib.Path:
    """Hide a version from the servers that watch the folder, atomically.

    Its files stay until `sweep`. Call it inside `one_writer`.
    """
    hidden = base_path / f"{REMOVED}{version}"
    rename(version_folder(base_path, version), hidden)
    return hidden


def sweep(base_path: pathlib.Path) -> None:
    """Delete withdrawn versions and the remains of killed exports.

    A withdrawn version that is newer than all others stays: it reserves its number.
    Call it inside `one_writer`.
    """
    newest = max(versions(base_path), default=0)
    gone = _removed(base_path)
    _delete(path for number, path in gone.items() if number < newest)
    _delete(base_path.glob(f"{STAGING}*"))


def _delete(folders: Iterable[pathlib.Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
