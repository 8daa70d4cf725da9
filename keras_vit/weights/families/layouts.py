"""Array names and layouts of a family, one row per array."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Iterator

from keras_vit.typing import Array


@dataclasses.dataclass(frozen=True)
class Layout:
    """Order of an array's axes in a family and in ours.

    Args:
        read: From their array to ours. On arrays that allow it, a view.
        write: From ours, and the number of attention heads, to theirs.
    """

    read: Callable[[Array], Array]
    write: Callable[[Array, int], Array]


def _merge_last(array: Array) -> Array:
    return array.reshape(*array.shape[:-2], -1)


def _split_last(array: Array, heads: int) -> Array:
    return array.reshape(*array.shape[:-1], heads, array.shape[-1] // heads)


SAME = Layout(lambda array: array, lambda array, heads: array)
# Flax attention keeps heads apart: [D, A, K], [A, K], and [A, K, D] on the way out.
HEADS_LAST = Layout(_merge_last, _split_last)
HEADS_FIRST = Layout(
    lambda array: array.reshape(-1, array.shape[-1]),
    lambda array, heads: array.reshape(heads, -1, array.shape[-1]),
)
# PyTorch: linear layers [out, in], convolutions [out, in, H, W].
LINEAR = Layout(lambda array: array.T, lambda array, heads: array.T)
CONVOLUTION = Layout(
    lambda array: array.transpose(2, 3, 1, 0),
    lambda array, heads: array.transpose(3, 2, 0, 1),
)
# The classifier as a 1x1 convolution, and GroupNorm's weights with an image's axes.
LINEAR_CONVOLUTION = Layout(
    lambda array: array.reshape(array.shape[:2]).T,
    lambda array, heads: array.T[:, :, None, None],
)
CONVOLUTION_1X1 = Layout(
    lambda array: array.reshape(array.shape[-2:]),
    lambda array, heads: array[None, None],
)
CHANNELS = Layout(
    lambda array: array.reshape(array.shape[-1]),
    lambda array, heads: array.reshape(1, 1, 1, -1),
)
WITHOUT_BATCH = Layout(lambda array: array[None], lambda array, heads: array[0])
ONE_VECTOR = Layout(
    lambda array: array[None, None],
    lambda array, heads: array[0, 0],
)


def _square_patches(array: Array) -> Array:
    """[D, P * P * 3] -> [P, P, 3, D]."""
    width, values = array.shape
    side = math.isqrt(values // 3)
    return array.reshape(width, side, side, 3).transpose(1, 2, 3, 0)


# A patch as a vector of its pixels, row by row, before a linear layer.
FLAT_PATCHES = Layout(
    _square_patches,
    lambda array, heads: array.transpose(3, 0, 1, 2).reshape(array.shape[3], -1),
)

# The same, one channel after the other.
FLAT_CHANNELS = Layout(
    lambda array: CONVOLUTION.read(
        array.reshape(len(array), 3, *2 * (math.isqrt(array.shape[1] // 3),))
    ),
    lambda array, heads: CONVOLUTION.write(array, heads).reshape(array.shape[3], -1),
)


def of_grid(height: int = 0, width: int = 0) -> Layout:
    """Positions [1, H, W, D] of a grid, which only writing needs to know."""

    def read(array: Array) -> Array:
        one, rows, columns, dim = array.shape
        return array.reshape(one, rows * columns, dim)

    return Layout(
        read, lambda array, heads: array.reshape(1, height, width, array.shape[2])
    )


@dataclasses.dataclass(frozen=True)
class ArrayRow:
    """One array of a family, or one for each block, stage and unit.

    Args:
        theirs: Its name. `{i}`, `{b}`, `{s}`, `{u}` stand for our numbers of block and
            branch (from 0), stage and unit (from 1); `{i1}` counts from 1, `{s0}` and
            `{u0}` from 0, `{u02}` is padded to two digits.
        ours: The path of our weight; several where their array holds ours one after
            the other on its first axis, "" for a part that we have no weight for.
        rest: Whether the first of several takes what the others leave, of which each
            has the width D there. Else all have the same.
        layout: The order of its axes.
        half: 0 or 1 where their array is the first or the second half of our weight's
            last axis, such as the gate and the values of a SwiGLU.
    """

    theirs: str
    ours: tuple[str, ...]
    layout: Layout = SAME
    half: int | None = None
    rest: bool = False


def row(
    theirs: str,
    *ours: str,
    layout: Layout = SAME,
    half: int | None = None,
    rest: bool = False,
) -> ArrayRow:
    """Make an `ArrayRow`."""
    return ArrayRow(theirs, ours, layout, half, rest)


def affine(
    theirs: str,
    ours: str,
    kernel: Layout,
    names: tuple[str, str] = ("weight", "bias"),
    half: int | None = None,
) -> tuple[ArrayRow, ArrayRow]:
    """The two rows of a dense layer or a convolution with a bias."""
    return (
        row(f"{theirs}{names[0]}", f"{ours}/kernel", layout=kernel, half=half),
        row(f"{theirs}{names[1]}", f"{ours}/bias", half=half),
    )


def norm(
    theirs: str,
    ours: str,
    names: tuple[str, str] = ("weight", "bias"),
    layout: Layout = SAME,
) -> tuple[ArrayRow, ArrayRow]:
    """The two rows of a normalization."""
    return (
        row(f"{theirs}{names[0]}", f"{ours}/gamma", layout=layout),
        row(f"{theirs}{names[1]}", f"{ours}/beta", layout=layout),
    )


def together(theirs: str, ours: str, names: tuple[str, ...]) -> tuple[ArrayRow, ...]:
    """Several dense layers of ours in one of theirs."""
    return (
        row(f"{theirs}.weight", *(f"{ours}/{n}/kernel" for n in names), layout=LINEAR),
        row(f"{theirs}.bias", *(f"{ours}/{n}/bias" for n in names)),
    )


_NUMBER = re.compile(r"\\\{([bisu])(0|1|02)?\\\}")
# What is added to their number to get ours.
_OFFSETS = {None: 0, "02": 0, "0": 1, "1": -1}


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    """Regular expression with the numbers in a name as groups such as `s0`."""
    text = _NUMBER.sub(lambda m: rf"(?P<{m[1]}{m[2] or ''}>\\d+)", re.escape(template))
    return re.compile(text.replace("\\\\d", "\\d"))


def numbers_of(template: str, name: str) -> dict[str, int] | None:
    """Our numbers of block, stage and unit in a name; None for another name."""
    match = _pattern(template).fullmatch(name)
    if match is None:
        return None
    return {
        key[0]: int(value) + _OFFSETS[key[1:] or None]
        for key, value in match.groupdict().items()
    }


def named(template: str, numbers: dict[str, int]) -> str:
    """Fill a name template with our numbers."""

    def number(match: re.Match[str]) -> str:
        value = numbers[match[1]] - _OFFSETS[match[2]]
        return f"{value:02d}" if match[2] == "02" else str(value)

    return re.sub(r"\{([bisu])(0|1|02)?\}", number, template)


def match_theirs(
    rows: tuple[ArrayRow, ...], name: str
) -> tuple[ArrayRow, list[str]] | None:
    """The row of one of their arrays, and the paths of our weights in it."""
    for candidate in rows:
        numbers = numbers_of(candidate.theirs, name)
        if numbers is not None:
            return candidate, [named(ours, numbers) for ours in candidate.ours]
    return None


def match_ours(
    rows: tuple[ArrayRow, ...], path: str, weights: Collection[str] | None = None
) -> Iterator[tuple[ArrayRow, str, int]]:
    """The rows of one of our weights: row, their name, and which part of it ours is.

    Args:
        rows: A family's table.
        path: Of the weight.
        weights: Paths of all weights of a model; an array that holds others as well
            is left out.
    """
    for candidate in rows:
        for part, ours in enumerate(candidate.ours):
            numbers = numbers_of(ours, path)
            if numbers is None:
                continue
            held = (named(each, numbers) for each in candidate.ours)
            if weights is None or all(each in weights for each in held):
                yield candidate, named(candidate.theirs, numbers), part
