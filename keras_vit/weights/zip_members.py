"""Members of ZIP archives that hold arrays, as .npz and PyTorch's files are."""

import mmap
import pathlib
import struct
import zipfile
import zlib

from keras_vit.weights.stored_arrays import refuse

# Of the header before a member of a ZIP: the lengths of its name and extra field.
ZIP_LENGTHS = struct.Struct("<26xHH")
# Of the record at the end of a ZIP: the number of members; 0xFFFF if it is larger.
ZIP_COUNT = struct.Struct("<10xH")


def check_directory(names: list[str], data: mmap.mmap) -> None:
    """Raise ValueError where members of an archive are repeated or lack."""
    (count,) = ZIP_COUNT.unpack_from(data, data.rfind(b"PK\5\6"))
    if count not in (len(names), 0xFFFF):  # zipfile reads past damaged entries
        raise ValueError(f"{len(names)} arrays instead of {count}")
    if len(set(names)) < len(names):
        raise ValueError("two members of the archive have the same name")


def start_of(member: zipfile.ZipInfo, data: mmap.mmap) -> int:
    """Where the bytes of a member begin that is not compressed.

    Raises:
        ValueError: The archive ends before they do.
    """
    lengths = ZIP_LENGTHS.unpack_from(data, member.header_offset)
    start: int = member.header_offset + ZIP_LENGTHS.size + sum(lengths)
    if start + member.file_size > len(data):
        raise ValueError(f"{member.filename} extends past the end of the file")
    return start


def check_sum(path: pathlib.Path, member: zipfile.ZipInfo, data: mmap.mmap) -> None:
    """Raise WeightsFileError unless such a member has its checksum."""
    start = start_of(member, data)
    with memoryview(data)[start : start + member.file_size] as content:
        if zlib.crc32(content) != member.CRC:
            refuse(path, f"in which {member.filename!r} has a wrong checksum")
