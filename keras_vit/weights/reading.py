"""Files of arrays: .npz, .safetensors, HDF5, PyTorch's, their shards, and folders.

Arrays are found without being read. Files may be hostile: none runs code, and what one
announces is compared with the bytes that it holds before memory is taken for it.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import math
import mmap
import os
import pathlib
import zipfile
from typing import Any, Literal, NoReturn, Self

import h5py
import numpy as np

from keras_vit.errors import WeightsFileError
from keras_vit.typing import Array
from keras_vit.weights.stored_arrays import (
    BFLOAT16,
    StoredArray,
    check_announced,
    map_file,
    refuse,
    refusing,
)
from keras_vit.weights.torch_files import (
    PICKLES,
    is_torch_archive,
    refuse_pickle,
    torch_arrays,
)
from keras_vit.weights.zip_members import check_directory, check_sum, start_of

_LOG = logging.getLogger("keras_vit")
# The types of safetensors that NumPy and ml_dtypes have, by their names there.
SAFETENSORS_DTYPES = {
    **{f"F{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    **{f"I{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    "BF16": BFLOAT16,
    "BOOL": np.dtype(bool),
}
# Bytes of JSON that are parsed; in Python's objects it may be 30 times as large. The
# largest known ones list the 21,843 classes of ImageNet-21k in 2 MB.
LARGEST_JSON = 2**23
# Attribute of an HDF5 file that holds a whole Keras model, and key of our metadata.
MODEL_CONFIG = "model_config"
NPY_HEADER = 10_000  # bytes of the header of an array in an .npz, as in NumPy


def _view(
    shape: tuple[int, ...],
    dtype: np.dtype,
    order: Literal["C", "F"],
    buffer: bytes | mmap.mmap,
    start: int,
) -> Array:
    return np.ndarray(shape, dtype, buffer, start, order=order)


def _known(dtype: np.dtype) -> np.dtype:
    """Read two raw bytes as bfloat16, which NumPy and HDF5 lack."""
    return BFLOAT16 if dtype == np.dtype("V2") else dtype


def npz_arrays(
    path: pathlib.Path, stack: contextlib.ExitStack
) -> tuple[dict[str, StoredArray], dict[str, str]]:
    """Arrays and metadata of an .npz file, which the stack closes.

    The metadata is the JSON object in the archive's comment, {} for another comment.
    """
    data = map_file(path)
    archive = stack.enter_context(zipfile.ZipFile(path))
    names = archive.namelist()
    if "model.weights.h5" in names:
        refuse(path, "a .keras file: open it with keras.models.load_model")
    if not all(name.endswith(".npy") for name in names):
        refuse(path, "a ZIP archive that is not an .npz file")
    check_directory(names, data)
    arrays = {
        member.filename.removesuffix(".npy"): _npz_member(path, archive, member, data)
        for member in archive.infolist()
    }
    return arrays, _comment_metadata(archive.comment)


def _comment_metadata(comment: bytes) -> dict[str, str]:
    try:
        return parse_json(comment)
    except (TypeError, ValueError):
        return {}


def _npz_member(
    path: pathlib.Path,
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    data: mmap.mmap,
) -> StoredArray:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # Others may announce a dictionary of 4 GB.
        raise ValueError(f"{member.filename} is compressed in an unknown way")
    shape, fortran, dtype, header = _npy_header(archive, member)
    if dtype.hasobject:
        refuse(path, f"with an array of Python objects, {member.filename!r}")
    dtype = _known(dtype)
    if header + math.prod(shape) * dtype.itemsize != member.file_size:
        raise ValueError(f"{member.filename} is too short or too long for {shape}")
    view = functools.partial(_view, shape, dtype, "F" if fortran else "C")

    def read_compressed() -> Array:
        with refusing(path):  # read to its end: there zipfile compares the checksum
            return view(archive.read(member), header)

    if member.compress_type != zipfile.ZIP_STORED:
        return StoredArray(shape, dtype, read_compressed, read_compressed)
    start = start_of(member, data)
    return StoredArray(
        shape,
        dtype,
        lambda: view(data, start + header),
        functools.partial(check_sum, path, member, data),
    )


def _npy_header(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo
) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """(shape, Fortran order, dtype, bytes of the header) of a member."""
    stream: Any  # a `zipfile.ZipExtFile`, of which the annotation of `open` says less
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        # NumPy reads it all, up to 4 GB, before it compares.
        length = int.from_bytes(stream.peek(4)[:4], "little")
        if version == (2, 0) and length > NPY_HEADER:
            raise ValueError(f"{member.filename} has a header of {length:,} bytes")
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        return *read(stream), stream.tell()


def safetensors_arrays(
    path: pathlib.Path,
) -> tuple[dict[str, StoredArray], dict[str, str]]:
    """Arrays and metadata of a .safetensors file."""
    # Without the safetensors library, which copies every array that it reads. All that
    # it refuses is refused here: the arrays are contiguous and fill the file.
    data = map_file(path)
    end = 8 + int.from_bytes(data[:8], "little")
    if end > len(data):
        raise ValueError("the header extends past the end of the file")
    with memoryview(data)[8:end] as text:
        header = parse_json(text)
    metadata = header.pop("__metadata__", {})
    if not all(isinstance(text, str) for text in metadata.values()):
        raise TypeError("__metadata__ must hold strings")
    arrays, origin = {}, end
    for name in sorted(header, key=lambda name: header[name]["data_offsets"]):
        entry = header[name]
        if entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise KeyError(f"{name} has the entries {sorted(entry)}")
        dtype = SAFETENSORS_DTYPES.get(entry["dtype"])
        if dtype is None:
            refuse(path, f"in which {name!r} is {entry['dtype']!r}")
        begin, stop = entry["data_offsets"]
        if not (type(begin) is type(stop) is int and type(entry["shape"]) is list):
            raise TypeError(f"{name} has the entries {entry!r:.200}")
        shape, begin, stop = tuple(entry["shape"]), origin + begin, origin + stop
        read = functools.partial(_view, shape, dtype, "C", data, begin)
        arrays[name] = StoredArray(shape, dtype, read)
        if begin != end or stop - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{name} of {shape} has wrong data offsets")
        end = stop
    if end != len(data):
        raise ValueError(f"{len(data)} bytes instead of {end}")
    return arrays, metadata


def parse_json(text: bytes | memoryview) -> dict[str, Any]:
    """Parse a JSON object strictly, as RFC 8259 recommends.

    Raises:
        ValueError: It is too large or malformed, repeats a key, or has a number that
            JSON lacks or a character that UTF-8 lacks.
        TypeError: It is not an object.
    """
    if len(text) > LARGEST_JSON:
        raise ValueError(f"more JSON than the {LARGEST_JSON:,} bytes that are parsed")
    value = json.loads(
        decoded := str(text, "utf-8"),
        object_pairs_hook=_unique,
        parse_int=_integer,
        parse_constant=_integer,  # NaN and Infinity, which are none
    )
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    if "\\u" in decoded:
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r:.100} appears twice in a JSON object")
        found[name] = value
    return found


def _integer(text: str) -> int:
    if text == "-0":
        raise ValueError("-0 is not an integer")
    return int(text)


def hdf5_arrays(
    path: pathlib.Path, stack: contextlib.ExitStack, content: Any = None
) -> dict[str, StoredArray]:
    """Arrays of an HDF5 file by their full path; the stack closes it.

    Args:
        path: The file.
        stack: What closes it.
        content: The HDF5 file as a binary file, where `path` is an archive around it.
    """
    arrays = {}

    def visit(
        name: str, item: Any
    ) -> None:  # a result other than None would end the visit
        if isinstance(item, h5py.Dataset):
            arrays[name] = _hdf5_dataset(path, item)

    file = stack.enter_context(h5py.File(content or path, "r"))
    # Keras follows links by name, also those to other files of the machine.
    if (link := file.visititems_links(_named_link)) is not None:
        refuse(path, f"in which {link!r} is a link to another place")
    file.visititems(visit)
    return arrays


def hdf5_config(path: pathlib.Path) -> dict[str, str]:
    """`model_config` of a whole Keras model in HDF5, as JSON; {} for other files."""
    with h5py.File(path, "r") as file:
        config = file.attrs.get(MODEL_CONFIG)
    if config is None:
        return {}
    return {MODEL_CONFIG: config if isinstance(config, str) else str(config, "utf-8")}


def _named_link(name: str, link: Any) -> str | None:
    return None if isinstance(link, h5py.HardLink) else name


def _hdf5_dataset(path: pathlib.Path, dataset: h5py.Dataset) -> StoredArray:
    if dataset.external or dataset.is_virtual:
        refuse(path, f"which takes {dataset.name!r} from another file")
    if dataset.dtype.hasobject:
        refuse(path, f"with an array of Python objects, {dataset.name!r}")
    if dataset.id.get_create_plist().get_nfilters():
        # HDF5 takes memory for whatever they produce, before it compares the size.
        refuse(path, f"in which {dataset.name!r} is compressed or filtered")
    stored, chunk = dataset.id.get_storage_size(), dataset.chunks or dataset.shape
    lengths = zip(dataset.shape, chunk, strict=True)
    chunks = math.prod(-(-length // max(side, 1)) for length, side in lengths)
    wanted = chunks * math.prod(chunk) * dataset.dtype.itemsize
    if stored != wanted or stored > path.stat().st_size:
        raise ValueError(f"{dataset.name} has {stored} bytes")
    dtype = _known(dataset.dtype)

    def read() -> Array:
        with refusing(path):
            return np.asarray(dataset[()]).view(dtype)

    return StoredArray(dataset.shape, dtype, read)


__all__ = ["ArrayFile", "StoredArray", "WeightsFileError", "open_arrays"]

# OpenCLIP's own names: its files often lie beside Hugging Face's of the same model.
OPEN_CLIP, OPEN_CLIP_CONFIG = "open_clip_model.safetensors", "open_clip_config.json"
# The same arrays as `torch.save` writes them.
OPEN_CLIP_TORCH = "open_clip_pytorch_model.bin"
# The files to look for in a folder: Hugging Face's and timm's, OpenCLIP's, then
# keras-hub's, which has one for the backbone and one for the head, then those of
# PyTorch, and of transformers 4 alone.
FOLDER_FILES = (
    ("model.safetensors",),
    ("model.safetensors.index.json",),
    (OPEN_CLIP,),
    ("model.weights.h5", "task.weights.h5"),
    ("pytorch_model.bin",),
    ("pytorch_model.bin.index.json",),
    (OPEN_CLIP_TORCH,),
    ("tf_model.h5",),
)


@dataclasses.dataclass
class ArrayFile:
    """Context manager around an open file of arrays; see `open_arrays`.

    Arrays that were read outlive it.

    Args:
        path: The file or the folder.
        format: `"npz"`, `"safetensors"`, `"hdf5"` or `"torch"`.
        arrays: The arrays by name.
        metadata: Of a .safetensors or .npz file; `MODEL_CONFIG` of a Keras model.
        resources: What `close` closes.
        config_name: Name of the file beside it that describes the model.
    """

    path: pathlib.Path
    format: str
    arrays: dict[str, StoredArray]
    metadata: dict[str, str]
    resources: contextlib.ExitStack
    config_name: str = "config.json"

    def beside(self, name: str) -> dict[str, Any]:
        """JSON object of a file in the same folder, {} if absent.

        Raises:
            WeightsFileError: The file holds no JSON object.
        """
        folder = self.path if self.path.is_dir() else self.path.parent
        return _read_json(folder / name) if (folder / name).is_file() else {}

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """What describes the model; {} for an .npz, beside which nothing does."""
        return {} if self.format == "npz" else self.beside(self.config_name)

    def close(self) -> None:
        """Close the file."""
        self.resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_arrays(path: str | os.PathLike[str]) -> ArrayFile:
    """Open a file of arrays and read their names, shapes and dtypes.

    Args:
        path: An .npz file; a .safetensors file, or the `.index.json` of its shards; an
            HDF5 file; a state dict that `torch.save` wrote; or a folder with one of
            these under the name that Hugging Face, timm, OpenCLIP or keras-hub give it,
            or with one PyTorch file. The content counts, not the suffix.

    Raises:
        WeightsFileError: There is no such file, it is none of these, or it is damaged
            where that shows without reading the arrays.
    """
    path = pathlib.Path(path).expanduser()
    arrays: dict[str, StoredArray] = {}
    metadata: dict[str, str] = {}
    shard_of: dict[str, str] = {}
    files, indexed = _files_of(path)
    held = sum(file.stat().st_size for file in files)
    with contextlib.ExitStack() as stack:
        for file in files:
            with refusing(file):
                kind = _kind(file)
                more: dict[str, str] = {}
                if kind == "hdf5":
                    found, more = hdf5_arrays(file, stack), hdf5_config(file)
                elif kind == "npz":
                    found, more = npz_arrays(file, stack)
                elif kind == "torch":
                    found = torch_arrays(file, stack)
                else:
                    found, more = safetensors_arrays(file)
                metadata.update(more)
            if twice := arrays.keys() & found.keys():
                refuse(file, f"which repeats {', '.join(sorted(twice))}")
            shard_of.update(dict.fromkeys(found, file.name))
            arrays.update(found)
        if not arrays:
            refuse(path, "which holds no arrays")
        _check_index(path, indexed, shard_of)
        check_announced(path, held, sum(each.announced for each in arrays.values()))
        of_open_clip = files[0].name in (OPEN_CLIP, OPEN_CLIP_TORCH)
        config = OPEN_CLIP_CONFIG if of_open_clip else "config.json"
        return ArrayFile(path, kind, arrays, metadata, stack.pop_all(), config)


def _files_of(path: pathlib.Path) -> tuple[list[pathlib.Path], dict[str, str]]:
    """Files to open, and by arrays the files that an index says they are in."""
    files = _files_in(path) if path.is_dir() else [path]
    if not files[0].is_file():
        refuse(path, "which does not exist")
    return _shards(files[0]) if files[0].suffix == ".json" else (files, {})


def _files_in(folder: pathlib.Path) -> list[pathlib.Path]:
    there = [
        [folder / name for name in names if (folder / name).is_file()]
        for names in FOLDER_FILES
    ]
    found = [files for files in there if files]
    if found:
        if others := [file.name for files in found[1:] for file in files]:
            _LOG.warning(
                "%s: read from %s, not %s", folder, found[0][0].name, ", ".join(others)
            )
        return found[0]
    there_too = (file for file in sorted(folder.iterdir()) if file.is_file())
    of_torch = [file for file in there_too if file.suffix in PICKLES]
    if not of_torch:
        wanted = ", ".join(name for names in FOLDER_FILES for name in names)
        refuse(folder, f"a folder without any of {wanted}")
    if len(of_torch) > 1:
        names = ", ".join(file.name for file in of_torch[:5])
        refuse(folder, f"a folder with several files of PyTorch, {names}: choose one")
    return of_torch


def _shards(index: pathlib.Path) -> tuple[list[pathlib.Path], dict[str, str]]:
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        refuse(index, "a .json without the `weight_map` of a model in several files")
    names = sorted(set(map(str, shards.values())))
    files = [index.parent / name for name in names]
    for name, file in zip(names, files, strict=True):
        # An untrusted index must not open files of other folders.
        if name != file.name:
            refuse(index, f"whose shard {name!r} is not the name of a file beside it")
        if not file.is_file():
            refuse(index, f"whose shard {name!r} is missing")
    return files, shards


def _check_index(
    index: pathlib.Path, listed: dict[str, str], found: dict[str, str]
) -> None:
    """Compare what an index says is in each shard with what is in it."""
    if not listed:
        return
    if lacking := listed.keys() - found.keys():
        refuse(index, f"whose shards lack {', '.join(sorted(lacking))}")
    if wrong := [name for name in found if listed.get(name) != found[name]]:
        refuse(index, f"which does not say where {', '.join(sorted(wrong))} is")


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    with refusing(path), path.open("rb") as file:
        return parse_json(file.read(LARGEST_JSON + 1))  # one more is refused


def _kind(path: pathlib.Path) -> str:
    """Format of a file, from its first bytes."""
    with path.open("rb") as file:
        start = file.read(512)
    if not start:
        refuse(path, "which is empty")
    if start[4:9] == b"\0\0\0\0{":  # behind the length of the header
        return "safetensors"
    if start[:4] in (b"PK\3\4", b"PK\5\6"):
        return "torch" if is_torch_archive(path) else "npz"
    if start[:8] != b"\x89HDF\r\n\x1a\n":
        _refuse_kind(path, start)
    return "hdf5"


def _refuse_kind(path: pathlib.Path, start: bytes) -> NoReturn:
    """Raise WeightsFileError for a file of no known format."""
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        refuse(path, "which looks like a web page: an error page or a log-in")
    if start.startswith(b"version https://git-lfs"):
        refuse(path, "a pointer of git-lfs, not the file itself: run `git lfs pull`")
    # The last are first in pickles of protocol 0, which is text.
    if start[:1] == b"\x80" or (path.suffix in PICKLES and start[:1] in b"(]}c"):
        refuse_pickle(path)
    refuse(path, "which is of no known format")
