"""Model arguments of a checkpoint: what its arrays show, and its documents state."""

import math
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from keras_vit.costs import least_parameters
from keras_vit.errors import WeightsFileError
from keras_vit.option_rows import rows
from keras_vit.options import LAYER_NORM_EPSILON, SIZES, ViTOptions
from keras_vit.specs import SPECS, patch_side
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.families.family import refuse_config
from keras_vit.weights.families.layouts import HEADS_FIRST, HEADS_LAST
from keras_vit.weights.grids import config_image_size, square_grids, stated_grid
from keras_vit.weights.reading import StoredArray


def assumed_settings(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Arguments that are assumed, because no config gives them."""
    return () if checkpoint.file.config else checkpoint.described.configured


def model_arguments(
    checkpoint: Checkpoint, grid: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Model arguments of a checkpoint.

    What both its arrays and its documents give must be the same.

    Args:
        checkpoint: An open checkpoint.
        grid: (h, w) of its positions, if the caller gives it.

    Returns:
        Arguments of `VisionTransformer`, or of `ResNet` for BiT. `heads` and
        `image_size` are absent where neither arrays nor config determine them. An
        unsupported pooling is returned under its own name, which no model accepts.
        `grid` is present where it is stated; otherwise `image_size` assumes a square
        grid.

    Raises:
        WeightsFileError: An array that every model has is missing or malformed, or the
            documents name something unsupported, or contradict the arrays.
    """
    try:
        arguments = _arguments(checkpoint, grid)
    except (AttributeError, LookupError, TypeError) as error:
        raise WeightsFileError(
            f"The .json files beside the weights must be of a {checkpoint.family} "
            f"model. Received: those beside {str(checkpoint.file.path)!r}, which are "
            f"malformed ({type(error).__name__}: {error})"
        ) from error
    entries = checkpoint.entries
    check_held(checkpoint.file.path, arguments, len(entries), checkpoint.file.arrays)
    return arguments


def check_held(
    path: pathlib.Path,
    arguments: Mapping[str, Any],
    entries: int,
    arrays: Mapping[str, StoredArray],
) -> None:
    """Raise WeightsFileError where a model needs far more weights than a file holds.

    Args:
        path: The file.
        arguments: Of the `VisionTransformer` or `ResNet` that it describes.
        entries: Number of weights of a model in the file.
        arrays: All that it holds.
    """
    units = (*arguments.get("blocks", ()), *(arguments.get("resnet_blocks") or ()))
    layers = arguments.get("depth", 0) + sum(units)
    held = sum(math.prod(array.shape) for array in arrays.values())
    names = (*SIZES, "classes", "patch_size", "image_size")
    if layers > entries or least_parameters(arguments) > 4 * held + 2**22:
        raise WeightsFileError(
            "A file must hold the weights of the model that it describes. Received: "
            f"{str(path)!r} with {held:,} numbers in {entries:,} weights, for a model "
            f"with {', '.join(f'{k}={arguments[k]}' for k in names if k in arguments)}"
        )


def differences(
    file: dict[str, Any], names: tuple[str, ...], wanted: Callable[[str], Any]
) -> list[str]:
    """Describe the arguments of a file that differ from the wanted ones."""
    return [
        f"{name}={file[name]} instead of {wanted(name)}"
        for name in names
        if name in file and file[name] != wanted(name)
    ]


def _arguments(checkpoint: Checkpoint, grid: tuple[int, int] | None) -> dict[str, Any]:
    if checkpoint.described.model == "resnet":
        return _resnet(checkpoint)
    shapes = _Shapes(checkpoint)
    family = checkpoint.described
    shapes["encoder_block_0/norm1/gamma"]  # must be there
    kernel = shapes["embedding/kernel"]
    _check_square(checkpoint, (kernel[0], kernel[1]))
    shown: dict[str, Any] = {
        "patch_size": kernel[0],
        "width": kernel[-1],
        "depth": _count(shapes, r"encoder_block_(\d+)/norm1/gamma") + 1,
        **_mlp(shapes),
        "channels": shapes[_first_kernel(shapes)][2],
        "classes": shapes["head/kernel"][-1] if "head/kernel" in shapes else None,
        "representation_size": shapes.get("pre_logits/bias", (None,))[0],
        "register_tokens": shapes.get("register_tokens/tokens", (1, 0))[1],
        "layer_scale": 1e-5 if "encoder_block_0/layer_scale1/gamma" in shapes else None,
        **{
            name: row.shown_by in shapes
            if name in family.holds
            else getattr(ViTOptions, name)
            for name, row in rows(ViTOptions).items()
            if row.shown_by is not None
        },
        **_stem(shapes),
    }
    learned = "position_embedding/embedding" in shapes
    shown["position_embedding"] = "learned_1d" if learned else family.fixed_positions()
    if (heads := _shown_heads(checkpoint, shapes, shown)) is not None:
        shown["heads"] = heads
    stated = family.stated(checkpoint.file, shown["swiglu"])
    _compare(checkpoint, stated, shown)
    known = {"norm_epsilon": LAYER_NORM_EPSILON, **family.defaults}
    arguments = {**_of_the_usual_size(shown), **known, **stated, **shown}
    arguments["pooling"] = _pooling(checkpoint, shapes, arguments)
    arguments.update(_class_names(checkpoint, arguments["classes"]))
    arguments.update(_grid(checkpoint, shapes, arguments, grid))
    return arguments


def _check_square(checkpoint: Checkpoint, sides: tuple[int, int]) -> None:
    """Raise WeightsFileError for patches that are not square."""
    if sides[0] != sides[1]:
        name = checkpoint.entries["embedding/kernel"].name
        raise WeightsFileError(
            f"Patches must be square. Received: `{name}` with patches of {sides} pixels"
            f" in {str(checkpoint.file.path)!r}"
        )


def _compare(
    checkpoint: Checkpoint, stated: dict[str, Any], shown: Mapping[str, Any]
) -> None:
    """Raise WeightsFileError for an option that contradicts the arrays, or its row."""
    for name, value in stated.items():
        if name == "patch_size" and isinstance(value, (list, tuple)):
            value = value[0] if set(value) == {shown[name]} else tuple(value)
        row, family = rows(ViTOptions)[name], checkpoint.described
        if name in shown and value != shown[name]:
            held = row.shown_by in checkpoint.entries
            seen = row.shown_by is None or held == shown[name]
            why = "as the arrays show" if seen else f"as in any {family.title}"
            rule = f"`{name}` must be {shown[name]!r}, {why}"
            refuse_config(checkpoint.file, rule, value)
        if wanted := row.problem(value):
            refuse_config(checkpoint.file, f"`{name}` must be {wanted}", value)


# Number of axes of the weights whose shapes determine a model's sizes.
_AXES = {
    "stem_conv/kernel": 4,
    "embedding/kernel": 4,
    "class_token/token": 3,
    "register_tokens/tokens": 3,
    "position_embedding/embedding": 3,
    "encoder_block_0/attention/query/kernel": 2,
    "encoder_block_0/attention/query_norm/gamma": 1,
    "encoder_block_0/mlp/Dense_0/kernel": 2,
    "encoder_block_0/mlp/Dense_1/kernel": 2,
    "pre_logits/bias": 1,
    "head/kernel": 2,
}


class _Shapes(dict[str, tuple[int, ...]]):
    """Shapes of a checkpoint by our paths; a missing one is an error."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__((path, e.shape()) for path, e in checkpoint.entries.items())
        self.path = checkpoint.file.path
        for path, axes in _AXES.items():
            shape = self.get(path)
            if shape is not None and (len(shape) != axes or not all(shape)):
                raise WeightsFileError(
                    f"`{checkpoint.entries[path].name}` must have {axes} axes, none "
                    f"empty. Received: shape={shape} in {str(self.path)!r}"
                )

    def __missing__(self, path: str) -> NoReturn:
        raise WeightsFileError(
            f"A checkpoint must have the weights of `{path}`. "
            f"Received: {str(self.path)!r}, which has none"
        )


def _count(shapes: _Shapes, pattern: str) -> int:
    """Largest number in the pattern's group over all paths; -1 for none."""
    matches = (re.fullmatch(pattern, path) for path in shapes)
    largest = max((int(match[1]) for match in matches if match), default=-1)
    if largest > len(shapes):
        raise WeightsFileError(
            "A checkpoint must have the weights of all blocks. Received: "
            f"{str(shapes.path)!r} with number {largest} and {len(shapes)} weights"
        )
    return largest


def _mlp(shapes: _Shapes) -> dict[str, Any]:
    """Hidden width, and whether the first layer returns a SwiGLU's gate as well."""
    first = shapes["encoder_block_0/mlp/Dense_0/kernel"][-1]
    hidden = shapes.get("encoder_block_0/mlp/Dense_1/kernel", (first,))[0]
    swiglu = first == 2 * hidden
    return {"mlp_dim": hidden if swiglu else first, "swiglu": swiglu}


def _first_kernel(shapes: _Shapes) -> str:
    return "stem_conv/kernel" if "stem_conv/kernel" in shapes else "embedding/kernel"


def _blocks(shapes: _Shapes) -> tuple[int, ...]:
    """Units of each stage of a ResNet."""
    stages = _count(shapes, r"stage(\d+)_unit1/conv1/kernel")
    return tuple(
        _count(shapes, rf"stage{stage}_unit(\d+)/conv1/kernel")
        for stage in range(1, stages + 1)
    )


def _stem(shapes: _Shapes) -> dict[str, Any]:
    if "stem_conv/kernel" not in shapes:
        return {}
    return {
        "resnet_blocks": _blocks(shapes),
        "resnet_width_factor": shapes["stem_conv/kernel"][-1] // 64,
    }


def _resnet(checkpoint: Checkpoint) -> dict[str, Any]:
    shapes = _Shapes(checkpoint)
    known = checkpoint.described.poolings
    pooling, _ = checkpoint.described.pooling(checkpoint.file)
    classes = shapes["head/kernel"][-1] if "head/kernel" in shapes else None
    return {
        **_class_names(checkpoint, classes),
        "blocks": _blocks(shapes),
        "width_factor": shapes["stem_conv/kernel"][-1] // 64,
        "channels": shapes["stem_conv/kernel"][2],
        "classes": classes,
        "pooling": "avg" if pooling is None else known.get(pooling, repr(pooling)),
    }


def _class_names(checkpoint: Checkpoint, classes: int | None) -> dict[str, Any]:
    """Class names, if a config has one for each class."""
    names = checkpoint.described.class_names(checkpoint.file, classes or 0)
    if not names or len(names) != classes or None in names:
        return {}
    return {"class_names": names}


def _pooling(
    checkpoint: Checkpoint, shapes: _Shapes, arguments: Mapping[str, Any]
) -> str | None:
    """Our `pooling`, or in words what we do not compute."""
    if "attention_pooling/probe" in shapes:
        usual = "map"
    elif arguments["fc_norm"] or not arguments["class_token"]:
        usual = "avg"
    else:
        usual = "token"
    known = checkpoint.described.poolings
    pooling, whole = checkpoint.described.pooling(checkpoint.file)
    prefix = arguments["class_token"] + arguments["register_tokens"]
    pooled = prefix if whole else 0  # of the tokens before the patches
    ours = {
        "token": arguments["class_token"],
        "avg": pooled == 0,
        "map": pooled == arguments["class_token"],
        None: arguments["classes"] is None,
    }
    ours_here = usual if pooling is None else known.get(pooling)
    if (pooling is None or pooling in known) and ours[ours_here]:
        return ours_here
    return f"{pooling or usual!r} of {'all tokens' if whole else 'the patches'}"


def _shown_heads(
    checkpoint: Checkpoint, shapes: _Shapes, shown: Mapping[str, Any]
) -> int | None:
    """Number of attention heads, which PyTorch's arrays show only with QK norm."""
    shapes["encoder_block_0/attention/query/kernel"]  # must be there
    raw = checkpoint.entries["encoder_block_0/attention/query/kernel"].raw_shape
    if len(raw) == 3:  # [D, A, K]
        _check_heads(checkpoint, raw[1:])
        return raw[1]
    if shown["qk_norm"]:
        width: int = shown["width"]
        return width // shapes["encoder_block_0/attention/query_norm/gamma"][0]
    return None


def _of_the_usual_size(shown: Mapping[str, Any]) -> dict[str, int]:
    """Number of heads of the paper's model with the same width, depth and MLP."""
    size = tuple(shown[key] for key in ("width", "depth", "mlp_dim"))
    known = {(s.width, s.depth, s.mlp_dim): s.heads for s in SPECS.values()}
    return {"heads": known[size]} if size in known else {}


def _check_heads(checkpoint: Checkpoint, heads: tuple[int, ...]) -> None:
    """Raise WeightsFileError unless all arrays with separate heads agree in number."""
    places = {HEADS_LAST: slice(-2, None), HEADS_FIRST: slice(0, 2)}
    for entry in checkpoint.entries.values():
        place = places.get(entry.layout)
        if place is not None and entry.raw_shape[place] != heads:
            raise WeightsFileError(
                f"`{entry.name}` must have heads, and elements of each, as the query's "
                f"kernel: {heads}. Received: shape={entry.raw_shape} in "
                f"{str(checkpoint.file.path)!r}"
            )


def _grid(
    checkpoint: Checkpoint,
    shapes: _Shapes,
    arguments: Mapping[str, Any],
    asked: tuple[int, int] | None,
) -> dict[str, Any]:
    """Image size in pixels, grid, and whether positions cover the prefix tokens."""
    side = patch_side(arguments["patch_size"], arguments.get("resnet_blocks"))
    if "position_embedding/embedding" not in shapes:
        size = config_image_size(checkpoint)
        return {"image_size": size} if size else {}
    tokens = shapes["position_embedding/embedding"][1]
    prefix = arguments["class_token"] + arguments["register_tokens"]
    known = asked or stated_grid(checkpoint, tokens, prefix, side)
    squares = square_grids(checkpoint, tokens, prefix)
    grid = known or next(iter(squares), None)
    if grid is None:
        return {}
    found = {
        "image_size": (grid[0] * side, grid[1] * side),
        "prefix_positions": tokens - grid[0] * grid[1] == prefix,
    }
    return {**found, "grid": tuple(known)} if known else found
