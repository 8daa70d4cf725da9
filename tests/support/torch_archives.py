"""Writes PyTorch's files of tensors by hand: a ZIP archive with a pickle, step by step.

Each function but `write_archive` and `write_state_dict` gives the bytes of one value.
"""

import struct
import zipfile

import numpy as np

STORAGES = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}
TRUE, FALSE, NONE = b"\x88", b"\x89", b"N"


def text(value):
    value = value.encode()
    return b"X" + struct.pack("<I", len(value)) + value


def number(value):
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def values(*parts):
    return b"(" + b"".join(parts) + b"t"


def numbers(*parts):
    return values(*map(number, parts))


def named(module, name):
    return f"c{module}\n{name}\n".encode()


def called(module, name, *arguments):
    return named(module, name) + values(*arguments) + b"R"


def dictionary(items, start=b"}"):
    content = b"".join(text(name) + value for name, value in items.items())
    return start + b"(" + content + b"u"


def ordered(items):
    """An `OrderedDict`, whose attributes are as those of a state dict."""
    start = named("collections", "OrderedDict") + b")R"
    attributes = dictionary({"_metadata": dictionary({"": NONE})})
    return dictionary(items, start) + attributes + b"b"


def storage(kind, key, length):
    parts = (text("storage"), named("torch", kind), text(key), text("cpu"))
    return values(*parts, number(length)) + b"Q"


def tensor(place, offset, shape, strides, *more):
    hooks = named("collections", "OrderedDict") + b")R"
    return called(
        *("torch._utils", "_rebuild_tensor_v2", place, number(offset)),
        *(numbers(*shape), numbers(*strides), FALSE, hooks, *more),
    )


def write_archive(path, value, storages, byteorder=b"little", method=0, root="model"):
    """The file of one pickled value and the bytes of its storages by their keys."""
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr(f"{root}/data.pkl", b"\x80\x02" + value + b".")
        if byteorder is not None:
            archive.writestr(f"{root}/byteorder", byteorder)
        for key, data in storages.items():
            archive.writestr(f"{root}/data/{key}", data)
        archive.writestr(f"{root}/version", b"3\n")
    return path


def tensors(arrays, storages):
    """The tensors of arrays, whose storages are added."""
    items = {}
    for name, array in arrays.items():
        array, key = np.asarray(array), str(len(storages))
        storages[key] = array.tobytes()
        kind = storage(STORAGES[array.dtype.name], key, array.size)
        lengths = [max(length, 1) for length in array.shape]
        strides = [int(np.prod(lengths[axis + 1 :])) for axis in range(array.ndim)]
        items[name] = tensor(kind, 0, array.shape, strides)
    return items


def write_state_dict(path, arrays, inside=(), **options):
    """A state dict, in the entries of these names one in the other."""
    storages = {}
    value = ordered(tensors(arrays, storages))
    for name in reversed(inside):
        value = dictionary({name: value, "epoch": number(7)})
    return write_archive(path, value, storages, **options)
