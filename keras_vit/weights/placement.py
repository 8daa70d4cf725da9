"""Plan of a load: which array goes into which weight, and how it is adapted."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from keras_vit.options import SETTINGS
from keras_vit.typing import Array
from keras_vit.weights.checkpoint import Checkpoint, Entry, LoadReport
from keras_vit.weights.config import assumed_settings
from keras_vit.weights.grids import grid_fits, square_grids
from keras_vit.weights.resampling import (
    adapt_channels,
    patch_method,
    resample_patches,
    resample_positions,
    resample_relative_bias,
)

if TYPE_CHECKING:
    from keras_vit.base import ImageModel

CLASSIFIER_POLICIES = ("load", "keep", "reset", "drop")
HEADS = ("head/", "head_dist/")  # the classifier, and a second one
_HEAD = (
    *(*HEADS, "pre_logits/", "projection/"),
    "attention_pooling/",
)


class Plan:
    """Plan of a load: for each weight a function that reads its value from the file.

    Args:
        model: The model, which is not touched.
        checkpoint: The open checkpoint.
        file: Its `model_arguments`.

    Attributes:
        weights: The model's weights by path.
        entries: The checkpoint's arrays that are not placed yet, by path.
        values: Functions that read the new value of each weight, by path.
        problems: Why the checkpoint does not fit.
        report: The report of the load, as far as it is planned.
    """

    def __init__(
        self, model: "ImageModel", checkpoint: Checkpoint, file: dict[str, Any]
    ) -> None:
        self.model = model
        self.checkpoint = checkpoint
        self.file = file
        self.weights = {weight.path: weight for weight in model.weights}
        self.entries = dict(checkpoint.entries)
        self.values: dict[str, Callable[[], Array]] = {}
        self.problems: list[str] = []
        self.report = LoadReport(
            str(checkpoint.file.path),
            checkpoint.family,
            unused=list(checkpoint.unknown),
            outside=list(checkpoint.outside),
        )

    def use(self, path: str, read: Callable[[], Array] | None = None) -> None:
        """Place an array in its weight, as it is or through `read`."""
        entry = self.entries.pop(path)
        dtype = entry.array.dtype
        if not is_float(dtype):
            self.problems.append(f"`{entry.name}` must hold floats, not {dtype}")
        elif dtype != np.float32:
            self.report.adapted.setdefault(path, f"from {dtype}")
        self.values[path] = read or entry.read
        self.report.used[path] = entry.name

    def refuse(self, path: str) -> None:
        """Note an array that does not fit; it is neither missing nor unused."""
        self.report.used[path] = self.entries.pop(path).name

    def compare_settings(self, required: bool) -> None:
        """Compare the hyperparameters that the arrays do not determine."""
        for name in SETTINGS:
            if name not in self.file or not self._computes(name):
                continue
            theirs, ours = self.file[name], getattr(self.model, name)
            if name == "pool_heads":  # None for those of the blocks
                theirs, ours = theirs or self.file["heads"], ours or self.model.heads
            if name == "position_placement":
                theirs = theirs or "stem"
            shown = name == "position_embedding" and "learned_1d" in (theirs, ours)
            if theirs == ours or shown:
                continue
            if required:
                self.problems.append(
                    f"the file is of a model with {name}={theirs!r}, this one has "
                    f"{name}={ours!r}: build it with the file's, or pass "
                    "settings='ignore'"
                )
            else:
                self.report.notes.append(
                    f"{name}={ours!r} of the model stays; the file's is {theirs!r}"
                )
        if guessed := assumed_settings(self.checkpoint):
            usual = [f"{k}={self.file[k]!r}" for k in guessed if k in self.file]
            self.report.notes.append(
                f"no config.json states these, assumed: {', '.join(usual)}"
            )
        if hasattr(self.model, "heads") and "heads" not in self.file:
            self.report.notes.append(
                f"the file does not say how many heads it has; the model has "
                f"{self.model.heads}"
            )
        self.report.notes += self.checkpoint.described.notes(self.checkpoint.file)
        note = self.checkpoint.described.hybrid_note
        if note is not None and "stem_conv/kernel" in self.entries:
            self.report.notes.append(note)

    def _computes(self, name: str) -> bool:
        """Whether the model computes anything by a setting."""
        model = self.model
        if not hasattr(model, name):
            return False
        if name == "gelu":
            return not model.swiglu or model.pooling == "map"
        if name == "pool_heads":
            return model.pooling in ("map", "query") and "heads" in self.file
        if name == "rotary_temperature":
            return model.rotary in ("centered", "grid")
        return model.rotary is not None or not name.startswith("rotary_")

    def load_classifier(self) -> None:
        """Place the file's classifier, which must fit the model's."""
        if second := self.checkpoint.second_classifiers:
            self.report.unused += second
            what = self.checkpoint.described.second_classifier
            self.report.notes.append(
                f"its {what} has no place here: strict=False leaves it out"
            )
        theirs, ours = self.file["classes"], self.model.classes
        if theirs is ours is None:
            return
        if ours is None:
            problem = (
                "the file has a classifier, the model none: pass classifier='drop'"
            )
        elif theirs is None:
            problem = (
                "the model has a classifier, the file none: pass classifier='keep'"
            )
        elif theirs != ours:
            problem = (
                f"the file's classifier has {theirs} classes, the model's {ours}: "
                "pass classifier='keep' or classifier='reset'"
            )
        elif self.file["pooling"] != self.model.pooling:
            problem = (
                f"the file's classifier is for pooling={self.file['pooling']!r}, the "
                f"model's for pooling={self.model.pooling!r}: pass "
                "classifier='keep' or classifier='reset'"
            )
        else:
            return
        self.problems.append(problem)
        for path in [path for path in self.entries if path.startswith(_HEAD)]:
            self.refuse(path)

    def leave_classifier(self, policy: str) -> None:
        """Omit the file's classifier, as the caller asked."""
        ours = [path for path in self.weights if path.startswith(HEADS)]
        if policy == "drop" and ours:
            self.problems.append(
                "classifier='drop' is for a model without classifier: pass "
                "classifier='keep' or classifier='reset'"
            )
        elif policy != "drop" and not ours:
            self.problems.append(
                f"classifier={policy!r} is for a model with a classifier: pass "
                "classifier='drop'"
            )
        for path in [path for path in self.entries if path.startswith(_HEAD)]:
            # The layers below the classifier stay where the model has them.
            if path.startswith(HEADS) or path not in self.weights:
                self.report.dropped.append(self.entries.pop(path).name)
        self.report.dropped = list(dict.fromkeys(self.report.dropped))
        self.report.dropped += self.checkpoint.second_classifiers
        if policy == "reset":
            for path in ours:
                self._reset(path)

    def _reset(self, path: str) -> None:
        value = self.model.head_bias_init if path.endswith("bias") else 0.0
        shape = tuple(self.weights[path].shape)
        self.values[path] = lambda: np.full(shape, value, "float32")
        self.report.adapted[path] = f"new, all {value}"

    def place_the_rest(self, classifier: str) -> None:
        """Place the remaining arrays in the weights of their paths."""
        for path in [path for path in self.entries if path in self.weights]:
            shape, wanted = self.entries[path].shape(), tuple(self.weights[path].shape)
            if shape == wanted:
                self.use(path)
            else:
                name = self.entries[path].name
                self.problems.append(f"{path} is {wanted}, and `{name}` gives {shape}")
                self.refuse(path)
        self.report.unused += dict.fromkeys(e.name for e in self.entries.values())
        placed = self.values.keys() | self.report.used.keys()
        lacking = [path for path in self.weights if path not in placed]
        kept = [p for p in lacking if classifier != "load" and p.startswith(_HEAD)]
        self.report.missing += [path for path in lacking if path not in kept]
        if kept:
            layers = dict.fromkeys(path.partition("/")[0] for path in kept)
            self.report.notes.append(f"not loaded, unchanged: {', '.join(layers)}")


def is_float(dtype: np.dtype) -> bool:
    """Whether a dtype is floating-point, bfloat16 included."""
    return dtype == ml_dtypes.bfloat16 or np.issubdtype(dtype, np.floating)


def as_float32(entry: Entry) -> Array:
    """The array for arithmetic."""
    return np.asarray(entry.read(), "float32")


POSITIONS = "position_embedding/embedding"


def adapt_kernels(plan: Plan, method: str) -> None:
    """Adapt the first kernel to other channels and another patch size."""
    first = "stem_conv/kernel"
    first = first if first in plan.weights else "embedding/kernel"
    for path in dict.fromkeys((first, "embedding/kernel")):
        if path not in plan.entries or path not in plan.weights:
            continue
        shape = plan.entries[path].shape()
        wanted = tuple(plan.weights[path].shape)
        if len(shape) != 4 or shape[3] != wanted[3]:
            continue  # another width: no adaptation helps
        other_patch = path == "embedding/kernel" and shape[:2] != wanted[:2]
        other_channels = path == first and shape[2] == 3 != wanted[2]
        if other_patch or other_channels:
            _adapt_kernel(plan, path, wanted, method)


def _adapt_kernel(plan: Plan, path: str, wanted: tuple[int, ...], method: str) -> None:
    entry = plan.entries[path]
    shape, method = entry.shape(), patch_method(method)
    if shape[2] != wanted[2]:
        plan.report.adapted[path] = f"{shape[2]} to {wanted[2]} channels"
    if shape[:2] != wanted[:2]:
        plan.report.resampled[path] = (
            f"patches of {shape[:2]} to {wanted[:2]} pixels, pseudo-inverse resize, "
            f"method {method!r}"
        )

    def read() -> Array:
        kernel = as_float32(entry)
        if shape[2] != wanted[2]:
            kernel = adapt_channels(kernel, wanted[2])
        return resample_patches(kernel, (wanted[0], wanted[1]), method)

    plan.use(path, read)


def adapt_positions(plan: Plan, method: str) -> None:
    """Adapt positions to the model's grid and prefix tokens.

    If the model has positions for fewer prefix tokens than the file, the rest are added
    to their tokens, as the file's model would do; positions that only the model has are
    zero. Neither changes the outputs.
    """
    if POSITIONS not in plan.entries or POSITIONS not in plan.weights:
        return
    entry, wanted = plan.entries[POSITIONS], tuple(plan.weights[POSITIONS].shape)
    shape, new = entry.shape(), plan.model.grid
    if len(shape) != 3 or shape[-1] != wanted[-1]:
        return  # another width: no adaptation helps
    old = _file_grid(plan, entry.name, shape[1])
    if old is None:
        plan.refuse(POSITIONS)
        return
    theirs, ours = shape[1] - old[0] * old[1], wanted[1] - new[0] * new[1]
    if theirs > ours:
        _merge_positions(plan, ours, theirs)
    _report_positions(plan, old, new, theirs, ours, method)

    def read() -> Array:
        values = resample_positions(as_float32(entry), old, new, theirs, method)
        zeros = np.zeros((1, max(ours - theirs, 0), shape[-1]), "float32")
        prefix, patches = values[:, : min(ours, theirs)], values[:, theirs:]
        return np.concatenate([prefix, zeros, patches], axis=1)

    unchanged = (old, theirs) == (new, ours)
    plan.use(POSITIONS, None if unchanged else read)


def adapt_relative_bias(plan: Plan, method: str) -> None:
    """Adapt tables of relative positions to the model's grid."""
    old, new = plan.file.get("grid"), tuple(getattr(plan.model, "grid", ()))
    for path in [path for path in plan.entries if is_relative_bias(path)]:
        if path not in plan.weights or old is None or tuple(old) == new:
            continue
        entry = plan.entries[path]
        plan.report.resampled[path] = f"grid {old} to {new}, method {method!r}"
        read = functools.partial(
            lambda entry: resample_relative_bias(as_float32(entry), old, new, method),
            entry,
        )
        plan.use(path, read)


def is_relative_bias(path: str) -> bool:
    """Whether a weight is a table of relative positions."""
    return path == "relative_bias/table" or path.endswith("/relative_bias")


def _report_positions(
    plan: Plan,
    old: tuple[int, int],
    new: tuple[int, int],
    theirs: int,
    ours: int,
    method: str,
) -> None:
    if old != new:
        plan.report.resampled[POSITIONS] = f"grid {old} to {new}, method {method!r}"
    if ours > theirs:
        plan.report.adapted[POSITIONS] = (
            f"zeros for {ours - theirs} prefix tokens without a position"
        )
    elif theirs > ours:
        plan.report.adapted[POSITIONS] = (
            f"without those of {theirs - ours} prefix tokens"
        )


def _file_grid(plan: Plan, name: str, tokens: int) -> tuple[int, int] | None:
    """(h, w) of the file's positions; a problem is noted if that is not certain."""
    checkpoint = plan.checkpoint
    prefix = plan.file["class_token"] + plan.file["register_tokens"]
    given: tuple[int, int] | None = plan.file.get("grid")
    own = tuple(plan.model.grid)
    if given is not None:
        if grid_fits(checkpoint, tokens, prefix, given):
            return given
        plan.problems.append(f"`{name}` has {tokens} positions, no grid of {given}")
        return None
    possible = square_grids(checkpoint, tokens, prefix)
    if own not in possible and grid_fits(checkpoint, tokens, prefix, own):
        possible.insert(0, own)
    if len(possible) == 1:
        return possible[0]
    which = "may be of grid " + " or ".join(map(str, possible))
    plan.problems.append(
        f"`{name}` has {tokens} positions, {which if possible else 'no square grid'}: "
        "pass grid=(h, w)"
    )
    return None


def _merge_positions(plan: Plan, ours: int, theirs: int) -> None:
    """Add to the prefix tokens those positions that the model has no weights for."""
    positions, start = plan.entries[POSITIONS], 0
    for path in ("class_token/token", "register_tokens/tokens"):
        if path not in plan.entries:
            continue
        count = plan.entries[path].shape()[1]
        fits = plan.entries[path].shape() == tuple(
            getattr(plan.weights.get(path), "shape", ())
        )
        if fits and ours <= start and start + count <= theirs:
            read = _sum(plan.entries[path], positions, start, count)
            plan.report.adapted[path] = "its position was added to it"
            plan.use(path, read)
        start += count


def _sum(token: Entry, positions: Entry, start: int, count: int) -> Callable[[], Array]:
    return lambda: as_float32(token) + as_float32(positions)[:, start : start + count]
