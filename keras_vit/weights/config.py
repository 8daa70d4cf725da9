"""Model arguments of a checkpoint: what its arrays show, and its documents state."""

import logging
import math
import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from keras_vit.costs import least_parameters
from keras_vit.errors import WeightsFileError
from keras_vit.option_rows import rows
from keras_vit.options import (
    LAYER_NORM_EPSILON,
    REQUIRED,
    SIZES,
    ResNetOptions,
    ViTOptions,
)
from keras_vit.specs import patch_side
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.families.config_keys import Stated
from keras_vit.weights.families.layouts import match_ours
from keras_vit.weights.grids import config_image_size, square_grids, stated_grid
from keras_vit.weights.shown_options import Shapes, resnet_blocks, shown_options
from keras_vit.weights.stored_arrays import StoredArray

_LOG = logging.getLogger("keras_vit")


def assumed_settings(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Arguments that are assumed, because no config gives them."""
    family = checkpoint.described
    if checkpoint.file.config or not family.configured:
        return ()
    if family.model == "resnet":
        return family.configured
    shown = shown_options(checkpoint, Shapes(checkpoint))
    unusual = (
        name
        for name, value in family.guessed(checkpoint.file, shown).items()
        if name not in shown and value != getattr(ViTOptions, name, value)
    )
    return tuple(dict.fromkeys((*family.configured, *unusual)))


def model_arguments(
    checkpoint: Checkpoint,
    grid: tuple[int, int] | None = None,
    asked: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Model arguments of a checkpoint.

    What both its arrays and its documents give must be the same.

    Args:
        checkpoint: An open checkpoint.
        grid: (h, w) of its positions, if the caller gives it.
        asked: Options that the caller gives. What the documents state of one to which
            weights are adapted is not compared then.

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
        arguments = _arguments(checkpoint, grid, asked)
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
    blocks = arguments.get("depth", 0) * arguments.get("branches", 1)
    layers = blocks + sum(units)
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


def _arguments(
    checkpoint: Checkpoint, grid: tuple[int, int] | None, asked: Mapping[str, Any]
) -> dict[str, Any]:
    shapes = Shapes(checkpoint)
    if checkpoint.described.model == "resnet":
        return _resnet(checkpoint, shapes, asked)
    stated = _stated(checkpoint, ViTOptions)  # first, as it names what is refused
    shown = shown_options(checkpoint, shapes)
    _compare(checkpoint, ViTOptions, stated, shown, asked)
    said = {name: each.value for name, each in stated.items()}
    guessed = checkpoint.described.guessed(checkpoint.file, shown)
    known = {"layer_scale": 1e-5, "norm_epsilon": LAYER_NORM_EPSILON, **guessed, **said}
    arguments = {**known, **shown}
    if arguments.get("resnet_blocks") is None:
        arguments.pop("resnet_width_factor", None)
    if shown["layer_scale"] is not None:
        arguments["layer_scale"] = known["layer_scale"] or 1e-5
    if "position_embedding" not in arguments:
        raise WeightsFileError(
            "A checkpoint must have positions, or a config that says which there are. "
            f"Received: {str(checkpoint.file.path)!r}, without either"
        )
    arguments["pooling"] = _pooling(checkpoint, shapes, arguments)
    arguments.update(_class_names(checkpoint, arguments["classes"]))
    arguments.update(_grid(checkpoint, shapes, arguments, grid))
    return arguments


def _stated(checkpoint: Checkpoint, options: type) -> dict[str, Stated]:
    """Options that the documents state, and those that every such model has."""
    family = checkpoint.described
    usual = {
        name: getattr(options, name)
        for name, row in rows(options).items()
        if not (row.adaptable or name in family.holds or name in REQUIRED)
    }
    fixed = {k: v for k, v in {**usual, **family.always}.items() if k in rows(options)}
    every = f"every {family.title}"
    return {
        **{name: Stated(value, every) for name, value in fixed.items()},
        **family.stated(checkpoint.file),
    }


def _compare(
    checkpoint: Checkpoint,
    options: type,
    stated: Mapping[str, Stated],
    shown: Mapping[str, Any],
    asked: Mapping[str, Any],
) -> None:
    """Raise WeightsFileError for an option that contradicts the arrays, or its row."""
    for name, (value, source) in stated.items():
        row = rows(options)[name]
        if name == "patch_size" and isinstance(value, (list, tuple)):
            value = value[0] if len(set(value)) == 1 else tuple(value)
        if wanted := row.problem(value):
            raise WeightsFileError(
                f"`{name}` must be {wanted}. Received: {value!r} by {source} in the "
                f"config of {str(checkpoint.file.path)!r}"
            )
        if row.adaptable and name in asked:
            continue
        if not _agree(name, value, shown):
            raise WeightsFileError(
                f"`{name}` must be the same in the arrays and in what is stated of "
                f"them. Received: {str(checkpoint.file.path)!r}, where {source} states "
                f"{name}={value!r}, and the arrays show "
                f"{_evidence(checkpoint, name, value, shown)}"
            )


def _agree(name: str, value: Any, shown: Mapping[str, Any]) -> bool:
    if name == "layer_scale":
        return (value is None) == (shown[name] is None)
    if name in ARRAYS and name not in shown:
        return bool(value != ARRAYS[name][0])
    return name not in shown or bool(value == shown[name])


# Options of which one value alone has an array: the value, and our path.
ARRAYS = {
    "position_embedding": ("learned_1d", "position_embedding/embedding"),
    "rotary": ("mixed", "rotary/frequencies"),
}
# Where the arrays show an option, but for those whose rows say so.
_SHOWN_BY = {
    "width": "embedding/kernel",
    "patch_size": "embedding/kernel",
    "channels": "embedding/kernel",
    "mlp_dim": "encoder_block_0/mlp/Dense_0/kernel",
    "swiglu": "encoder_block_0/mlp/Dense_0/kernel",
    "norm": "encoder_block_0/norm1/beta",
    "classes": "head/kernel",
    "register_tokens": "register_tokens/tokens",
    "representation_size": "pre_logits/kernel",
    "projection": "projection/kernel",
    "layer_scale": "encoder_block_0/layer_scale1/gamma",
    "final_norm": "encoder_norm/gamma",
    "relative_bias": "encoder_block_0/attention/relative_bias",
    "heads": "encoder_block_0/attention/query/kernel",
    "blocks": "stage1_unit1/conv1/kernel",
    "width_factor": "stem_conv/kernel",
    **{name: path for name, (_, path) in ARRAYS.items()},
}


def _evidence(
    checkpoint: Checkpoint, name: str, value: Any, shown: Mapping[str, Any]
) -> str:
    """What the arrays show of an option, and which of them."""
    row, path = rows(ViTOptions)[name], _SHOWN_BY.get(name)
    if row.shown_by is not None:
        path = row.shown_by.path
    if row.counted_by is not None:
        here, wanted = (
            row.counted_by.path.format(n=n - 1) for n in (shown[name], value)
        )
        path = here if here in checkpoint.entries else wanted
    found = f"{name}={shown[name]!r}" if name in shown else f"another {name}"
    if path is None:
        return found
    if path in checkpoint.entries:
        return f"{found}, by `{checkpoint.entries[path].name}`"
    theirs = next(match_ours(checkpoint.described.rows, path), None)
    lacking = f"`{theirs[1]}`" if theirs else "any such array"
    return f"{found}, without {lacking}"


def _resnet(
    checkpoint: Checkpoint, shapes: Shapes, asked: Mapping[str, Any]
) -> dict[str, Any]:
    known = checkpoint.described.poolings
    pooling, _ = checkpoint.described.pooling(checkpoint.file)
    classes = shapes["head/kernel"][-1] if "head/kernel" in shapes else None
    shown = {
        "blocks": resnet_blocks(shapes),
        "width_factor": shapes["stem_conv/kernel"][-1] // 64,
        "channels": shapes["stem_conv/kernel"][2],
        "classes": classes,
    }
    _compare(
        checkpoint, ResNetOptions, _stated(checkpoint, ResNetOptions), shown, asked
    )
    return {
        **_class_names(checkpoint, classes),
        **shown,
        "pooling": "avg" if pooling is None else known.get(pooling, repr(pooling)),
    }


def _class_names(checkpoint: Checkpoint, classes: int | None) -> dict[str, Any]:
    """Class names, if a config has one for each class."""
    names = checkpoint.described.class_names(checkpoint.file, classes or 0)
    if not names or len(names) != classes or None in names:
        return {}
    return {"class_names": names}


def _pooling(
    checkpoint: Checkpoint, shapes: Shapes, arguments: Mapping[str, Any]
) -> str | None:
    """Our `pooling`, or in words what we do not compute."""
    if "attention_pooling/probe" in shapes:
        projected = "attention_pooling/attention/query/kernel" in shapes
        usual = "map" if projected else "query"
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
        "query": pooled == prefix,
        None: arguments["classes"] is None,
    }
    ours_here = usual if pooling is None else known.get(pooling)
    if ours_here in ("map", "query") and ours_here != usual:
        raise WeightsFileError(
            "A checkpoint must have the arrays of its pooling. Received: "
            f"{str(checkpoint.file.path)!r}, whose config states pooling={ours_here!r}"
        )
    if (pooling is None or pooling in known) and ours[ours_here]:
        return ours_here
    registers = ", registers included" if arguments["register_tokens"] else ""
    tokens = f"all tokens{registers}" if whole else "the patches"
    return f"{pooling or usual!r} of {tokens}"


def _whole_patches(
    checkpoint: Checkpoint, size: tuple[int, int], side: int
) -> tuple[int, int]:
    """(H, W) without the rows and columns that no patch covers, which are logged."""
    whole = size[0] // side * side, size[1] // side * side
    if whole != size:
        _LOG.warning(
            "%s: no patch of %d pixels covers the last rows and columns of its images "
            "of %s; the model reads %s",
            *(checkpoint.file.path, side, size, whole),
        )
    return whole


def _size_of(grid: tuple[int, int] | None, side: int) -> tuple[int, int] | None:
    """(H, W) of a grid of patches that the caller gives."""
    return None if grid is None else (grid[0] * side, grid[1] * side)


def _grid_of_table(
    checkpoint: Checkpoint,
    path: str,
    offsets: int,
    size: tuple[int, int] | None,
    side: int,
) -> dict[str, Any]:
    """Grid of a table of relative positions, by its size or stated beside it."""
    if size is None:
        square = (math.isqrt(max(offsets - 3, 0)) + 1) // 2
        size = square * side, square * side
    height, width = size[0] // side, size[1] // side
    if (2 * height - 1) * (2 * width - 1) + 3 != offsets:
        name = checkpoint.entries[path].name
        raise WeightsFileError(
            "The image size must be that of the relative positions. Received: "
            f"{str(checkpoint.file.path)!r}, where `{name}` has {offsets} of them for "
            f"{height} x {width} patches; pass grid=(h, w) for the file's own"
        )
    return {"image_size": (height * side, width * side), "grid": (height, width)}


def _grid(
    checkpoint: Checkpoint,
    shapes: Shapes,
    arguments: Mapping[str, Any],
    asked: tuple[int, int] | None,
) -> dict[str, Any]:
    """Image size in pixels, grid, and whether positions cover the prefix tokens."""
    side = patch_side(arguments["patch_size"], arguments.get("resnet_blocks"))
    table = "encoder_block_0/attention/relative_bias"
    table = "relative_bias/table" if "relative_bias/table" in shapes else table
    if "position_embedding/embedding" not in shapes:
        size = _size_of(asked, side) or config_image_size(checkpoint)
        if table in shapes:
            return _grid_of_table(checkpoint, table, shapes[table][0], size, side)
        if size is None:
            return {}
        height, width = _whole_patches(checkpoint, size, side)
        return {
            "image_size": (height, width),
            "grid": (height // side, width // side),
        }
    tokens = shapes["position_embedding/embedding"][1]
    prefix = arguments["class_token"] + arguments["register_tokens"]
    known = asked or stated_grid(checkpoint, tokens, prefix, side)
    size = config_image_size(checkpoint)
    name = checkpoint.entries["position_embedding/embedding"].name
    if size is not None and known is None:
        raise WeightsFileError(
            "The image size must be that of the positions. Received: "
            f"{str(checkpoint.file.path)!r}, whose config states image_size={size}, "
            f"where `{name}` has {tokens} positions of patches of {side} pixels; pass "
            "grid=(h, w) for the file's own"
        )
    squares = square_grids(checkpoint, tokens, prefix)
    covers = arguments.get("prefix_positions") if prefix else None
    if covers is not None:
        squares = [g for g in squares if (tokens - g[0] * g[1] == prefix) == covers]
        known = known or (squares[0] if len(squares) == 1 else None)
    grid = known or next(iter(squares), None)
    if grid is None:
        return {}
    if size is not None and known:
        _whole_patches(checkpoint, size, side)
    covered = tokens - grid[0] * grid[1] == prefix
    if covers not in (None, covered):
        raise WeightsFileError(
            "`prefix_positions` must be the same in the arrays and in what is stated "
            f"of them. Received: {str(checkpoint.file.path)!r}, which states "
            f"{covers}, where `{name}` has {tokens} positions for {prefix} tokens and "
            f"{grid[0]} x {grid[1]} patches"
        )
    found = {
        "image_size": (grid[0] * side, grid[1] * side),
        "prefix_positions": covered,
    }
    return {**found, "grid": tuple(known)} if known else found
