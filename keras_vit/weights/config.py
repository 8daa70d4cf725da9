"""Model arguments of a checkpoint, from its arrays and the config.json beside them."""

import math
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from keras_vit.costs import least_parameters
from keras_vit.option_rows import rows
from keras_vit.options import ViTOptions
from keras_vit.specs import SPECS, image_size_pair, patch_side
from keras_vit.weights.checkpoint import FAMILIES, Checkpoint
from keras_vit.weights.families.layouts import HEADS_FIRST, HEADS_LAST
from keras_vit.weights.reading import StoredArray, WeightsFileError

_GELUS = {
    "gelu": "exact",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_tanh": "tanh",
}
_SILUS = ("silu", "swish")
# timm's models that use the tanh approximation of GELU.
_TIMM_TANH = re.compile(
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_"
    r"|vit_large_patch16_siglip_(gap_)?512"
)
# timm's architectures that pool the prefix tokens too, which only their names say.
_TIMM_POOLS_PREFIX = re.compile(r"test_vit3")
# The values of `model_type` in transformers that denote a ViT. Other models, such as
# AST with its overlapping patches, have arrays of the same names.
_MODEL_TYPES = {
    "hugging_face": ("vit", "deit", "vit_msn"),
    "hugging_face_dinov2": ("dinov2", "dinov2_with_registers"),
}
# Hyperparameters that a family states in its config alone.
_CONFIGURED = {
    "timm": ("gelu", "heads", "pooling"),
    "hugging_face": ("gelu", "heads", "norm_epsilon"),
    "hugging_face_dinov2": ("gelu", "heads", "norm_epsilon"),
    "keras_hub": ("norm_epsilon", "pooling"),
}


def assumed_settings(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Arguments that are assumed, because no config gives them."""
    if checkpoint.family not in _CONFIGURED or checkpoint.file.config:
        return ()
    return _CONFIGURED[checkpoint.family]


def config_settings(checkpoint: Checkpoint, swiglu: bool) -> dict[str, Any]:
    """GELU variant and LayerNorm epsilon, which the arrays do not determine.

    Args:
        checkpoint: An open checkpoint.
        swiglu: Whether its MLPs are SwiGLUs, which have no GELU.
    """
    family, config = FAMILIES[checkpoint.family], checkpoint.file.config
    name, epsilon = None, family.norm_epsilon
    if checkpoint.family in _MODEL_TYPES:
        kinds = _MODEL_TYPES[checkpoint.family]
        kind = config.get("model_type", kinds[0])
        if kind not in kinds:
            rule = f"`model_type` must be one of {', '.join(kinds)}"
            _refuse(checkpoint, rule, kind)
        # Its SwiGLU does not read `hidden_act`.
        name = None if swiglu else config.get("hidden_act")
        epsilon = config.get("layer_norm_eps", epsilon)
    elif checkpoint.family == "keras_hub":
        epsilon = config.get("config", {}).get("layer_norm_epsilon", epsilon)
    elif checkpoint.family == "timm":
        architecture = config.get("architecture", "")
        if "_rpn_" in architecture:  # its arrays are those of pre-norm blocks
            rule = "LayerNorms must precede attention and MLP, not follow them"
            _refuse(checkpoint, rule, architecture)
        name = "gelu_tanh" if _TIMM_TANH.match(architecture) else None
        name = "quick_gelu" if "quickgelu" in architecture else name
        name = config.get("model_args", {}).get("act_layer", name)
    known = _SILUS if swiglu else tuple(_GELUS)
    if name is not None and name not in known:
        _refuse(checkpoint, f"The activation must be one of {', '.join(known)}", name)
    pooler = config.get("pooler_act", "tanh")
    if checkpoint.family == "hugging_face" and pooler != "tanh":
        _refuse(checkpoint, "The activation of the pooler must be 'tanh'", pooler)
    if wanted := rows(ViTOptions)["norm_epsilon"].problem(epsilon):
        _refuse(checkpoint, f"The epsilon of the LayerNorms must be {wanted}", epsilon)
    gelu = _GELUS.get(name, family.gelu) if name else family.gelu
    return {"gelu": gelu, "norm_epsilon": epsilon}


def config_class_names(checkpoint: Checkpoint, classes: int | None) -> dict[str, Any]:
    """Class names, if the config has one for each class."""
    config, names = checkpoint.file.config, None
    if checkpoint.family.startswith("hugging_face"):
        labels = config.get("id2label", {})
        names = [labels.get(str(index)) for index in range(classes or 0)]
    elif checkpoint.family in ("timm", "timm_bit"):
        names = config.get("pretrained_cfg", {}).get("label_names")
    if not names or len(names) != classes or None in names:
        return {}
    own = any(name != f"LABEL_{index}" for index, name in enumerate(names))
    return {"class_names": names} if own else {}


def config_pooling(checkpoint: Checkpoint) -> tuple[str | None, bool]:
    """Pooling by the config's name, and whether it covers all tokens or the patches."""
    if checkpoint.family.startswith("timm"):
        config = checkpoint.file.config
        options = config.get("model_args", {})
        name = options.get("global_pool", config.get("global_pool"))
        implied = _TIMM_POOLS_PREFIX.match(config.get("architecture", ""))
        return name, options.get("pool_include_prefix", bool(implied))
    if checkpoint.family == "keras_hub":
        task = checkpoint.file.beside("task.json").get("config", {})
        return task.get("pooling"), True
    return None, True


def config_heads(checkpoint: Checkpoint) -> int | None:
    """Number of attention heads, if a config gives it."""
    config = checkpoint.file.config
    return config.get("num_attention_heads") or config.get("model_args", {}).get(
        "num_heads"
    )


def check_patch(checkpoint: Checkpoint, name: str, sides: tuple[int, int]) -> None:
    """Raise WeightsFileError unless patches are square and those of the config.

    Args:
        checkpoint: An open checkpoint.
        name: Name of the kernel that reads a patch.
        sides: (height, width) of that kernel.
    """
    config = checkpoint.file.config
    places: dict[str, Any] = {
        "hugging_face": config,
        "hugging_face_dinov2": config,
        "timm": config.get("model_args", {}),
        "keras_hub": config.get("config", {}),
    }
    size = places.get(checkpoint.family, {}).get("patch_size", sides)
    size = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    if sides[0] != sides[1]:
        raise WeightsFileError(
            f"Patches must be square. Received: `{name}` with patches of {sides} pixels"
            f" in {str(checkpoint.file.path)!r}"
        )
    if size != sides:
        rule = f"`patch_size` must be {sides[0]}, the side of `{name}`"
        _refuse(checkpoint, rule, size)


def config_image_size(checkpoint: Checkpoint) -> tuple[int, int] | None:
    """(H, W), if a config gives it."""
    config = checkpoint.file.config
    size: Any = None
    if checkpoint.family.startswith("hugging_face"):
        size = config.get("image_size")
    elif checkpoint.family == "keras_hub":
        size = config.get("config", {}).get("image_shape")
    elif checkpoint.family == "timm":
        size = config.get("model_args", {}).get("img_size")
        size = size or config.get("pretrained_cfg", {}).get("input_size", [None])[1:]
    if not size:
        return None
    try:
        return image_size_pair(size if isinstance(size, int) else (size[0], size[1]))
    except ValueError as error:
        raise TypeError(error) from error


def _refuse(checkpoint: Checkpoint, rule: str, received: Any) -> NoReturn:
    raise WeightsFileError(
        f"{rule}. Received: {received!r} in the config of {str(checkpoint.file.path)!r}"
    )


# Key under which `save_checkpoint` writes the grid: in the metadata of .safetensors, in
# the comment of a ZIP archive.
GRID_METADATA = "keras_vit.grid"


def grid_fits(
    checkpoint: Checkpoint, tokens: int, prefix: int, grid: tuple[int, int]
) -> bool:
    """Whether a grid leaves the family's number of positions for prefix tokens."""
    return tokens - grid[0] * grid[1] in _covered(checkpoint, prefix)


def grid_of_metadata(
    checkpoint: Checkpoint, tokens: int, prefix: int, side: int
) -> tuple[int, int] | None:
    """Grid from the file's metadata or the config beside it, if it fits.

    Args:
        checkpoint: An open checkpoint.
        tokens: Number of its positions.
        prefix: Number of its class and register tokens.
        side: Side of a patch in pixels.
    """
    grids = [_from_metadata(checkpoint.file.metadata.get(GRID_METADATA))]
    if size := config_image_size(checkpoint):
        grids.append((size[0] // side, size[1] // side))
    for grid in grids:
        if grid is not None and grid_fits(checkpoint, tokens, prefix, grid):
            return grid
    return None


def square_grids(
    checkpoint: Checkpoint, tokens: int, prefix: int
) -> list[tuple[int, int]]:
    """Square grids that fit, the family's usual one first."""
    squares = []
    for covered in _covered(checkpoint, prefix):
        side = math.isqrt(max(tokens - covered, 0))
        if side and side * side == tokens - covered:
            squares.append((side, side))
    return squares


def grid_metadata(grid: tuple[int, int]) -> dict[str, str]:
    """Metadata of a file that give its grid."""
    return {GRID_METADATA: f"{grid[0]}x{grid[1]}"}


def _from_metadata(text: str | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", str(text), re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def _covered(checkpoint: Checkpoint, prefix: int) -> tuple[int, ...]:
    """Possible numbers of prefix tokens with positions, the usual one first."""
    usual = {
        "big_vision": (0, prefix),
        "timm": (prefix, 0),
        # Registers come in after the positions are added.
        "hugging_face_dinov2": (1,),
    }
    return usual.get(checkpoint.family, (prefix,)) if prefix else (0,)


# Pooling by its name in timm and keras-hub.
_POOLINGS = {"token": "token", "avg": "avg", "gap": "avg", "map": "map", "": None}


def model_arguments(
    checkpoint: Checkpoint, grid: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Model arguments of a checkpoint.

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
            config names something unsupported.
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
    if layers > entries or least_parameters(arguments) > 4 * held + 2**22:
        raise WeightsFileError(
            "A file must hold the weights of the model that it describes. Received: "
            f"{str(path)!r} with {held:,} numbers in {entries:,} weights, for a model "
            f"with {', '.join(f'{k}={arguments[k]}' for k in _SIZES if k in arguments)}"
        )


_SIZES = (
    *("width", "depth", "mlp_dim", "classes", "patch_size", "image_size"),
    *("resnet_blocks", "blocks", "width_factor"),
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
    if FAMILIES[checkpoint.family].model == "resnet":
        return _resnet(checkpoint)
    shapes = _Shapes(checkpoint)
    shapes["encoder_block_0/norm1/gamma"]  # must be there
    kernel = shapes["embedding/kernel"]
    name = checkpoint.entries["embedding/kernel"].name
    check_patch(checkpoint, name, (kernel[0], kernel[1]))
    arguments: dict[str, Any] = {
        "patch_size": kernel[0],
        "width": kernel[-1],
        "depth": _count(shapes, r"encoder_block_(\d+)/norm1/gamma") + 1,
        **_mlp(shapes),
        "channels": shapes[_first_kernel(shapes)][2],
        "classes": shapes["head/kernel"][-1] if "head/kernel" in shapes else None,
        "representation_size": shapes.get("pre_logits/bias", (None,))[0],
        "register_tokens": shapes.get("register_tokens/tokens", (1, 0))[1],
        "layer_scale": 1e-5 if "encoder_block_0/layer_scale1/gamma" in shapes else None,
        "position_embedding": _positions(checkpoint, shapes),
        **_shown(checkpoint, shapes),
        **_stem(shapes),
    }
    arguments.update(config_settings(checkpoint, arguments["swiglu"]))
    arguments["pooling"] = _pooling(checkpoint, shapes, arguments)
    arguments.update(config_class_names(checkpoint, arguments["classes"]))
    heads = _heads(checkpoint, shapes, arguments)
    if heads is not None:
        arguments["heads"] = heads
    arguments.update(_grid(checkpoint, shapes, arguments, grid))
    return arguments


def _shown(checkpoint: Checkpoint, shapes) -> dict[str, bool]:
    """Options that the presence of a weight shows, as the config must state them."""
    stated = checkpoint.file.config
    if checkpoint.family == "timm":
        stated = stated.get("model_args", {})
    found = {}
    for name, row in rows(ViTOptions).items():
        if row.shown_by is None:
            continue
        found[name] = row.shown_by in shapes
        value = stated.get(name)
        if isinstance(value, bool) and value != found[name]:
            rule = f"`{name}` must be {found[name]}, as the arrays show"
            _refuse(checkpoint, rule, value)
    return found


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


class _Shapes(dict):
    """Shapes of a checkpoint by our paths; a missing one is an error."""

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
    """Largest number in the pattern's group over all paths; -1 for none."""
    matches = (re.fullmatch(pattern, path) for path in shapes)
    largest = max((int(match[1]) for match in matches if match), default=-1)
    if largest > len(shapes):
        raise WeightsFileError(
            "A checkpoint must have the weights of all blocks. Received: "
            f"{str(shapes.path)!r} with number {largest} and {len(shapes)} weights"
        )
    return largest


def _mlp(shapes) -> dict[str, Any]:
    """Hidden width, and whether the first layer returns a SwiGLU's gate as well."""
    first = shapes["encoder_block_0/mlp/Dense_0/kernel"][-1]
    hidden = shapes.get("encoder_block_0/mlp/Dense_1/kernel", (first,))[0]
    swiglu = first == 2 * hidden
    return {"mlp_dim": hidden if swiglu else first, "swiglu": swiglu}


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
    # Without learned ones, big_vision has sine embeddings and the others none.
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
    pooling, _ = config_pooling(checkpoint)
    classes = shapes["head/kernel"][-1] if "head/kernel" in shapes else None
    return {
        **config_class_names(checkpoint, classes),
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
    pooling, whole = config_pooling(checkpoint)
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
    """Number of attention heads, which PyTorch's arrays do not show."""
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
    if heads := config_heads(checkpoint):
        return heads
    size = tuple(arguments[key] for key in ("width", "depth", "mlp_dim"))
    known = {(s.width, s.depth, s.mlp_dim): s.heads for s in SPECS.values()}
    return known.get(size)


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


def _grid(checkpoint: Checkpoint, shapes, arguments, asked) -> dict[str, Any]:
    """Image size in pixels, grid, and whether positions cover the prefix tokens."""
    side = patch_side(arguments["patch_size"], arguments.get("resnet_blocks"))
    if "position_embedding/embedding" not in shapes:
        size = config_image_size(checkpoint)
        return {"image_size": size} if size else {}
    tokens = shapes["position_embedding/embedding"][1]
    prefix = arguments["class_token"] + arguments["register_tokens"]
    known = asked or grid_of_metadata(checkpoint, tokens, prefix, side)
    squares = square_grids(checkpoint, tokens, prefix)
    grid = known or next(iter(squares), None)
    if grid is None:
        return {}
    found = {
        "image_size": (grid[0] * side, grid[1] * side),
        "prefix_positions": tokens - grid[0] * grid[1] == prefix,
    }
    return {**found, "grid": tuple(known)} if known else found
