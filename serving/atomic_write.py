"""Files that are replaced atomically, and survive a power failure."""

import os
import shutil
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file in a new folder beside it, then rename it.

    Readers see the old content or the new one, never a part. Others cannot foresee or
    enter the folder, so that nobody can plant a link in the file's place.

    Args:
        path: The file; the permissions of an existing one are kept.
        content: The new content.

    Raises:
        OSError: It cannot be written; the old file stays.
    """
    with tempfile.TemporaryDirectory(".part", f".{path.name}.", path.parent) as folder:
        temporary = Path(folder, path.name)
        temporary.write_bytes(content)
        if path.is_file() and not path.is_symlink():
            shutil.copymode(path, temporary)
        fsync(temporary)
        temporary.replace(path)
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
