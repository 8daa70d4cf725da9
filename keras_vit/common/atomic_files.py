"""Files written safely: atomically, through no link, flushed to the disk."""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

# Prefix of the folder in which a file is written; a process that is killed leaves it.
UNFINISHED = ".unfinished-"


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a path to write, which replaces this one when the block succeeds.

    It has the same name, in a new folder beside the file that others cannot enter or
    foresee: in a folder that many may write, nobody can plant a link there. What is
    replaced is a link itself, never its target. The permissions are those of the old
    file; without one the umask's. The block may also make a folder there, which
    replaces no folder with files.

    Args:
        path: The file or the new folder, in an existing folder.

    Raises:
        OSError: It cannot be written; the old file stays.
    """
    with tempfile.TemporaryDirectory(
        prefix=UNFINISHED, dir=path.parent, ignore_cleanup_errors=True
    ) as folder:
        written = pathlib.Path(folder, path.name)
        yield written
        if path.is_file() and not path.is_symlink():
            shutil.copymode(path, written)
        flush_all(written)
        rename(written, path)


def write_bytes(path: pathlib.Path, content: bytes | memoryview) -> None:
    """Write a file; see `replacing`."""
    with replacing(path) as written:
        written.write_bytes(content)


def open_no_link(path: str, flags: int) -> int:
    """Open a file, but not the target of a link; the `opener` of `open`.

    Where others can foresee the file's name, they may have put a link in its place.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def rename(path: pathlib.Path, target: pathlib.Path) -> None:
    """Rename a file or folder, and flush the names in the target's folder."""
    os.replace(path, target)
    flush(target.parent)


def flush_all(path: pathlib.Path) -> None:
    """Flush a file, or a folder with all that is in it, to the disk."""
    for place, folders, files in os.walk(path, topdown=False):
        for name in (*files, *folders):
            flush(pathlib.Path(place, name))
    flush(path)


def flush(path: pathlib.Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
