"""Class folders of images, on a disk or in a bucket: parts, classes and files.

What names and structure say, without TensorFlow: root/CLASS/..., or root/PART/CLASS/...
with folders for training, validation and test images (`PARTS`).
"""

import mimetypes
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path as LocalPath
from typing import Any

from etils.epath import Path, PathLike
from PIL import Image

from keras_vit.common.similar_names import did_you_mean

from .. import storage
from ..activity import activity
from ..errors import DataError

# Files and folders that operating systems create beside images, in lower case.
SYSTEM_FILES = (
    *("thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "icon\r"),
    *("__macosx", "$recycle.bin", "system volume information", "lost+found", "@eadir"),
)
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")
# How the contents of such files begin, whatever their names are.
SIGNATURE = re.compile(
    rb"\xff\xd8\xff|\x89PNG|GIF8|BM.{4}\0{4}|RIFF.{4}WEBP|II[*+]\0|MM\0[*+]", re.DOTALL
)
# The parts of a data set by the names of their folders, which may be in any case, with
# numbers and with one of `FILLERS`: Train, test_set, val2017.
PARTS = {
    **{"train": "train", "training": "train"},
    **{"validation": "validation", "valid": "validation", "val": "validation"},
    **{"test": "test", "testing": "test"},
}
# By Python's own list alone: a machine's, /etc/mime.types, has other names.
TYPES = mimetypes.MimeTypes(filenames=())
FILLERS = ("set", "data", "dataset", "split", "image", "images")


@dataclass(frozen=True)
class ClassFolders:
    """The images of a data set in class folders."""

    class_names: tuple[str, ...]
    # The files of each class, by part, train first. All are train, where there are no
    # folders of parts.
    images: dict[str, list[list[Path]]]
    passed_over: list[Path]  # no images, or images outside of class folders


@activity("listing image files")
def open_class_folders(root: PathLike, on_bad_image: str = "error") -> ClassFolders:
    """List the parts, classes and images of a data set.

    Args:
        root: Its folder; `~` is the user's own.
        on_bad_image: With `"error"`, unreadable images are named where there is an
            error for another reason.

    Raises:
        DataError: There is no such folder, it is ambiguous what the folders in it are;
            or everything that is wrong with these.
    """
    root = Path(root).expanduser()
    _check_root(root)
    parts = _find_parts(root)
    folders = {part: subfolders(parent) for part, parent in parts.items()}
    _check_class_folders(parts["train"], folders["train"])
    problems = _structure_problems(parts, folders)
    files = {part: list(map(list_files, of_part)) for part, of_part in folders.items()}
    images = {
        part: [list(filter(is_image, of_class)) for of_class in of_part]
        for part, of_part in files.items()
    }
    problems += [
        problem
        for part, of_part in images.items()
        for problem in no_images(part, [f.name for f in folders[part]], of_part)
    ]
    found = [f for of_part in images.values() for of_class in of_part for f in of_class]
    problems += _names_not_utf8(found)
    if problems and on_bad_image == "error":
        problems += unreadable(scan(found, _decode_with_pillow), len(found))
    raise_problems(root, problems)
    every = {f for of_part in files.values() for of_class in of_part for f in of_class}
    unused = _images_outside(root, parts, folders)
    passed_over = sorted((every - set(found)) | unused)
    return ClassFolders(tuple(f.name for f in folders["train"]), images, passed_over)


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
    """The folder of each part, train first; root itself where it has class folders.

    The structure says what a folder like train/ is: a part holds folders, a class holds
    images.

    Raises:
        DataError: Both are possible, there is no train/, or a part has two folders.
    """
    folders = subfolders(root)
    named = {folder: part for folder in folders if (part := _part(folder.name))}
    if not named:
        return {"train": root}
    parents = [folder for folder in named if subfolders(folder)]
    others = [
        f for f in folders if f not in named and any(map(is_image, list_files(f)))
    ]
    if others and not parents:
        return {"train": root}
    if not parents or (others and not _share_classes(parents)):
        _refuse_ambiguous(root, parents or list(named), others)
    found = {part: folder for folder, part in named.items()}
    if "train" not in found or len(found) < len(named):
        raise DataError(
            f"folder:{root}: must have train/, and may have val/ and test/ beside it, "
            f"one folder for each. Received: {listed(f.name for f in named)}"
        )
    return {
        part: found[part] for part in dict.fromkeys(PARTS.values()) if part in found
    }


def _part(name: str) -> str | None:
    """The part of a data set that a folder's name may mean."""
    words = re.findall(r"[^\W\d_]+", name.casefold())
    words = [re.sub("(set|data)$", "", word) for word in words if word not in FILLERS]
    return PARTS.get(words[0]) if len(words) == 1 else None


def _share_classes(parents: Sequence[Path]) -> bool:
    """Whether several folders have folders of the same names, as parts have."""
    names = [{folder.name for folder in subfolders(parent)} for parent in parents]
    return len(names) > 1 and bool(set.intersection(*names))


def _refuse_ambiguous(
    root: Path, named: Sequence[Path], others: Sequence[Path]
) -> None:
    """Raise DataError with both readings of folders like train/."""
    names, beside = (listed(f"{f.name}/" for f in each) for each in (named, others))
    if others:
        raise DataError(
            f"folder:{root}: {names} may be parts of the data set, as they hold "
            f"folders, or classes like {beside} beside them. For parts, move {beside} "
            f"elsewhere; for classes, put the images of {names} directly into them"
        )
    raise DataError(
        f"folder:{root}: {names} may be parts of the data set, as their names say, or "
        "classes, as they hold no folders. For parts, each must contain at least 2 "
        "class folders; for classes, rename them"
    )


def _check_class_folders(parent: Path, folders: Sequence[Path]) -> None:
    """Raise DataError where there are fewer than two classes."""
    if len(folders) < 2:
        raise DataError(
            f"folder:{parent}: must contain at least 2 class folders with images, such "
            f"as {parent}/cat/1.jpg and {parent}/dog/1.jpg. "
            f"{_what_is_there(parent, [folder.name for folder in folders])}"
        )


def _structure_problems(
    parts: dict[str, Path], folders: dict[str, list[Path]]
) -> list[str]:
    """What is wrong with the names of class folders."""
    problems = []
    for part, parent in parts.items():
        names = [folder.name for folder in folders[part]]
        if differing := set(names) ^ {folder.name for folder in folders["train"]}:
            problems.append(
                f"{parts['train'].name}/ and {parent.name}/ must have the same class "
                f"folders. Only in one of them: {listed(distinct(differing))}"
            )
        if alike := [text for text in distinct(names) if text not in names]:
            problems.append(f"{parent}: one name in two forms: {listed(alike)}")
        for folder in folders[part]:
            inside = [child.name for child in subfolders(folder)]
            if len(set(map(_part, inside)) - {None}) > 1:
                problems.append(
                    f"{folder} must be in the folders of the parts, not above them. "
                    f"Received: {listed(inside)} in it"
                )
    return problems


def distinct(names: Iterable[str]) -> list[str]:
    """Sorted names; of those that only differ in their Unicode form, the code points.

    An ä may be one character (NFC) or an a and two dots (NFD, as macOS writes it).
    """
    names = sorted(names)
    forms = Counter(unicodedata.normalize("NFC", name) for name in names)
    return [
        f"{name} ({name!a})" if forms[unicodedata.normalize("NFC", name)] > 1 else name
        for name in names
    ]


def _what_is_there(parent: Path, folders: Sequence[str]) -> str:
    """What a folder without class folders has instead."""
    files = [path.name for path in _entries(parent) if not path.is_dir()]
    received = f"Received: folders: {listed(folders)}"
    if files:
        received += f"; files: {listed(files)}"
    elif len(folders) == 1 and len(subfolders(parent / folders[0])) > 1:
        received += f". Did you mean folder:{parent / folders[0]}?"
    return received


def _images_outside(
    root: Path, parts: dict[str, Path], folders: dict[str, list[Path]]
) -> set[Path]:
    """Images beside the class folders, and beside the folders of parts."""
    known = {*parts.values(), *(f for of_part in folders.values() for f in of_part)}
    beside = [path for parent in {root, *parts.values()} for path in _entries(parent)]
    unused = [path for path in beside if path not in known and not _leads_up(path)]
    files = [
        f for path in unused for f in (list_files(path) if path.is_dir() else [path])
    ]
    return set(filter(is_image, files))


def no_images(
    part: str, names: Sequence[str], images: Sequence[Sequence[Path]]
) -> list[str]:
    """The problem of a part's classes without images."""
    pairs = zip(names, images, strict=True)
    empty = [name for name, of_class in pairs if not of_class]
    return [f"no images in class folder {listed(empty)} ({part})"] if empty else []


def _names_not_utf8(files: Iterable[Path]) -> list[str]:
    """The problem of names that TensorFlow, which reads the files, cannot represent."""
    names = (name for f in files if not _is_utf8(str(f)) for name in f.parts)
    bad = {repr(name) for name in names if not _is_utf8(name)}
    return [f"names must be UTF-8: {listed(bad)}"] if bad else []


def _is_utf8(name: str) -> bool:
    """Whether a name of the file system, which may have any bytes, is text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def unreadable(reasons: dict[Path, str], images: int) -> list[str]:
    """The problem of images that cannot be decoded; see `scan`."""
    if not reasons:
        return []
    return [
        f"{len(reasons)} of {images} images cannot be read (--data.on_bad_image skip "
        f"ignores them): {listed(reasons.values(), '; ')}"
    ]


def raise_problems(root: PathLike, problems: Sequence[str]) -> None:
    """Raise DataError where there are problems, with all of them in one line."""
    if len(problems) > 1:
        problems = [f"({i}) {problem}" for i, problem in enumerate(problems, 1)]
        problems = [f"{len(problems)} problems: {'; '.join(problems)}"]
    if problems:
        raise DataError(f"folder:{root}: {problems[0]}")


def scan(files: Sequence[Path], decode: Callable[[LocalPath], Any]) -> dict[Path, str]:
    """Decode all files: the reason for each that cannot be decoded.

    `decode` raises ValueError, "PATH: REASON", for a local file.
    """

    def reason(path: Path) -> str | None:
        try:
            with storage.local_copy(path) as local:
                if is_special(local):
                    return f"{path}: must be a regular file"
                decode(local)
        except ValueError as error:
            return f"{path}: {str(error).partition(': ')[2]}"
        return None

    with activity(f"checking {len(files)} images"), ThreadPoolExecutor() as pool:
        found = zip(files, pool.map(reason, files), strict=True)
        return {path: text for path, text in found if text is not None}


def _decode_with_pillow(path: LocalPath) -> None:
    """Decode an image without TensorFlow, whose import takes longer than the error."""
    try:
        with Image.open(path) as image:
            image.load()
    except Exception as error:  # each of Pillow's decoders has its own
        raise ValueError(f"{path}: {error}") from None


def subfolders(parent: Path) -> list[Path]:
    """The folders in a folder, sorted, without system files and links upwards."""
    return [path for path, _, is_folder in _entries_and_kinds(parent) if is_folder]


def _leads_up(path: Path) -> bool:
    """Whether a link leads to its own folder or one above, which would be a loop."""
    if not os.path.islink(path):
        return False
    parent, target = os.path.realpath(path.parent), os.path.realpath(path)
    return os.path.commonpath([parent, target]) == target


def list_files(folder: Path) -> list[Path]:
    """All files below a folder, sorted, without system files, and each one once.

    Links are followed, except those to a folder above, which would be a loop.
    """
    found: list[Path] = []
    seen: set[str] = set()

    def visit(parent: Path, real_parent: str) -> None:
        entries = _entries_and_kinds(parent)
        entries.sort(key=lambda entry: entry[1])  # links last
        for path, is_link, is_folder in entries:
            real = os.path.realpath(path) if is_link else f"{real_parent}/{path.name}"
            if real in seen:
                continue
            seen.add(real)
            if is_folder:
                visit(path, real)
            else:
                found.append(path)

    visit(folder, os.path.realpath(folder))
    return sorted(found, key=lambda path: path.parts)


def _entries_and_kinds(folder: Path) -> list[tuple[Path, bool, bool]]:
    """The entries of a folder, whether each is a link, and whether it is a folder.

    Links to a folder above are left out. On a disk the operating system says all at
    once, in a third of the time.
    """
    if storage.is_remote(folder):
        return [(path, False, path.is_dir()) for path in _entries(folder)]
    with os.scandir(folder) as found:
        entries = [entry for entry in found if not is_system_file(entry.name)]
    entries.sort(key=lambda entry: entry.name)
    return [
        (folder / entry.name, link, os.path.isdir(entry) if link else entry.is_dir())
        for entry in entries
        for link in [entry.is_symlink()]
        if not (link and _leads_up(folder / entry.name))
    ]


def _entries(folder: Path) -> list[Path]:
    entries = [path for path in folder.iterdir() if not is_system_file(path.name)]
    return sorted(entries, key=lambda path: path.name)


def image_files(folder: Path) -> list[Path]:
    """All images below a folder; see `list_files`."""
    return list(filter(is_image, list_files(folder)))


def is_image(path: Path) -> bool:
    """Whether a file's name or else the beginning of its contents is an image's."""
    if path.suffix.lower() in SUFFIXES:
        return True
    kind, _ = TYPES.guess_type(path.name)
    if kind is not None and kind.startswith("image/"):
        return True
    if is_special(path):
        return False
    try:
        with storage.os_errors(path), path.open("rb") as file:
            return SIGNATURE.match(file.read(16)) is not None
    except OSError:
        return False


def is_special(path: LocalPath) -> bool:
    """Whether it is a pipe, socket or device, whose contents may never come or end."""
    # Not by methods of epath, which take everything but folders for files.
    return os.path.exists(path) and not os.path.isfile(path)


def is_system_file(name: str) -> bool:
    """Whether a file or folder is hidden or one of `SYSTEM_FILES`."""
    return name.startswith(".") or name.lower() in SYSTEM_FILES


def listed(items: Iterable[str], separator: str = ", ") -> str:
    """The first five items, and the number of the others."""
    items = sorted(items)
    more = f"{separator}and {len(items) - 5} more" if len(items) > 5 else ""
    return (separator.join(items[:5]) or "none") + more
