"""Versioned model folders: written beside, renamed when complete."""

import contextlib
import pathlib
import shutil
import uuid
from collections.abc import Iterator


def versions(base_path: pathlib.Path) -> list[int]:
    """The version numbers in a model's folder, ascending.

    Args:
        base_path: A folder with one sub-folder for each version, as TensorFlow
            Serving reads it: names that are no number do not count.

    Returns:
        The numbers; none where the folder does not exist.
    """
    if not base_path.is_dir():
        return []
    return sorted(int(p.name) for p in base_path.iterdir() if p.name.isdecimal())


@contextlib.contextmanager
def staged_version(base_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder to write the next version into, which appears only when complete.

    On leaving the block the folder is renamed to the next free number in one step; a
    server that watches `base_path` never sees a part. Whatever is raised in the block
    removes the folder and publishes nothing.

    Args:
        base_path: The model's folder; made when it does not exist.

    Yields:
        The folder to write into. Its name becomes the version: read it again from
        `versions(base_path)[-1]`.

    Raises:
        OSError: The folder cannot be made, written or renamed.
    """
    base_path.mkdir(parents=True, exist_ok=True)
    staging = base_path / f".staging-{uuid.uuid4().hex}"
    staging.mkdir()
    try:
        yield staging
        _rename_to_next(staging, base_path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _rename_to_next(staging: pathlib.Path, base_path: pathlib.Path) -> None:
    while True:
        number = max(versions(base_path), default=0) + 1
        try:
            staging.rename(base_path / str(number))
        except FileExistsError:
            continue  # another export took this number a moment ago
        except OSError:
            if (base_path / str(number)).exists():
                continue
            raise
        return
