"""Files that appear only when they are complete."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` to write, which takes its name at the end of the block.

    Args:
        path: of the file; its folder must exist.

    Yields:
        The path to write to.
    """
    beside = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
