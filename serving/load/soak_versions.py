"""A model's folder for a soak: each version is replaced by a copy of itself."""

import shutil
from pathlib import Path


class SoakVersions:
    """Copies of one version, in a folder of their own.

    Args:
        model: the model's folder, which holds one folder for each version; its newest
            one is copied, nothing in it is changed.
        folder: an empty folder for the copies.

    Attributes:
        folder: what the server is to watch.
        number: of the newest copy.

    Raises:
        ValueError: `model` holds no version.
    """

    def __init__(self, model: Path, folder: Path):
        numbers = [int(path.name) for path in _children(model) if _is_number(path)]
        if not numbers:
            raise ValueError(
                "`--models` must be a model's folder, which holds a folder for each "
                f"version, such as {model / '1'}. Received: {model}"
            )
        self._source = next(p for p in _children(model) if _is(p, max(numbers)))
        self.folder = folder
        self.number = 0
        self.add()

    def add(self) -> None:
        """Puts a further copy beside, under the next number; it appears complete."""
        staging = self.folder / ".staging"
        shutil.copytree(self._source, staging)
        staging.rename(self.folder / str(self.number + 1))
        self.number += 1

    def remove_older(self) -> None:
        """Removes all but the newest copy; each disappears at once."""
        for path in _children(self.folder):
            if _is_number(path) and int(path.name) < self.number:
                removed = path.rename(self.folder / f".removed-{path.name}")
                shutil.rmtree(removed)


def _children(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()]


def _is_number(path: Path) -> bool:
    return path.name.isascii() and path.name.isdecimal()


def _is(path: Path, number: int) -> bool:
    return _is_number(path) and int(path.name) == number
