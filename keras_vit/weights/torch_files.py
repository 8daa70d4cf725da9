"""PyTorch's files of arrays (`torch.save`: .pth, .pt, .bin), without running a pickle.

Such a file is a ZIP archive of the bytes of each storage, and a pickle that says which
tensor is which part of one. The few steps of which the pickle of a state dict consists
are followed here; another one, or a name of a class or function, ends the reading.

Source: pytorch/pytorch, torch/serialization.py, torch/_utils.py; Python's pickletools.
"""

import contextlib
import dataclasses
import functools
import logging
import mmap
import pathlib
import pickletools
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn, TypeAlias

import numpy as np

from keras_vit.typing import JSON, Array
from keras_vit.weights.stored_arrays import (
    BFLOAT16,
    StoredArray,
    map_file,
    refuse,
)
from keras_vit.weights.zip_members import check_directory, check_sum, start_of

_LOG = logging.getLogger("keras_vit")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# What releases of PyTorch before 1.6 write begins with a pickled number.
BEFORE_RELEASE_1_6 = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
# Bytes of a pickle that are followed; in Python's objects it may be 100 times as large.
# Each tensor takes about 200.
LARGEST_PICKLE = 2**20
LARGEST_LENGTH = 2**63
# The types of storages that NumPy and ml_dtypes have.
STORAGES = {
    "torch.DoubleStorage": np.dtype("f8"),
    "torch.FloatStorage": np.dtype("f4"),
    "torch.HalfStorage": np.dtype("f2"),
    "torch.BFloat16Storage": BFLOAT16,
    "torch.LongStorage": np.dtype("i8"),
    "torch.IntStorage": np.dtype("i4"),
    "torch.ShortStorage": np.dtype("i2"),
    "torch.CharStorage": np.dtype("i1"),
    "torch.ByteStorage": np.dtype("u1"),
    "torch.BoolStorage": np.dtype(bool),
}
ORDERED_DICT = "collections.OrderedDict"
TENSOR, PARAMETER = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"
_OTHER_TENSORS = re.compile(r"torch\.\w+Storage|torch\._utils\._rebuild_\w+")
# Names of types, which may be beside the arrays.
DTYPES = {
    f"torch.{name}"
    for name in (
        *("float16", "bfloat16", "float32", "float64", "bool"),
        *("uint8", "int8", "int16", "int32", "int64"),
    )
}
KNOWN = {*STORAGES, ORDERED_DICT, TENSOR, PARAMETER, *DTYPES}

Value: TypeAlias = JSON  # what a pickle may make: also tuples and the classes below


@dataclasses.dataclass(frozen=True)
class _Name:
    """A class or function that the pickle names: its name, and nothing else."""

    name: str


@dataclasses.dataclass(frozen=True)
class _Storage:
    """A member of the archive, as the pickle refers to it."""

    member: zipfile.ZipInfo
    start: int
    dtype: np.dtype
    length: int


def is_torch_archive(path: pathlib.Path) -> bool:
    """Whether a ZIP archive is one of PyTorch's."""
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/data.pkl") for name in archive.namelist())


def refuse_pickle(path: pathlib.Path) -> NoReturn:
    """Raise `WeightsFileError` for a pickle that is not in an archive."""
    with path.open("rb") as file:
        old = file.read(len(BEFORE_RELEASE_1_6)) == BEFORE_RELEASE_1_6
    if old:
        refuse(
            path,
            "a pickle of PyTorch before 1.6, which could run any code and is not "
            "opened; write it anew in a later one, by torch.save(torch.load(path, "
            "weights_only=True), path), or as .safetensors",
        )
    refuse(
        path,
        "a pickle, which could run any code and is not opened; save its arrays by "
        "torch.save(model.state_dict(), path), or as .safetensors",
    )


def torch_arrays(
    path: pathlib.Path, stack: contextlib.ExitStack
) -> dict[str, StoredArray]:
    """Arrays of a state dict that `torch.save` wrote, in a file which the stack closes.

    It may be the only state dict among the entries of a dictionary.
    """
    data = map_file(path)
    archive = stack.enter_context(zipfile.ZipFile(path))
    check_directory(archive.namelist(), data)
    members = {member.filename: member for member in archive.infolist()}
    for name, member in members.items():
        if member.compress_type != zipfile.ZIP_STORED:
            refuse(path, f"in which {name!r} is compressed, as PyTorch never does")
    roots = [name for name in members if name.endswith("/data.pkl")]
    if len(roots) != 1:
        raise ValueError(f"{len(roots)} members are called data.pkl")
    root = roots[0].removesuffix("data.pkl")

    def content(name: str, largest: int) -> bytes:
        """The bytes of a small member."""
        member = members[root + name]
        if member.file_size > largest:
            raise ValueError(f"{root + name} has more than {largest:,} bytes")
        check_sum(path, member, data)
        start = start_of(member, data)
        return data[start : start + member.file_size]

    order = b"little"
    if f"{root}byteorder" in members:
        order = content("byteorder", 16)
    if order not in (b"little", b"big"):
        refuse(path, f"whose byteorder is {order!r}")
    reader = _PickleReader(path, data, members, root, order == b"big")
    return _state_dict(path, reader.read(content("data.pkl", LARGEST_PICKLE)))


def _is_state_dict(value: Value) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(name, str) and isinstance(array, StoredArray)
            for name, array in value.items()
        )
    )


def _state_dict(path: pathlib.Path, value: Value) -> dict[str, StoredArray]:
    """The state dict that a value is, or holds as its only one."""
    if _is_state_dict(value):
        found: dict[str, StoredArray] = value
        return found
    entries = value if isinstance(value, dict) else {}
    # Each once: one dictionary may have very many names.
    each_once = {id(each): each for each in entries.values()}
    dicts = {key for key, each in each_once.items() if _is_state_dict(each)}
    inside = [name for name, each in entries.items() if id(each) in dicts]
    if len(inside) > 1:
        refuse(
            path,
            f"which holds several state dicts, {_quoted(inside)}: save one of them, by "
            f"torch.save(torch.load(path, weights_only=True)[{_quoted(inside[:1])}], "
            "path)",
        )
    if not inside:
        refuse(
            path,
            f"which holds {_quoted(entries) or 'one value'} and no state dict: save "
            "one by torch.save(model.state_dict(), path)",
        )
    if others := [name for name in entries if name not in inside]:
        one = _quoted(inside)
        _LOG.warning("%s: read from its entry %s, not %s", path, one, _quoted(others))
    return dict(entries[inside[0]])


def _quoted(names: Iterable[str | int]) -> str:
    """The first names, of which none is long."""
    return ", ".join(f"{name!r:.50}" for name in list(names)[:5])


class _PickleReader:
    """Follows the pickle of a state dict, whose steps it knows all.

    It makes dictionaries, lists, tuples, numbers, texts and `StoredArray`s. Nothing is
    imported and nothing called. Values are neither printed nor compared nor hashed
    before their type is known: some take as long as 2**n steps for n bytes.
    """

    def __init__(
        self,
        path: pathlib.Path,
        data: mmap.mmap,
        members: dict[str, zipfile.ZipInfo],
        root: str,
        big_endian: bool,
    ) -> None:
        self.path = path
        self.data = data
        self.members = members
        self.root = root
        self.big_endian = big_endian
        self.stack: list[Value] = []
        self.below: list[list[Value]] = []  # the stacks before each mark
        self.memo: dict[int, Value] = {}
        self.checks: dict[str, Callable[[], object]] = {}

    def read(self, text: bytes) -> Value:
        """The value that is pickled."""
        for opcode, argument, _ in pickletools.genops(text):
            step = _STEPS.get(opcode.name)
            if step is None:
                refuse(self.path, f"whose pickle has the step {opcode.name}")
            step(self, argument)
        (value,) = self.stack
        return value

    def push(self, value: Value) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    def mark(self) -> None:
        """Begin a stack of its own."""
        self.below.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Value]:
        """End that stack, and take its values."""
        values, self.stack = self.stack, self.below.pop()
        return values

    def push_tuple(self, length: int) -> None:
        """Make a tuple of the last values."""
        values = [self.stack.pop() for _ in range(length)]
        self.push(tuple(reversed(values)))

    def remember(self, index: int) -> None:
        """Keep the last value under a number."""
        self.memo[index] = self.stack[-1]

    def append(self, values: list[Value]) -> None:
        """Extend the last value, a list."""
        if not isinstance(self.stack[-1], list):
            raise TypeError("values are appended to what is not a list")
        self.stack[-1].extend(values)

    def set_items(self, values: list[Value]) -> None:
        """Set items of the last value, a dictionary: keys and values by turns."""
        if not isinstance(self.stack[-1], dict) or len(values) % 2:
            raise TypeError("items are set of what is not a dictionary")
        for name, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(name, (str, int)):
                raise TypeError(f"a key is of the type {type(name).__name__}")
            self.stack[-1][name] = value

    def name(self, name: str) -> None:
        """Put a class or a function on the stack, of which the name alone is kept."""
        name = name.replace(" ", ".")
        if name not in KNOWN and _OTHER_TENSORS.fullmatch(name):
            refuse(
                self.path,
                f"which holds a tensor of a kind that is not read, `{name:.200}`: save "
                "dense arrays of 16 to 64-bit floats, integers or bool",
            )
        if name not in KNOWN:
            refuse(
                self.path,
                f"which holds Python code, `{name:.200}`, and is not opened; save "
                "arrays alone, by torch.save(model.state_dict(), path)",
            )
        self.push(_Name(name))

    def name_on_stack(self) -> None:
        """Put a name on the stack whose two parts are the last values."""
        module, name = self.stack.pop(-2), self.stack.pop()
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError("a name is not a text")
        self.name(f"{module} {name}")

    def set_attributes(self) -> None:
        """Leave out attributes of a dictionary, such as the versions of its modules."""
        self.stack.pop()
        if not isinstance(self.stack[-1], dict):
            raise TypeError("attributes are set of what is not a dictionary")

    def call(self) -> None:
        """Follow a call of one of the three functions that are known."""
        arguments, function = self.stack.pop(), self.stack.pop()
        name = function.name if isinstance(function, _Name) else ""
        if not isinstance(arguments, tuple):
            raise TypeError("arguments are not a tuple")
        if name == ORDERED_DICT and arguments == ():
            self.push({})
        elif name == TENSOR and len(arguments) in (6, 7):
            self.push(self._tensor(*arguments[:4], *arguments[6:]))
        elif name == PARAMETER and isinstance(arguments[0], StoredArray):
            self.push(arguments[0])
        else:
            raise TypeError(f"{name or 'a value'} is called with other arguments")

    def storage(self) -> None:
        """Put `("storage", type, key, device, length)` on the stack as a member."""
        _, kind, key, _, length = self.stack.pop()
        dtype = STORAGES.get(kind.name)
        if dtype is None or not isinstance(key, str):
            raise TypeError("a storage is of an unknown type")
        name = f"{self.root}data/{key}"
        member = self.members[name]
        if not _is_length(length) or length * dtype.itemsize != member.file_size:
            raise ValueError(f"{name:.200} has {member.file_size:,} bytes")
        # Once for all tensors that share it.
        check = functools.partial(check_sum, self.path, member, self.data)
        self.checks.setdefault(name, functools.cache(check))
        self.push(_Storage(member, start_of(member, self.data), dtype, length))

    def _tensor(
        self,
        storage: Value,
        offset: Value,
        shape: Value,
        strides: Value,
        metadata: Value = None,
    ) -> StoredArray:
        """The part of a storage that a tensor is."""
        if metadata:  # marks of values to negate
            refuse(
                self.path,
                "which holds a conjugate or negative view, not its values: save "
                "tensor.resolve_conj().resolve_neg()",
            )
        if not (isinstance(storage, _Storage) and len(shape) == len(strides)):
            raise TypeError("a tensor has no storage, or as many strides as axes")
        shape = tuple(shape)
        if not all(_is_length(number) for number in (offset, *shape, *strides)):
            raise ValueError("a tensor has other numbers than lengths")
        steps = zip(shape, strides, strict=True)
        last = offset + sum((length - 1) * stride for length, stride in steps)
        if 0 not in shape and last >= storage.length:
            raise ValueError(f"a tensor extends past {storage.member.filename:.200}")
        dtype = storage.dtype

        def read() -> Array:
            if 0 in shape:
                return np.empty(shape, dtype)
            if self.big_endian:
                # Bits as integers: bfloat16 has one order of bytes only.
                bits = np.dtype(f">u{dtype.itemsize}")
                return _view(bits).astype(bits.newbyteorder("=")).view(dtype)
            return _view(dtype)

        def _view(kind: np.dtype) -> Array:
            size = dtype.itemsize
            return np.ndarray(
                shape,
                kind,
                self.data,
                storage.start + offset * size,
                tuple(stride * size for stride in strides),
            )

        return StoredArray(shape, dtype, read, self.checks[storage.member.filename])


def _is_length(value: Value) -> bool:
    return type(value) is int and 0 <= value < LARGEST_LENGTH


# What each step of a pickle does, by the name that pickletools has for it.
_STEPS: Mapping[str, Callable[[_PickleReader, Value], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda reader, argument: None),
    **dict.fromkeys(
        (
            *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
            *("SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES"),
        ),
        _PickleReader.push,
    ),
    "NONE": lambda reader, _: reader.push(None),
    "NEWTRUE": lambda reader, _: reader.push(True),
    "NEWFALSE": lambda reader, _: reader.push(False),
    "EMPTY_DICT": lambda reader, _: reader.push({}),
    "EMPTY_LIST": lambda reader, _: reader.push([]),
    "EMPTY_TUPLE": lambda reader, _: reader.push(()),
    "MARK": lambda reader, _: reader.mark(),
    "TUPLE": lambda reader, _: reader.push(tuple(reader.since_mark())),
    "TUPLE1": lambda reader, _: reader.push_tuple(1),
    "TUPLE2": lambda reader, _: reader.push_tuple(2),
    "TUPLE3": lambda reader, _: reader.push_tuple(3),
    "BINPUT": lambda reader, index: reader.remember(index),
    "LONG_BINPUT": lambda reader, index: reader.remember(index),
    "MEMOIZE": lambda reader, _: reader.remember(len(reader.memo)),
    "BINGET": lambda reader, index: reader.push(reader.memo[index]),
    "LONG_BINGET": lambda reader, index: reader.push(reader.memo[index]),
    "APPEND": lambda reader, _: reader.append([reader.stack.pop()]),
    "APPENDS": lambda reader, _: reader.append(reader.since_mark()),
    "SETITEM": lambda reader, _: reader.set_items(
        [reader.stack.pop(-2), reader.stack.pop()]
    ),
    "SETITEMS": lambda reader, _: reader.set_items(reader.since_mark()),
    "GLOBAL": lambda reader, name: reader.name(name),
    "STACK_GLOBAL": lambda reader, _: reader.name_on_stack(),
    "BUILD": lambda reader, _: reader.set_attributes(),
    "REDUCE": lambda reader, _: reader.call(),
    "BINPERSID": lambda reader, _: reader.storage(),
}
