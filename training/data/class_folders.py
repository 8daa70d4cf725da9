"""Class folders of images, on a disk or in a bucket: parts, classes and files.

What names and structure say, without TensorFlow: root/CLASS/..., or root/PART/CLASS/...
with folders for training, validation and test images (`PARTS`).
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from etils.epath import Path, PathLike

from keras_vit.common.activity import activity
from keras_vit.common.similar_names import did_you_mean

from ..errors import DataError
from .image_index import ImageIndex
from .image_listing import (
    ImageFile,
    entries,
    is_image,
    leads_up,
    list_files,
    subfolders,
    with_sizes,
)

# The parts of a data set by the names of their folders, which may be in any case, with
# numbers and with one of `FILLERS`: Train, test_set, val2017.
PARTS = {
    **{"train": "train", "training": "train"},
    **{"validation": "validation", "valid": "validation", "val": "validation"},
    **{"test": "test", "testing": "test"},
}
FILLERS = ("set", "data", "dataset", "split", "image", "images")


@dataclass(frozen=True)
class ClassFolders:
    """The images of a data set in class folders."""

    class_names: tuple[str, ...]
    # The files of each class, by part, train first. All are train, where there are no
    # folders of parts.
    images: dict[str, list[list[ImageFile]]]
    passed_over: list[str]  # no images, or images outside of class folders


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
        part: [with_sizes([f for f in of_class if is_image(f)]) for of_class in of_part]
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
        index = ImageIndex.of_files(root, found)
        problems += unreadable(index.problems, len(found))
    raise_problems(root, problems)
    every = {f for of_part in files.values() for each in of_part for f in each}
    unused = _images_outside(root, parts, folders)
    passed_over = sorted((every - {file.path for file in found}) | unused)
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
    other = " `--data.source folder:PATH` names another"
    raise DataError(f"folder:{root}: there is no such folder.{hint or other}")


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
        folder
        for folder in folders
        if folder not in named and any(map(is_image, list_files(folder)))
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
    files = [path.name for path in entries(parent) if not path.is_dir()]
    received = f"Received: folders: {listed(folders)}"
    if files:
        received += f"; files: {listed(files)}"
    elif len(folders) == 1 and len(subfolders(parent / folders[0])) > 1:
        received += f". Did you mean folder:{parent / folders[0]}?"
    return received


def _images_outside(
    root: Path, parts: dict[str, Path], folders: dict[str, list[Path]]
) -> set[str]:
    """Images beside the class folders, and beside the folders of parts."""
    known = {*parts.values(), *(f for of_part in folders.values() for f in of_part)}
    beside = [path for parent in {root, *parts.values()} for path in entries(parent)]
    unused = [path for path in beside if path not in known and not leads_up(path)]
    files = [
        file
        for path in unused
        for file in (list_files(path) if path.is_dir() else [str(path)])
    ]
    return set(filter(is_image, files))


def no_images(
    part: str, names: Sequence[str], images: Sequence[Sequence[object]]
) -> list[str]:
    """The problem of a part's classes without images."""
    pairs = zip(names, images, strict=True)
    empty = [name for name, of_class in pairs if not of_class]
    return [f"no images in class folder {listed(empty)} ({part})"] if empty else []


def _names_not_utf8(files: Iterable[ImageFile]) -> list[str]:
    """The problem of names that TensorFlow, which reads the files, cannot represent."""
    paths = [file.path for file in files if not _is_utf8(file.path)]
    names = {name for path in paths for name in path.split("/")}
    bad = [repr(name) for name in names if not _is_utf8(name)]
    return [f"names must be UTF-8: {listed(bad)}"] if bad else []


def _is_utf8(name: str) -> bool:
    """Whether a name of the file system, which may have any bytes, is text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def unreadable(reasons: Mapping[str, str], images: int) -> list[str]:
    """The problem of images that cannot be read; see `ImageIndex`."""
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


def listed(items: Iterable[str], separator: str = ", ") -> str:
    """The first five items, and the number of the others."""
    items = sorted(items)
    more = f"{separator}and {len(items) - 5} more" if len(items) > 5 else ""
    return (separator.join(items[:5]) or "none") + more
