"""Load a checkpoint atomically into a built model."""

import mmap
import warnings
from typing import Any

import keras
import numpy as np

from keras_vit.base import ImageModel, check_model
from keras_vit.checks import check_choice
from keras_vit.errors import CheckpointError
from keras_vit.options import SETTINGS, SIZES
from keras_vit.typing import Array, StrPath
from keras_vit.weights.checkpoint import (
    Checkpoint,
    LoadReport,
    open_checkpoint,
    shorten,
)
from keras_vit.weights.config import differences, model_arguments
from keras_vit.weights.placement import (
    CLASSIFIER_POLICIES,
    Plan,
    adapt_kernels,
    adapt_positions,
    adapt_relative_bias,
)
from keras_vit.weights.presets import fetch
from keras_vit.weights.resampling import RESIZES


def load_checkpoint(
    model: ImageModel,
    path: StrPath,
    *,
    classifier: str = "load",
    resample: str = "google",
    grid: tuple[int, int] | None = None,
    settings: str = "match",
    strict: bool = True,
) -> LoadReport:
    """Load a checkpoint of any family atomically into a built model.

    The family is recognized from the array names. The model changes only after
    everything is known to fit. Positions of another grid, patches of another
    size and images of other than three channels are adapted, and the report says so.

    Args:
        model: A `VisionTransformer`, or a `ResNet` for BiT.
        path: An `.npz`, `.safetensors` or `.weights.h5` file, a state dict of PyTorch
            (`.pth`, `.bin`), a folder of Hugging Face, timm or keras-hub, or
            `"hf://owner/name"`.
        classifier: `"load"` the file's classifier; or leave it out and `"keep"` the
            model's, or `"reset"` the model's to its initial values; or `"drop"` it, the
            model having none.
        resample: How positions are resampled: `"google"` (corner-aligned bilinear,
            the official code's), `"timm"` (bicubic, antialiased), `"bicubic"`,
            `"bilinear"` or `"antialiased"` (bilinear). See
            `keras_vit.weights.resample_positions`. Patches of another size are
            resampled by `"timm"` with `"timm"`, and else as in FlexiViT; see
            `keras_vit.weights.resample_patches`.
        grid: (h, w) of the file's positions. Needed where neither the file nor its
            config states it and a grid that is not square would fit too.
        settings: `"match"`: the file's GELU, LayerNorm epsilon and number of heads must
            equal the model's. `"ignore"`: the model keeps its own, and the report
            lists the differences.
        strict: Whether an array without a weight, or a weight without an array, is an
            error.

    Returns:
        The `LoadReport`; `print` it.

    Raises:
        WeightsFileError: The file is missing, damaged or of no known family.
        CheckpointError: It does not fit the model. All reasons are listed.
        ValueError: An unknown value of an argument.
        TypeError: `model` is another kind of model.
    """
    check_choice("classifier", classifier, CLASSIFIER_POLICIES)
    check_choice("resample", resample, tuple(RESIZES))
    check_choice("settings", settings, ("match", "ignore"))
    with open_checkpoint(fetch(path)) as checkpoint:
        check_kind(model, checkpoint)
        asked = {} if classifier == "load" else {"classes": model.classes}
        file = model_arguments(checkpoint, grid, asked)
        return load_open_checkpoint(
            model, checkpoint, file, classifier, resample, settings, strict
        )


def load_open_checkpoint(
    model: ImageModel,
    checkpoint: Checkpoint,
    file: dict[str, Any],
    classifier: str,
    resample: str,
    settings: str,
    strict: bool = True,
) -> LoadReport:
    """Load an open checkpoint with these `model_arguments`; see `load_checkpoint`."""
    plan = Plan(model, checkpoint, file)
    _check_size(plan)
    plan.compare_settings(required=settings == "match")
    if classifier == "load":
        plan.load_classifier()
    else:
        plan.leave_classifier(classifier)
    adapt_kernels(plan, resample)
    adapt_positions(plan, resample)
    adapt_relative_bias(plan, resample)
    plan.place_the_rest(classifier)
    _refuse(plan, strict)
    _verify(plan)
    _assign_all(plan)
    return plan.report


def check_kind(model: ImageModel, checkpoint: Checkpoint) -> None:
    """Raise CheckpointError unless the file is of the model's architecture."""
    check_model(model)
    family = checkpoint.described
    if family.model != model.architecture:
        wanted = {"vit": "a VisionTransformer", "resnet": "a ResNet"}[family.model]
        raise CheckpointError(
            f"`model` must be {wanted} for {str(checkpoint.file.path)!r} "
            f"({family.title}). Received: {type(model).__name__} {model.name!r}"
        )


def _check_size(plan: Plan) -> None:
    """Raise one CheckpointError for another size, not a problem per weight."""
    shown = tuple(name for name in SIZES if name not in SETTINGS)
    different = differences(plan.file, shown, lambda name: getattr(plan.model, name))
    if [text for text in different if not text.startswith("depth")]:
        raise CheckpointError(
            f"The checkpoint must have the size of the model {plan.model.name!r}. "
            f"Received: {plan.report.path} ({plan.checkpoint.described.title}) with "
            f"{', '.join(different)}"
        )


def _refuse(plan: Plan, strict: bool) -> None:
    """Raise CheckpointError with every reason if something does not fit."""
    problems = list(plan.problems)
    if strict:
        for title, names in (
            ("arrays without a weight", plan.report.unused),
            ("weights without an array", plan.report.missing),
        ):
            if names:
                problems.append(f"{title}: {shorten(names)}")
    if problems:
        lines = [f"\n- {line}" for line in problems + plan.report.notes]
        raise CheckpointError(
            f"The checkpoint must fit the model {plan.model.name!r}. Received: "
            f"{plan.report.path} ({plan.checkpoint.described.title})" + "".join(lines)
        )


def _verify(plan: Plan) -> None:
    """Raise for damaged bytes; warn of an all-zero classifier."""
    entries = plan.checkpoint.entries
    stored = {
        id(array): array
        for path, entry in entries.items()
        if path in plan.values
        for array in entry.arrays
    }
    for array in stored.values():
        array.verify()
    if "head/kernel" in plan.report.used and not np.any(entries["head/kernel"].read()):
        _warn(
            plan,
            "its classifier is all zeros and predicts nothing, as in the files that "
            "Google published for ImageNet-21k",
        )


def _assign_all(plan: Plan) -> None:
    """Read every value into its weight; warn of non-finite values."""
    # The largest first: the backend can put what follows where their values were.
    sizes = {path: np.prod(plan.weights[path].shape) for path in plan.values}
    paths = sorted(sizes, key=sizes.__getitem__, reverse=True)
    broken = {plan.report.used[path] for path in paths if not _assign(plan, path)}
    if broken:
        names = ", ".join(sorted(broken))
        _warn(plan, f"not all numbers are finite in {names}")


def _assign(plan: Plan, path: str) -> bool:
    """Read a value into its weight; return whether all its numbers are finite."""
    weight = plan.weights[path]
    fresh = fresh_copy(plan.values[path](), weight.dtype)
    assign(weight, fresh)
    return _finite(fresh)


def _warn(plan: Plan, text: str) -> None:
    plan.report.notes.append(text)
    warnings.warn(f"{plan.report.path}: {text}", stacklevel=5)


def _finite(array: Array) -> bool:
    # Four times as fast as testing each number: a NaN or infinity spreads to the sum.
    with np.errstate(all="ignore"):
        total = np.sum(array, dtype="float32")
    return bool(np.isfinite(total)) or bool(np.isfinite(array).all())


# Columns copied at once from a transposed matrix: one cache line.
COLUMNS = 16
# Bytes above which an intermediate copy matters.
LARGE = 2**20


class _Fresh:
    """Wrapper of an unshared array, which TensorFlow copies once instead of twice.

    TensorFlow copies every ndarray before it copies it into its own memory, but not the
    result of `__array__`.
    """

    def __init__(self, array: Array) -> None:
        self.array = array

    def __array__(
        self, dtype: np.dtype | None = None, copy: bool | None = None
    ) -> Array:
        return self.array


def fresh_copy(array: Array, dtype: str) -> Array:
    """Contiguous copy of an array with the given dtype.

    A weight must not be assigned a view of a mapped file: JAX would keep it, and the
    weight would change with the file.
    """
    fresh = _empty(array.shape, np.dtype(dtype))
    if array.ndim == 2 and array.strides[0] < array.strides[1]:
        # NumPy copies row by row, which from a transposed matrix is five times as slow.
        for start in range(0, array.shape[1], COLUMNS):
            part = slice(start, start + COLUMNS)
            fresh[:, part] = array[:, part]
    else:
        fresh[...] = array
    return fresh


def assign(weight: keras.Variable, fresh: Array) -> None:
    """Assign an array to a weight without an intermediate copy.

    Args:
        weight: A `keras.Variable`.
        fresh: Of its shape and type, from `fresh_copy`; belongs to the weight now.
    """
    if fresh.nbytes >= LARGE:
        # Releases the weight's old values, so that the new ones can reuse their memory.
        weight.assign(_Fresh(_untouched(fresh.shape, fresh.dtype)))
    weight.assign(_Fresh(fresh))


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Uninitialized array that is not aligned to 64 bytes.

    TensorFlow and JAX would keep an aligned one. The weight's former memory, which they
    do not return to the system, would then be wasted.
    """
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + 64, "uint8")
    start = (16 - memory.ctypes.data) % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def _untouched(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Array of pages that occupy no memory until they are touched."""
    pages = mmap.mmap(-1, int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(pages, dtype).reshape(shape)
