"""Options that the arrays of a checkpoint show."""

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from keras_vit.errors import WeightsFileError
from keras_vit.option_rows import rows
from keras_vit.options import ViTOptions
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.families.layouts import HEADS_FIRST, HEADS_LAST

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
    "projection/kernel": 2,
}


class Shapes(dict[str, tuple[int, ...]]):
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


def _count(shapes: Shapes, pattern: str) -> int:
    """Largest number in the pattern's group over all paths; -1 for none."""
    matches = (re.fullmatch(pattern, path) for path in shapes)
    largest = max((int(match[1]) for match in matches if match), default=-1)
    if largest > len(shapes):
        raise WeightsFileError(
            "A checkpoint must have the weights of all blocks. Received: "
            f"{str(shapes.path)!r} with number {largest} and {len(shapes)} weights"
        )
    return largest


def _largest(shapes: Shapes, path: str) -> int:
    """Largest number in the place of `{n}` over all paths; the first may be absent."""
    return max(_count(shapes, re.escape(path).replace(r"\{n\}", r"(\d+)")), 0)


def _mlp(shapes: Shapes) -> dict[str, Any]:
    """Hidden width, and whether the first layer returns a SwiGLU's gate as well."""
    first = shapes["encoder_block_0/mlp/Dense_0/kernel"][-1]
    hidden = shapes.get("encoder_block_0/mlp/Dense_1/kernel", (first,))[0]
    swiglu = first == 2 * hidden
    return {"mlp_dim": hidden if swiglu else first, "swiglu": swiglu}


def _first_kernel(shapes: Shapes) -> str:
    return "stem_conv/kernel" if "stem_conv/kernel" in shapes else "embedding/kernel"


def resnet_blocks(shapes: Shapes) -> tuple[int, ...]:
    """Units of each stage of a ResNet."""
    stages = _count(shapes, r"stage(\d+)_unit1/conv1/kernel")
    return tuple(
        _count(shapes, rf"stage{stage}_unit(\d+)/conv1/kernel")
        for stage in range(1, stages + 1)
    )


def _stem(shapes: Shapes) -> dict[str, Any]:
    if "stem_conv/kernel" not in shapes:
        return {}
    return {
        "resnet_blocks": resnet_blocks(shapes),
        "resnet_width_factor": shapes["stem_conv/kernel"][-1] // 64,
    }


def shown_options(checkpoint: Checkpoint, shapes: Shapes) -> dict[str, Any]:
    """Options that the arrays show; `layer_scale` is not None where there is any."""
    shapes["encoder_block_0/norm1/gamma"]  # must be there
    kernel = shapes["embedding/kernel"]
    _check_square(checkpoint, (kernel[0], kernel[1]))
    table = "encoder_block_0/attention/relative_bias"
    shown: dict[str, Any] = {
        "patch_size": kernel[0],
        "width": kernel[-1],
        **_mlp(shapes),
        "norm": "layer" if "encoder_block_0/norm1/beta" in shapes else "rms",
        "channels": shapes[_first_kernel(shapes)][2],
        "classes": shapes["head/kernel"][-1] if "head/kernel" in shapes else None,
        "representation_size": shapes.get("pre_logits/bias", (None,))[0],
        "projection": shapes.get("projection/kernel", (None,))[-1],
        "register_tokens": shapes.get("register_tokens/tokens", (1, 0))[1],
        "layer_scale": 1e-5 if "encoder_block_0/layer_scale1/gamma" in shapes else None,
        "final_norm": not {"encoder_norm/gamma", "fc_norm/gamma"}.isdisjoint(shapes),
        "relative_bias": (
            "every_layer"
            if table in shapes
            else "shared"
            if "relative_bias/table" in shapes
            else None
        ),
        **{
            name: (row.shown_by.path in shapes) == row.shown_by.value
            for name, row in rows(ViTOptions).items()
            if row.shown_by is not None
        },
        **{
            name: _largest(shapes, row.counted_by.path) + 1
            for name, row in rows(ViTOptions).items()
            if row.counted_by is not None
        },
        **_stem(shapes),
    }
    if "position_embedding/embedding" in shapes:
        shown["position_embedding"] = "learned_1d"
    if "rotary/frequencies" in shapes:
        shown["rotary"] = "mixed"
    if (heads := _shown_heads(checkpoint, shapes, shown)) is not None:
        shown["heads"] = heads
    return shown


def _check_square(checkpoint: Checkpoint, sides: tuple[int, int]) -> None:
    """Raise WeightsFileError for patches that are not square."""
    if sides[0] != sides[1]:
        name = checkpoint.entries["embedding/kernel"].name
        raise WeightsFileError(
            f"Patches must be square. Received: `{name}` with patches of {sides} pixels"
            f" in {str(checkpoint.file.path)!r}"
        )


def _shown_heads(
    checkpoint: Checkpoint, shapes: Shapes, shown: Mapping[str, Any]
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
