"""The index of a folder's images: what was read of each file, kept in a cache.

An image is opened once: its header is checked, and its contents are sampled for the
digest by which other contents are noticed. The cache remembers both by the file's path,
size and time, so that hundreds of thousands of files are checked again in seconds.
"""

import hashlib
import io
import math
import os
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path as LocalPath
from typing import IO, Any, NamedTuple

import numpy as np
from etils.epath import Path, PathLike
from PIL import Image

from keras_vit._version import __version__
from keras_vit.common.activity import activity
from keras_vit.common.atomic_files import replacing
from keras_vit.typing import Array

from .. import storage
from .image_listing import REMOTE_READS, ImageFile, is_special

SAMPLE = 2**14  # bytes of the beginning of a file, and of its end, in the digest
DIGEST = 16  # bytes
CHUNK = 128  # files that a thread takes at a time
# A file may change twice within one step of a file system's clock: those that have
# changed so many nanoseconds ago are read again.
RECENT = 2 * 10**9
# Raises ValueError, "PATH: REASON", for a local file that cannot be decoded.
Decode = Callable[[LocalPath], Any]


@dataclass(frozen=True)
class ImageIndex:
    """What is known of the images of a folder, by their paths."""

    digests: dict[str, bytes]  # of the size, and of the first and last 16 KiB
    problems: dict[str, str]  # "PATH: REASON" of each file that cannot be read

    @classmethod
    def of_files(
        cls,
        root: PathLike,
        files: Sequence[ImageFile],
        decode: Decode | None = None,
        decode_all: bool = False,
    ) -> "ImageIndex":
        """Read what the cache of a folder does not know of its files.

        Args:
            root: The folder, by which the cache is found.
            files: The images in it.
            decode: Has the last word on a file whose header Pillow refuses.
            decode_all: Whether every file must have been decoded once.
        """
        cached = _read_cache(root)
        rows = {file: cached[file] for file in files if file in cached}
        wanted = [
            file
            for file in files
            if file not in rows or (decode_all and not rows[file].decoded)
        ]
        if wanted:
            found = _inspected(wanted, decode, decode_all)
            rows.update(zip(wanted, found, strict=True))
            _write_cache(root, rows)
        return cls(
            {file.path: row.digest for file, row in rows.items()},
            {file.path: row.problem for file, row in rows.items() if row.problem},
        )

    def digests_of(self, paths: Sequence[str]) -> Array:
        """The digests of some files, uint8 [n, 16]."""
        joined = b"".join(self.digests[path] for path in paths)
        return np.frombuffer(joined, np.uint8).reshape(-1, DIGEST)


class _Row(NamedTuple):
    """What is known of one file."""

    digest: bytes
    decoded: bool
    problem: str = ""


def _inspected(
    files: Sequence[ImageFile], decode: Decode | None, decode_all: bool
) -> Iterator[_Row]:
    """Read files in parallel."""
    remote = storage.is_remote(files[0].path)
    what = "decoding" if decode_all else "checking the headers of"
    size = 1 if remote else CHUNK
    chunks = [files[start : start + size] for start in range(0, len(files), size)]

    def inspect(chunk: Sequence[ImageFile]) -> list[_Row]:
        return [_inspect(file.path, decode, decode_all) for file in chunk]

    with (
        activity(f"{what} {len(files)} images"),
        warnings.catch_warnings(),
        ThreadPoolExecutor(REMOTE_READS if remote else None) as pool,
    ):
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        for rows in pool.map(inspect, chunks):
            yield from rows


def _inspect(path: str, decode: Decode | None, decode_all: bool) -> _Row:
    """Open one file."""
    digest = bytes(DIGEST)
    if is_special(path):
        return _Row(digest, False, f"{path}: must be a regular file")
    try:
        with storage.os_errors(path), _opened(path) as file:
            digest = _digest(file)
            problem = _header_problem(file)
    except OSError as error:
        return _Row(digest, False, f"{path}: cannot be read: {error.strerror}")
    decoded = bool(decode and (problem or decode_all))
    if decode and decoded:
        try:
            with storage.local_copy(path) as local:
                decode(local)
        except (ValueError, OSError) as error:
            problem = str(error).partition(": ")[2]
        else:
            problem = ""
    return _Row(digest, decoded, f"{path}: {problem}" if problem else "")


def _opened(path: str) -> IO[bytes]:
    return Path(path).open("rb") if storage.is_remote(path) else open(path, "rb")


def _digest(file: IO[bytes]) -> bytes:
    """A hash of a file's size, beginning and end."""
    sample = file.read(SAMPLE)
    size = file.seek(0, io.SEEK_END) or file.tell()  # gfile's seek returns nothing
    file.seek(max(len(sample), size - SAMPLE))
    sample += file.read()
    return hashlib.blake2b(b"%d %b" % (size, sample), digest_size=DIGEST).digest()


def _header_problem(file: IO[bytes]) -> str:
    """Why Pillow cannot read the header of an image; empty where it can."""
    file.seek(0)
    try:
        with Image.open(file) as image:
            width, height = image.size
    except Exception as error:  # each of Pillow's decoders has its own  # noqa: BLE001
        return f"not a readable image: {error}"
    too_large = width * height > (Image.MAX_IMAGE_PIXELS or math.inf)
    return f"not a readable image: {width} x {height} pixels" if too_large else ""


def cache_folder() -> LocalPath:
    """The folder of the indexes, beside that of downloaded weights."""
    home = LocalPath(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    return home / "keras_vit" / "image_indexes"


def _cache_file(root: PathLike) -> LocalPath:
    name = os.fspath(root)
    if not storage.is_remote(root):
        name = os.path.realpath(name)
    return cache_folder() / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.npz"


def _read_cache(root: PathLike) -> dict[ImageFile, _Row]:
    """What the cache knows of the files of a folder; nothing where there is none."""
    try:
        with np.load(_cache_file(root)) as stored:
            if stored["version"].item() != __version__:
                return {}
            paths = stored["paths"].tobytes().decode("utf-8", "surrogateescape")
            sizes, times, decoded = (
                stored[name].tolist() for name in ("sizes", "times", "decoded")
            )
            digests = stored["digests"].tobytes()
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return {}
    files = map(ImageFile, paths.split("\0"), sizes, times)
    return {
        file: _Row(digests[DIGEST * number : DIGEST * (number + 1)], known)
        for number, (file, known) in enumerate(zip(files, decoded, strict=True))
    }


def _write_cache(root: PathLike, rows: Mapping[ImageFile, _Row]) -> None:
    """Remember what is known of the files without a problem.

    A file that cannot be read may be readable without any change of its own. A cache
    that cannot be written is no error: the next opening takes longer.
    """
    settled = time.time_ns() - RECENT
    kept = {
        file: row
        for file, row in rows.items()
        if not row.problem and file.modified < settled
    }
    paths = "\0".join(file.path for file in kept)
    digests = b"".join(row.digest for row in kept.values())
    path = _cache_file(root)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as written:
            np.savez(
                written,
                version=np.array(__version__),
                paths=np.frombuffer(paths.encode("utf-8", "surrogateescape"), np.uint8),
                sizes=np.array([file.size for file in kept], np.int64),
                times=np.array([file.modified for file in kept], np.int64),
                decoded=np.array([row.decoded for row in kept.values()], np.bool_),
                digests=np.frombuffer(digests, np.uint8),
            )
    except OSError:
        return
