"""Files that are replaced atomically, and survive a power failure."""

import contextlib
import os
import shutil
from pathlib import Path


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file under a temporary name, then rename it.

    Readers see the old content or the new one, never a part.

    Args:
        path: The file; the permissions of an existing one are kept.
        content: The new content.

    Raises:
        OSError: It cannot be written; the old file stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(content)
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(path, temporary)
        fsync(temporary)
        temporary.replace(path)
        fsync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def fsync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
