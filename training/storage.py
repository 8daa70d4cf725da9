"""Atomic file access, on a disk or in a bucket (`gs://bucket/folder`)."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from keras_vit.common.atomic_files import UNFINISHED, replacing


def is_remote(path: epath.PathLike) -> bool:
    """Whether the path is in a bucket, where a file cannot be renamed atomically."""
    return "://" in os.fspath(path)


@contextlib.contextmanager
def atomic_write(path: epath.PathLike) -> Iterator[Path]:
    """Yield a local file to write, which replaces `path` when the block succeeds.

    On a disk the replacement is atomic, once the new file's bytes have reached the
    disk: at any moment there is the old file or the new one. A kill leaves a folder,
    which `remove_unfinished` deletes. In a bucket it is not atomic: the file is copied
    there, and a kill may leave it incomplete. Callers that need atomicity write a
    marker after it, as `checkpoint` does.

    Args:
        path: The file, in an existing folder.

    Yields:
        A path with the same suffix.

    Raises:
        OSError: It cannot be written; nothing of the new file is left. The error has
            a path.
    """
    try:
        with _uploading(path) if is_remote(path) else replacing(Path(path)) as local:
            yield local
    except OSError as error:
        if error.filename is not None:
            raise
        # Of a full disk, a write says no path.
        reason = error.strerror or _line(error)
        number = error.errno or errno.EIO
        raise OSError(number, reason, os.fspath(path)) from None


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
def local_copy(path: epath.PathLike) -> Iterator[Path]:
    """Yield the file itself, or a temporary local copy of one in a bucket.

    Raises:
        OSError: It does not exist, or cannot be read.
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
    """Write a text file; see `atomic_write`.

    Bytes of file names that are not UTF-8 are escaped, as in JSON: \\udcff.
    """
    with atomic_write(path) as local:
        local.write_text(text, encoding="utf-8", errors="backslashreplace")


def remove(path: epath.PathLike) -> None:
    """Delete a file if it exists and can be deleted."""
    with contextlib.suppress(OSError), os_errors(path):
        epath.Path(path).unlink(missing_ok=True)


def remove_unfinished(folder: epath.PathLike) -> None:
    """Delete what killed writes left in a folder, in which nobody else may be writing.

    They leave nothing in a bucket.
    """
    if is_remote(folder):
        return
    for left in Path(folder).glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def os_errors(path: epath.PathLike) -> Iterator[None]:
    """Convert TensorFlow's errors about a bucket to OSError, as for a disk."""
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
