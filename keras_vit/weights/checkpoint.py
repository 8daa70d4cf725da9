"""Checkpoint of any family: its arrays by our names, and the report of loading it."""

import dataclasses
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn, Self

import numpy as np

from keras_vit.errors import WeightsFileError
from keras_vit.typing import Array
from keras_vit.weights.families.family import Family
from keras_vit.weights.families.google import ALL_BLOCKS, ONE_BLOCK
from keras_vit.weights.families.layouts import (
    ArrayRow,
    Layout,
    match_ours,
    match_theirs,
)
from keras_vit.weights.families.registry import FAMILIES
from keras_vit.weights.reading import ArrayFile, open_arrays
from keras_vit.weights.stored_arrays import StoredArray

_LOG = logging.getLogger("keras_vit")


@dataclasses.dataclass
class LoadReport:
    """Report on every array of a checkpoint and every weight of a model.

    Args:
        path: The file or folder.
        family: Key of `keras_vit.weights.FAMILIES`.
        used: Loaded weights: our path -> name of the array.
        resampled: Those resampled to another grid or patch size: path -> description.
        adapted: Those changed in another way: path -> description.
        dropped: Names of arrays that the classifier policy omits.
        unused: Names of other arrays of the file's model that were not loaded.
        outside: Names of arrays that are not the model's, such as an optimizer's.
        missing: Paths of weights for which the file has no array; they are unchanged.
        notes: Warnings and assumptions.
    """

    path: str
    family: str
    used: dict[str, str] = dataclasses.field(default_factory=dict)
    resampled: dict[str, str] = dataclasses.field(default_factory=dict)
    adapted: dict[str, str] = dataclasses.field(default_factory=dict)
    dropped: list[str] = dataclasses.field(default_factory=list)
    unused: list[str] = dataclasses.field(default_factory=list)
    outside: list[str] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"{FAMILIES[self.family].title}: {self.path}",
            f"  {len(self.used)} weights loaded",
        ]
        for title, changes in (
            ("resampled", self.resampled),
            ("adapted", self.adapted),
        ):
            for how in dict.fromkeys(changes.values()):
                paths = [path for path in changes if changes[path] == how]
                lines.append(f"  {title} {shorten(paths)}: {how}")
        for title, names in (
            ("dropped", self.dropped),
            ("not used", self.unused),
            ("not part of the model", self.outside),
            ("not in the file", self.missing),
        ):
            if names:
                lines.append(f"  {title}: {shorten(names)}")
        return "\n".join(lines + [f"  {note}" for note in self.notes])


def shorten(names: list[str]) -> str:
    """The first names of a list and the number of the others, as text."""
    more = f" and {len(names) - 4} more" if len(names) > 5 else ""
    return ", ".join(names[:4] if more else names) + more


MOST_BLOCKS = 1000  # that one array may hold, so that it takes no memory for each


@dataclasses.dataclass(frozen=True)
class Entry:
    """One of our weights as stored in a file.

    Args:
        name: Name of the array in the file.
        array: Where it is stored.
        layout: The order of its axes.
        part, parts: Which of several weights in one array, on its first axis.
        width: Of each part but the first, which takes the rest; `None` for equal parts.
        block: Which block, where a scan has stacked all blocks into one array.
        half: 0 or 1 where the array is a half of the weight's last axis.
        other: The entry of the other half, for the first one.
    """

    name: str
    array: StoredArray
    layout: Layout
    part: int = 0
    parts: int = 1
    width: int | None = None
    block: int | None = None
    half: int | None = None
    other: "Entry | None" = None

    def _ours(self, array: Array) -> Array:
        if self.block is not None:
            array = array[self.block]
        if self.parts > 1:
            array = np.split(array, self._ends or self.parts)[self.part]
        return self.layout.read(array)

    @property
    def _ends(self) -> list[int]:
        """Where parts of different sizes end, from the end of the axis."""
        if self.width is None:
            return []
        return [-self.width * later for later in range(self.parts - 1, 0, -1)]

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape in the file, of one block."""
        return self.array.shape[self.block is not None :]

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        """What is read for the weight."""
        return (self.array, *(self.other.arrays if self.other else ()))

    def shape(self) -> tuple[int, ...]:
        """Shape in our layout, without reading the array.

        Raises:
            WeightsFileError: The array cannot be what its name says.
        """
        try:
            # A view of one number with the array's shape.
            ours = self._ours(np.broadcast_to(np.float32(0), self.array.shape))
        except (ValueError, IndexError) as error:
            raise WeightsFileError(
                f"`{self.name}` must have the shape expected for its name. "
                f"Received: shape={self.array.shape}"
            ) from error
        shape = tuple(ours.shape)
        if self.other is None:
            return shape
        if self.other.shape() != shape:
            raise WeightsFileError(
                f"`{self.name}` and `{self.other.name}` must have the same shape. "
                f"Received: shapes {self.array.shape} and {self.other.array.shape}"
            )
        return (*shape[:-1], 2 * shape[-1])

    def read(self) -> Array:
        """Read the weight in our layout and the file's dtype; a view where possible."""
        ours = self._ours(self.array.read())
        if self.other is None:
            return ours
        return np.concatenate([ours, self.other.read()], axis=-1)


@dataclasses.dataclass
class Checkpoint:
    """Context manager around an open checkpoint; arrays are read on demand.

    Args:
        file: The open file.
        family: Key of `FAMILIES`.
        entries: Its arrays by the paths of our weights.
        unknown: Names of arrays inside the model that the family's table lacks.
        second_classifiers: Names of arrays of classifiers that our models do not have.
        outside: Names of arrays that are not the model's, such as an optimizer's.
    """

    file: ArrayFile
    family: str
    entries: dict[str, Entry]
    unknown: list[str]
    second_classifiers: list[str]
    outside: list[str]

    @property
    def described(self) -> Family:
        """What its family says of itself."""
        return FAMILIES[self.family]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint and recognize its family from the array names.

    Args:
        path: An `.npz`, `.safetensors`, HDF5 or PyTorch file, or a folder with one.

    Raises:
        WeightsFileError: No such file, a damaged one, or one of no known family.
    """
    file = open_arrays(path)
    try:
        return _recognize(file)
    except WeightsFileError:
        file.close()
        raise


def family_of(names: Iterable[str]) -> str | None:
    """Key in `FAMILIES` of the first family that has arrays of these names."""
    return next(_families_with(names), None)


def _families_with(names: Iterable[str]) -> Iterator[str]:
    """Keys of the families that have arrays of these names, the surest first."""
    for key, family in FAMILIES.items():
        inside = family.model_names(names)
        if family.mark in inside or _stacked(family.mark) in inside:
            yield key


def _recognize(file: ArrayFile) -> Checkpoint:
    """The checkpoint in a file: of the model that its config names, if it has one."""
    by_arrays = list(_families_with(file.arrays))
    described = {
        key: name
        for key, family in FAMILIES.items()
        if (name := family.described(file.config)) is not None
    }
    opening = [key for key, name in described.items() if FAMILIES[key].opens(name)]
    if described and not opening:
        _refuse_model(file, described)
    candidates = [key for key in opening or FAMILIES if key in by_arrays]
    if not candidates or not _same_mark(candidates[0], by_arrays[0]):
        if opening and not by_arrays:
            FAMILIES[opening[0]].stated(file)  # a key that is refused is why
        _refuse_arrays(file, [described[key] for key in opening], by_arrays)
    if file.config and not described:
        _LOG.warning("%s: its config.json names no model and is not read", file.path)
        file.config = {}
    return _checkpoint(file, candidates[0])


def _refuse_model(file: ArrayFile, described: Mapping[str, str]) -> NoReturn:
    """Raise WeightsFileError for a config of a model that no family opens."""
    key, name = next(iter(described.items()))
    library = FAMILIES[key].library
    known = [f.title for f in FAMILIES.values() if f.library == library]
    raise WeightsFileError(
        f"`path` must hold a model that opens here, of this library: "
        f"{', '.join(known)}. Received: {str(file.path)!r}, whose config names "
        f"{FAMILIES[key].explained(name)}"
    )


def _same_mark(key: str, other: str) -> bool:
    return FAMILIES[key].mark == FAMILIES[other].mark


def _refuse_arrays(file: ArrayFile, names: list[str], by_arrays: list[str]) -> NoReturn:
    """Raise WeightsFileError for arrays of no family, or not those of the config."""
    some = ", ".join(list(file.arrays)[:4])
    if names:
        found = f"arrays of a {FAMILIES[by_arrays[0]].title}" if by_arrays else some
        raise WeightsFileError(
            f"The arrays must be of the model that the config names, {names[0]!r}. "
            f"Received: {str(file.path)!r} with {found}"
        )
    titles = ", ".join(family.title for family in FAMILIES.values())
    hint = ". What `save_weights` wrote goes back by the model's own `load_weights`"
    raise WeightsFileError(
        f"`path` must hold a checkpoint of a known family: {titles}. "
        f"Received: {str(file.path)!r} with {len(file.arrays)} arrays: {some}, ..."
        f"{hint if file.format == 'hdf5' else ''}"
    )


def _stacked(name: str) -> str:
    """Array name where a scan over the blocks has stacked their arrays."""
    return name.replace(ONE_BLOCK.format(0), ALL_BLOCKS)


def _checkpoint(file: ArrayFile, key: str) -> Checkpoint:
    family = FAMILIES[key]
    inside = {
        bare: name
        for bare, name in family.model_names(file.arrays).items()
        if not re.fullmatch(family.ignored, bare)
    }
    stacked = family.mark not in inside
    entries: dict[str, Entry] = {}
    unknown, second = [], []
    width = _width(family.rows, inside, file)
    for bare, name in inside.items():
        found = _entries(family.rows, bare, name, file.arrays[name], width, stacked)
        if bare.startswith(family.second_classifiers or ("\0",)):
            second.append(name)
        elif not found:
            unknown.append(name)
        else:
            taken = [not _put(entries, *each) for each in found.items()]
            unknown += [name] * any(taken)
    registers = entries.get("register_tokens/tokens")
    if registers is not None and 0 in registers.array.shape:
        del entries["register_tokens/tokens"]  # none: Hugging Face writes them too
    for path in [path for path, entry in entries.items() if _is_alone(entry)]:
        unknown.append(entries.pop(path).name)
    outside = sorted(file.arrays.keys() - inside.values())
    return Checkpoint(file, key, entries, unknown, second, outside)


def _put(entries: dict[str, Entry], path: str, entry: Entry) -> bool:
    """Add an entry, or a half to its other one; False where its place is taken."""
    there = entries.get(path)
    if there is None:
        entries[path] = entry
        return True
    halves = {there.half: there, entry.half: entry}
    if there.other is not None or halves.keys() != {0, 1}:
        return False
    entries[path] = dataclasses.replace(halves[0], other=halves[1])
    return True


def _is_alone(entry: Entry) -> bool:
    return entry.half is not None and entry.other is None


def _width(
    rows: tuple[ArrayRow, ...], inside: Mapping[str, str], file: ArrayFile
) -> int:
    """Width D of the tokens; 0 where no array of the usual shape shows it."""
    for row, bare, _ in match_ours(rows, "embedding/kernel"):
        if bare in inside:
            array = file.arrays[inside[bare]]
            if len(array.shape) == 4:
                return Entry(bare, array, row.layout).shape()[-1]
    return 0


def _entries(
    rows: tuple[ArrayRow, ...],
    bare: str,
    name: str,
    array: StoredArray,
    width: int,
    stacked: bool,
) -> dict[str, Entry]:
    """Entries for our weights in one of the file's arrays."""
    if stacked and ALL_BLOCKS in bare:
        found: dict[str, Entry] = {}
        if array.shape and array.shape[0] > MOST_BLOCKS:
            return found
        for block in range(array.shape[0] if array.shape else 0):
            one = bare.replace(ALL_BLOCKS, ONE_BLOCK.format(block))
            for path, entry in _entries(rows, one, name, array, width, False).items():
                found[path] = dataclasses.replace(entry, block=block)
        return found
    match = match_theirs(rows, bare)
    if match is None:
        return {}
    row, paths = match
    return {
        path: Entry(
            *(name, array, row.layout, part, len(paths)),
            width=width if row.rest else None,
            half=row.half,
        )
        for part, path in enumerate(paths)
        if path
    }
