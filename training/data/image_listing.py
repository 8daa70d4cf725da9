"""Image files below a folder, on a disk or in a bucket: names, sizes and times.

Paths are strings: of hundreds of thousands of files, `Path` objects would take longer
and more memory than all the rest.
"""

import mimetypes
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from etils.epath import Path, PathLike

from .. import storage

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
# By Python's own list alone: a machine's, /etc/mime.types, has other names.
TYPES = mimetypes.MimeTypes(filenames=())
REMOTE_READS = 32  # requests to a bucket at a time


class ImageFile(NamedTuple):
    """A file as its folder lists it."""

    path: str
    size: int  # bytes; 0 where it cannot be known
    modified: int  # nanoseconds

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


def image_files(folder: PathLike) -> list[ImageFile]:
    """All images below a folder; see `list_files`."""
    return with_sizes([path for path in list_files(folder) if is_image(path)])


def with_sizes(paths: Sequence[str]) -> list[ImageFile]:
    """Files with their sizes and times."""
    if not paths or not storage.is_remote(paths[0]):
        return list(map(_local_file, paths))
    with ThreadPoolExecutor(REMOTE_READS) as pool:
        return list(pool.map(_remote_file, paths))


def _local_file(path: str) -> ImageFile:
    try:
        found = os.stat(path)
    except OSError:  # a link to nothing
        return ImageFile(path, 0, 0)
    return ImageFile(path, found.st_size, found.st_mtime_ns)


def _remote_file(path: str) -> ImageFile:
    found = Path(path).stat()
    return ImageFile(path, found.length, int(found.mtime * 1e9))


def list_files(folder: PathLike) -> list[str]:
    """All files below a folder, sorted, without system files, and each one once.

    Links are followed, except those to a folder above, which would be a loop.
    """
    # Names in the working directory are those of its files.
    root = "" if os.fspath(folder) == "." else os.fspath(folder)
    seen: set[str] = set()

    def visit(parent: str, real_parent: str) -> Iterator[str]:
        # Links last: a file has its own name.
        for entry in sorted(_entries(parent or "."), key=lambda e: e.is_link):
            path = os.path.join(parent, entry.name)
            real = f"{real_parent}/{entry.name}"
            if entry.is_link:
                real = os.path.realpath(path)
            if real in seen:
                continue
            seen.add(real)
            if entry.is_folder:
                yield from visit(path, real)
            else:
                yield path

    found = visit(root, os.path.realpath(folder))
    return sorted(found, key=lambda path: path.replace("/", "\0"))  # by their parts


def subfolders(parent: Path) -> list[Path]:
    """The folders in a folder, sorted, without system files and links upwards."""
    return [parent / entry.name for entry in _entries(parent) if entry.is_folder]


def entries(folder: Path) -> list[Path]:
    """All that is in a folder, sorted, without system files."""
    found = [path for path in folder.iterdir() if not is_system_file(path.name)]
    return sorted(found, key=lambda path: path.name)


class _Entry(NamedTuple):
    """An entry of a folder."""

    name: str
    is_link: bool
    is_folder: bool


def _entries(folder: PathLike) -> list[_Entry]:
    """The entries of a folder, sorted, without links to a folder above.

    On a disk the operating system says at once which are folders.
    """
    if storage.is_remote(folder):
        return [
            _Entry(path.name, False, path.is_dir()) for path in entries(Path(folder))
        ]
    with os.scandir(folder) as found:
        kept = [entry for entry in found if not is_system_file(entry.name)]
    kept.sort(key=lambda entry: entry.name)
    return [
        _Entry(entry.name, link, os.path.isdir(entry) if link else entry.is_dir())
        for entry in kept
        for link in [entry.is_symlink()]
        if not (link and leads_up(entry.path))
    ]


def leads_up(path: PathLike) -> bool:
    """Whether a link leads to its own folder or one above, which would be a loop."""
    if not os.path.islink(path):
        return False
    parent = os.path.realpath(os.path.dirname(path))
    target: str = os.path.realpath(path)
    return os.path.commonpath([parent, target]) == target


def is_image(path: str) -> bool:
    """Whether a file's name or else the beginning of its contents is an image's."""
    name = path.rpartition("/")[2]
    if os.path.splitext(name)[1].lower() in SUFFIXES:
        return True
    kind, _ = TYPES.guess_type(name)
    if kind is not None and kind.startswith("image/"):
        return True
    if is_special(path):
        return False
    try:
        with storage.os_errors(path), Path(path).open("rb") as file:
            return SIGNATURE.match(file.read(16)) is not None
    except OSError:
        return False


def is_special(path: PathLike) -> bool:
    """Whether it is a pipe, socket or device, whose contents may never come or end."""
    # Not by methods of epath, which take everything but folders for files.
    return os.path.exists(path) and not os.path.isfile(path)


def is_system_file(name: str) -> bool:
    """Whether a file or folder is hidden or one of `SYSTEM_FILES`."""
    return name.startswith(".") or name.lower() in SYSTEM_FILES
