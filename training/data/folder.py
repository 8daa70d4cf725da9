"""The source folder:PATH: image files in class folders, on a disk or in a bucket."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
from etils.epath import Path, PathLike

from keras_vit import decoding

from .. import storage
from ..errors import DataError, did_you_mean
from .labeled_images import Source, Split, encoded_split, python_bytes

# Files and folders that operating systems create beside images, in lower case.
SYSTEM_FILES = (
    *("thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "icon\r"),
    *("__macosx", "$recycle.bin", "system volume information", "lost+found", "@eadir"),
)
TIFF = (".tif", ".tiff")
# The parts of a data set, and the names that their folders may have.
PARTS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val"),
    "test": ("test", "testing"),
}


def open_folder(
    root: PathLike, channels: int = 3, on_bad_image: str = "error"
) -> Source:
    """Open class folders of image files: root/CLASS/... or root/train/CLASS/...

    Beside train/ there may be val/ and test/ (`PARTS` has their other names).

    Every file counts as an image, except hidden and `SYSTEM_FILES`. All are decoded
    once, to find invalid ones before the training and not in the middle of it.
    """
    root = Path(root)
    _check_root(root)
    names: dict[str, tuple[str, ...]] = {}
    parts: dict[str, Split] = {}
    bad: tuple[str, ...] = ()
    for part, folder in (_find_parts(root) or {"train": root}).items():
        names[part], parts[part], more = _open_classes(folder, channels, on_bad_image)
        bad += more
        if names[part] != names["train"]:
            differing = set(names[part]) ^ set(names["train"])
            raise DataError(
                f"folder:{root}: train/ and {folder.name}/ must have the same class "
                f"folders. Only in one of them: {_listed(differing)}"
            )
    return Source.with_own_parts(names["train"], parts, bad, ordered=True)


def _check_root(root: Path) -> None:
    """Raise DataError where there is no folder."""
    if root.is_dir():
        return
    if root.exists():
        raise DataError(f"folder:{root}: must be a folder, not a file")
    parent = root.parent
    beside = [p.name for p in parent.iterdir() if p.is_dir()] if parent.is_dir() else []
    place = "" if str(parent) == "." else f"{parent}/"
    hint = did_you_mean(root.name, beside, f"folder:{place}")
    raise DataError(f"folder:{root}: there is no such folder.{hint}")


def _find_parts(root: Path) -> dict[str, Path]:
    """The folders of the parts, train first; none where root has class folders.

    Raises:
        DataError: There is no train/, or a part has two folders.
    """
    found = {
        part: [root / name for name in names if (root / name).is_dir()]
        for part, names in PARTS.items()
    }
    folders = [folder.name for each in found.values() for folder in each]
    twice = any(len(each) > 1 for each in found.values())
    if folders and (twice or not found["train"]):
        raise DataError(
            f"folder:{root}: must have train/, and may have val/ and test/ beside it, "
            f"one folder for each. Received: {', '.join(folders)}"
        )
    return {part: each[0] for part, each in found.items() if each}


def _open_classes(
    root: Path, channels: int, on_bad_image: str
) -> tuple[tuple[str, ...], Split, tuple[str, ...]]:
    """The class names, the images and the invalid files in class folders."""
    folders = sorted(
        path
        for path in root.iterdir()
        if path.is_dir() and not is_system_file(path.name)
    )
    if len(folders) < 2:
        raise DataError(
            f"folder:{root}: must contain at least 2 class folders with images, such "
            f"as {root}/cat/1.jpg and {root}/dog/1.jpg. {_what_is_there(root, folders)}"
        )
    images = {folder: image_files(folder) for folder in folders}
    reasons = _scan([path for paths in images.values() for path in paths], channels)
    if reasons and on_bad_image == "error":
        raise DataError(
            f"folder:{root}: {len(reasons)} of {sum(map(len, images.values()))} images "
            "cannot be read (--data.on_bad_image skip ignores them): "
            f"{_listed(reasons.values(), '; ')}"
        )
    good = {f: [p for p in paths if p not in reasons] for f, paths in images.items()}
    if empty := [folder.name for folder, paths in good.items() if not paths]:
        raise DataError(f"folder:{root}: no images in class folder {_listed(empty)}")
    files = [path for paths in good.values() for path in paths]
    labels = np.repeat(np.arange(len(good)), [len(paths) for paths in good.values()])
    split = _read_split(f"folder:{root}", files, labels, len(good), channels)
    return tuple(f.name for f in folders), split, tuple(reasons.values())


def split_of_files(
    origin: str,
    files: Sequence[Path],
    labels: np.ndarray[Any, Any],
    classes: int,
    channels: int,
) -> Split:
    """Make a split of image files, which are all decoded once.

    Args:
        origin: The split's name in error messages.
        files: [n], the files.
        labels: Integers [n].
        classes: Number of classes.
        channels: 1 for gray images, 3 for RGB.

    Raises:
        DataError: There are none, or some cannot be read.
    """
    if reasons := _scan(files, channels):
        raise DataError(
            f"{origin}: {len(reasons)} of {len(files)} images cannot be read: "
            f"{_listed(reasons.values(), '; ')}"
        )
    return _read_split(origin, files, labels, classes, channels)


def _read_split(
    origin: str,
    files: Sequence[Path],
    labels: np.ndarray[Any, Any],
    classes: int,
    channels: int,
) -> Split:
    names = [str(path) for path in files]
    paths = tf.constant(names, tf.string)
    tiff = any(name.lower().endswith(TIFF) for name in names)
    return encoded_split(
        origin,
        lambda index: _contents(paths[index], tiff),
        labels,
        classes,
        names,
        channels,
    )


def _what_is_there(root: Path, folders: Sequence[Path]) -> str:
    """What a folder without class folders has instead."""
    files = [path.name for path in root.iterdir() if not path.is_dir()]
    files = [name for name in files if not is_system_file(name)]
    received = f"Received: folders: {_listed(path.name for path in folders)}"
    if files:
        received += f"; files: {_listed(files)}"
    if len(folders) == 1 and not files:
        below = [path for path in folders[0].iterdir() if path.is_dir()]
        if len(below) > 1:
            return f"{received}. Did you mean folder:{folders[0]}?"
    return received


def _contents(path: tf.Tensor, tiff: bool) -> tf.Tensor:
    """A file's contents; of a TIFF file, where there are any, as PNG."""
    contents = tf.io.read_file(path)
    return python_bytes(decoding.tiff_to_png, contents) if tiff else contents


def image_files(folder: PathLike) -> list[Path]:
    """All files below a folder that may be images."""
    found: list[Path] = []
    for path in Path(folder).iterdir():
        if not is_system_file(path.name):
            found += image_files(path) if path.is_dir() else [path]
    return sorted(found)


def is_system_file(name: str) -> bool:
    """Whether a file or folder is hidden or one of `SYSTEM_FILES`."""
    return name.startswith(".") or name.lower() in SYSTEM_FILES


def _scan(paths: Sequence[Path], channels: int) -> dict[Path, str]:
    """Decode all files: the reason for each that cannot be decoded."""

    def reason(path: Path) -> str | None:
        try:
            with storage.local_copy(path) as local:
                decoding.load_image(local, channels)
        except ValueError as error:
            return f"{path}: {str(error).partition(': ')[2]}"
        return None

    with ThreadPoolExecutor() as pool:
        found = zip(paths, pool.map(reason, paths), strict=True)
        return {path: text for path, text in found if text is not None}


def _listed(items, separator: str = ", ") -> str:
    """The first five items, and the number of the others."""
    items = sorted(items)
    more = f"{separator}and {len(items) - 5} more" if len(items) > 5 else ""
    return (separator.join(items[:5]) or "none") + more
