"""Files with the arrays of published checkpoints, and other forms of them."""

import io
import math
import re
import zipfile
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.published_arrays import Shapes


def prefixed(prefix: str, arrays):
    """The same with a prefix before every name."""
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def with_adam(shapes: Shapes) -> Shapes:
    """A training checkpoint: the model, and two moments for each of its arrays."""
    result = prefixed("opt/target/", shapes) | {"opt/state/step": ()}
    for name, shape in shapes.items():
        for moment in ("grad_ema", "grad_sq_ema"):
            result[f"opt/state/param_states/{name}/{moment}"] = shape
    return result


def parameters(shapes: Shapes) -> int:
    """Number of elements of all arrays."""
    return sum(int(np.prod(shape)) for shape in shapes.values())


def as_void(array: np.ndarray) -> np.ndarray:
    """bfloat16 as big_vision's files have it: two bytes without a type."""
    return array.astype(ml_dtypes.bfloat16).view("V2")


def stacked(items, combine):
    """Blocks under one name each, as a scan over them has it, combined in order."""
    result: dict[str, Any] = {}
    blocks: dict[str, dict[int, Any]] = {}
    for name, item in items.items():
        match = re.fullmatch(r"(Transformer/encoderblock)_(\d+)(/.*)", name)
        if match is None:
            result[name] = item
        else:
            blocks.setdefault(match[1] + match[3], {})[int(match[2])] = item
    for name, found in blocks.items():
        result[name] = combine([found[index] for index in range(len(found))])
    return result


def inlined(items):
    """The attention pooling's arrays as before it was a module."""
    return {name.removeprefix("MAPHead_0/"): item for name, item in items.items()}


def write_sparse(path, shapes: Shapes) -> None:
    """Write an .npz of zeros, float32, which takes no room on the disk.

    Large arrays are skipped, not written, and their checksums are wrong.
    """
    header = {"descr": "<f4", "fortran_order": False}
    with zipfile.ZipFile(path, "w") as archive:
        for name, shape in shapes.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, {**header, "shape": shape})
                size = 4 * math.prod(shape)
                if size < 2**16:
                    entry.write(bytes(size))
                else:
                    entry._file_size += size
                    archive.fp.seek(size, io.SEEK_CUR)
