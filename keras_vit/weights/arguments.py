"""What a checkpoint says about its model, as arguments of our constructors."""

import re
from collections.abc import Callable
from typing import Any

from keras_vit.specs import SPECS, patch_side
from keras_vit.weights import grids, stated
from keras_vit.weights.checkpoint import FAMILIES, Checkpoint
from keras_vit.weights.files import WeightsFileError
from keras_vit.weights.tables import HEADS_FIRST, HEADS_LAST

# How timm and keras-hub name what becomes of the tokens.
_POOLINGS = {"token": "token", "avg": "avg", "gap": "avg", "map": "map", "": None}


def model_arguments(
    checkpoint: Checkpoint, grid: tuple[int, int] | None = None
) -> dict[str, Any]:
    """The arguments that build the model of a checkpoint.

    Args:
        checkpoint: An open checkpoint.
        grid: (h, w) of its positions, where the caller states it.

    Returns:
        Arguments of `VisionTransformer`, or of `ResNet` for BiT. `heads` and
        `image_size` are absent where neither arrays nor config tell them. A pooling
        that we do not compute is `pooling` in words, which no model takes. `grid` is
        that of the positions where it is stated; without it, `image_size` is that of a
        square grid.

    Raises:
        WeightsFileError: An array that every model has is missing or malformed, or the
            config names something that we do not compute.
    """
    try:
        return _arguments(checkpoint, grid)
    except (AttributeError, LookupError, TypeError) as error:
        raise WeightsFileError(
            f"The .json files beside the weights must be of a {checkpoint.family} "
            f"model. Received: those beside {str(checkpoint.file.path)!r}, which make "
            f"no sense ({type(error).__name__}: {error})"
        ) from error


def differences(
    file: dict[str, Any], names: tuple[str, ...], wanted: Callable[[str], Any]
) -> list[str]:
    """Which of these arguments of a file are not the wanted ones, in words."""
    return [
        f"{name}={file[name]} instead of {wanted(name)}"
        for name in names
        if name in file and file[name] != wanted(name)
    ]


def _arguments(checkpoint: Checkpoint, grid: tuple[int, int] | None) -> dict[str, Any]:
    if FAMILIES[checkpoint.family].model == "resnet":
        return _resnet(checkpoint)
    shapes = _Shapes(checkpoint)
    shapes["encoder_block_0/norm1/gamma"]  # must be there
    kernel = shapes["embedding/kernel"]
    name = checkpoint.entries["embedding/kernel"].name
    stated.check_patch(checkpoint, name, (kernel[0], kernel[1]))
    arguments: dict[str, Any] = {
        "patch_size": kernel[0],
        "width": kernel[-1],
        "depth": _count(shapes, r"encoder_block_(\d+)/norm1/gamma") + 1,
        "mlp_dim": shapes["encoder_block_0/mlp/Dense_0/kernel"][-1],
        "channels": shapes[_first_kernel(shapes)][2],
        "classes": shapes["head/kernel"][-1] if "head/kernel" in shapes else None,
        "representation_size": shapes.get("pre_logits/bias", (None,))[0],
        "class_token": "class_token/token" in shapes,
        "register_tokens": shapes.get("register_tokens/tokens", (1, 0))[1],
        "layer_scale": 1e-5 if "encoder_block_0/layer_scale1/gamma" in shapes else None,
        "qk_norm": "encoder_block_0/attention/query_norm/gamma" in shapes,
        "fc_norm": "fc_norm/gamma" in shapes,
        "position_embedding": _positions(checkpoint, shapes),
        **_stem(shapes),
        **stated.settings(checkpoint),
    }
    arguments["pooling"] = _pooling(checkpoint, shapes, arguments)
    arguments.update(stated.class_names(checkpoint, arguments["classes"]))
    heads = _heads(checkpoint, shapes, arguments)
    if heads is not None:
        arguments["heads"] = heads
    arguments.update(_grid(checkpoint, shapes, arguments, grid))
    return arguments


# Of the weights whose shapes tell a model's sizes.
_AXES = {
    "stem_conv/kernel": 4,
    "embedding/kernel": 4,
    "class_token/token": 3,
    "register_tokens/tokens": 3,
    "position_embedding/embedding": 3,
    "encoder_block_0/attention/query/kernel": 2,
    "encoder_block_0/attention/query_norm/gamma": 1,
    "encoder_block_0/mlp/Dense_0/kernel": 2,
    "pre_logits/bias": 1,
    "head/kernel": 2,
}


class _Shapes(dict):
    """The shapes of a checkpoint by our paths; a missing one is an error."""

    def __init__(self, checkpoint: Checkpoint):
        super().__init__((path, e.shape()) for path, e in checkpoint.entries.items())
        self.path = checkpoint.file.path
        for path, axes in _AXES.items():
            shape = self.get(path)
            if shape is not None and (len(shape) != axes or not all(shape)):
                raise WeightsFileError(
                    f"`{checkpoint.entries[path].name}` must have {axes} axes, none "
                    f"empty. Received: shape={shape} in {str(self.path)!r}"
                )

    def __missing__(self, path):
        raise WeightsFileError(
            f"A checkpoint must have the weights of `{path}`. "
            f"Received: {str(self.path)!r}, which has none"
        )


def _count(shapes, pattern: str) -> int:
    """The largest number that a path has in the pattern's group; -1 for none."""
    matches = (re.fullmatch(pattern, path) for path in shapes)
    return max((int(match[1]) for match in matches if match), default=-1)


def _first_kernel(shapes) -> str:
    return "stem_conv/kernel" if "stem_conv/kernel" in shapes else "embedding/kernel"


def _blocks(shapes) -> tuple[int, ...]:
    """Units of each stage of a ResNet."""
    stages = _count(shapes, r"stage(\d+)_unit1/conv1/kernel")
    return tuple(
        _count(shapes, rf"stage{stage}_unit(\d+)/conv1/kernel")
        for stage in range(1, stages + 1)
    )


def _positions(checkpoint: Checkpoint, shapes) -> str:
    if "position_embedding/embedding" in shapes:
        return "learned_1d"
    # big_vision has waves where nothing is learned, the others nothing.
    return "sincos2d" if checkpoint.family == "big_vision" else "none"


def _stem(shapes) -> dict[str, Any]:
    if "stem_conv/kernel" not in shapes:
        return {}
    return {
        "resnet_blocks": _blocks(shapes),
        "resnet_width_factor": shapes["stem_conv/kernel"][-1] // 64,
    }


def _resnet(checkpoint: Checkpoint) -> dict[str, Any]:
    shapes = _Shapes(checkpoint)
    pooling, _ = stated.pooling(checkpoint)
    classes = shapes["head/kernel"][-1] if "head/kernel" in shapes else None
    return {
        **stated.class_names(checkpoint, classes),
        "blocks": _blocks(shapes),
        "width_factor": shapes["stem_conv/kernel"][-1] // 64,
        "channels": shapes["stem_conv/kernel"][2],
        "classes": classes,
        "pooling": "avg" if pooling is None else _POOLINGS.get(pooling, repr(pooling)),
    }


def _pooling(checkpoint: Checkpoint, shapes, arguments) -> str | None:
    """Our `pooling`, or in words what we do not compute."""
    if "attention_pooling/probe" in shapes:
        usual = "map"
    elif arguments["fc_norm"] or not arguments["class_token"]:
        usual = "avg"
    else:
        usual = "token"
    pooling, whole = stated.pooling(checkpoint)
    known = pooling is None or pooling in _POOLINGS
    prefix = arguments["class_token"] + arguments["register_tokens"]
    pooled = prefix if whole else 0  # of the tokens before the patches
    ours = {
        "token": arguments["class_token"],
        "avg": pooled == 0,
        "map": pooled == arguments["class_token"],
        None: arguments["classes"] is None,
    }
    ours_here = usual if pooling is None else _POOLINGS.get(pooling)
    if known and ours[ours_here]:
        return ours_here
    return f"{pooling or usual!r} of {'all tokens' if whole else 'the patches'}"


def _heads(checkpoint: Checkpoint, shapes, arguments) -> int | None:
    """The number of attention heads, which PyTorch's arrays do not show."""
    shapes["encoder_block_0/attention/query/kernel"]  # must be there
    raw = checkpoint.entries["encoder_block_0/attention/query/kernel"].raw_shape
    if len(raw) == 3:  # [D, A, K]
        _check_heads(checkpoint, raw[1:])
        return raw[1]
    if arguments["qk_norm"]:
        return (
            arguments["width"]
            // shapes["encoder_block_0/attention/query_norm/gamma"][0]
        )
    if told := stated.heads(checkpoint):
        return told
    size = tuple(arguments[key] for key in ("width", "depth", "mlp_dim"))
    known = {(s.width, s.depth, s.mlp_dim): s.heads for s in SPECS.values()}
    return known.get(size)


def _check_heads(checkpoint: Checkpoint, heads: tuple[int, ...]) -> None:
    """Where arrays keep heads apart, all must have as many, of the same size."""
    places = {HEADS_LAST: slice(-2, None), HEADS_FIRST: slice(0, 2)}
    for entry in checkpoint.entries.values():
        place = places.get(entry.layout)
        if place is not None and entry.raw_shape[place] != heads:
            raise WeightsFileError(
                f"`{entry.name}` must have heads, and elements of each, as the query's "
                f"kernel: {heads}. Received: shape={entry.raw_shape} in "
                f"{str(checkpoint.file.path)!r}"
            )


def _grid(checkpoint: Checkpoint, shapes, arguments, asked) -> dict[str, Any]:
    """Image size in pixels, grid, and whether positions cover the prefix tokens."""
    side = patch_side(arguments["patch_size"], arguments.get("resnet_blocks"))
    if "position_embedding/embedding" not in shapes:
        size = stated.image_size(checkpoint)
        return {"image_size": size} if size else {}
    tokens = shapes["position_embedding/embedding"][1]
    prefix = arguments["class_token"] + arguments["register_tokens"]
    known = asked or grids.stated_grid(checkpoint, tokens, prefix, side)
    squares = grids.square_grids(checkpoint, tokens, prefix)
    grid = known or next(iter(squares), None)
    if grid is None:
        return {}
    found = {
        "image_size": (grid[0] * side, grid[1] * side),
        "prefix_positions": tokens - grid[0] * grid[1] == prefix,
    }
    return {**found, "grid": tuple(known)} if known else found
