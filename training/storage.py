"""Files that are whole or absent, on a disk or in a bucket (`gs://bucket/folder`)."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from etils import epath

# Begins the name of a file that is being written; what a killed run leaves of it is
# overwritten by the next one.
UNFINISHED = "tmp-"


def is_remote(path: epath.PathLike) -> bool:
    """Whether the path is one of a bucket, where nothing can be renamed in one step."""
    return "://" in os.fspath(path)


@contextlib.contextmanager
def writing(path: epath.PathLike) -> Iterator[Path]:
    """Gives a local file to write, which becomes `path` when the block ends well.

    On a disk the new file takes the old one's place in one step, once its bytes have
    reached the disk: at any moment there is the old file or the new one. A bucket has
    no such step. The file is copied there, and may stay a torn one: what must be whole
    needs a marker that is written after it, as `checkpoint` does.

    Args:
        path: The file. Its folder exists.

    Yields:
        A path with the same suffix.

    Raises:
        OSError: It cannot be written; nothing of the new file is left.
    """
    with _uploading(path) if is_remote(path) else _replacing(Path(path)) as local:
        yield local


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    unfinished = path.with_name(UNFINISHED + path.name)
    try:
        yield unfinished
        _flush(unfinished)
        os.replace(unfinished, path)
        _flush(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def _flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, would survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _uploading(path: epath.PathLike) -> Iterator[Path]:
    remote = epath.Path(path)
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder, remote.name)
        yield local
        try:
            with os_errors(remote):
                epath.Path(local).copy(remote, overwrite=True)
        except OSError:
            remove(remote)
            raise


@contextlib.contextmanager
def reading(path: epath.PathLike) -> Iterator[Path]:
    """Gives the file itself, or a local copy of one in a bucket.

    Raises:
        OSError: It is not there, or cannot be read.
    """
    if not is_remote(path):
        yield Path(path)
        return
    remote = epath.Path(path)
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder, remote.name)
        with os_errors(remote):
            remote.copy(local)
        yield local


def write_text(path: epath.PathLike, text: str) -> None:
    """Writes a text file; see `writing`."""
    with writing(path) as local:
        local.write_text(text, encoding="utf-8")


def remove(path: epath.PathLike) -> None:
    """Deletes a file if it is there and can be deleted."""
    with contextlib.suppress(OSError), os_errors(path):
        epath.Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def os_errors(path: epath.PathLike) -> Iterator[None]:
    """Turns what TensorFlow raises about a bucket into the OSError of a disk."""
    if not is_remote(path):
        yield
        return
    import tensorflow as tf

    try:
        yield
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, _line(error), os.fspath(path)) from None
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, _line(error), os.fspath(path)) from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
