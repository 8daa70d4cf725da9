"""Meta's own checkpoints of DINOv2 and DINOv3, as `torch.save` wrote them.

Nothing is beside them: what no array shows is in Meta's code.

Source: facebookresearch/dinov2 and facebookresearch/dinov3,
models/vision_transformer.py, layers, hub/backbones.py.
"""

import re
from collections.abc import Iterable, Mapping
from typing import ClassVar, NoReturn

import numpy as np

from keras_vit.errors import WeightsFileError
from keras_vit.typing import JSON, Array
from keras_vit.weights.families.config_keys import Stated
from keras_vit.weights.families.family import Family
from keras_vit.weights.families.layouts import (
    CONVOLUTION,
    LINEAR,
    ArrayRow,
    affine,
    norm,
    row,
    together,
)
from keras_vit.weights.reading import ArrayFile

_QKV = ("query", "key", "value")


def _block(gate: tuple[ArrayRow, ...]) -> tuple[ArrayRow, ...]:
    theirs, ours = "blocks.{i}", "encoder_block_{i}"
    rows: list[ArrayRow] = []
    for number in ("1", "2"):
        rows += norm(f"{theirs}.norm{number}.", f"{ours}/norm{number}")
        rows.append(
            row(f"{theirs}.ls{number}.gamma", f"{ours}/layer_scale{number}/gamma")
        )
    return (
        *rows,
        *together(f"{theirs}.attn.qkv", f"{ours}/attention", _QKV),
        *affine(f"{theirs}.attn.proj.", f"{ours}/attention/out", LINEAR),
        *affine(f"{theirs}.mlp.fc1.", f"{ours}/mlp/Dense_0", LINEAR),
        *affine(f"{theirs}.mlp.fc2.", f"{ours}/mlp/Dense_1", LINEAR),
        *gate,
        *affine(f"{theirs}.mlp.w3.", f"{ours}/mlp/Dense_1", LINEAR),
    )


_HIDDEN = "encoder_block_{i}/mlp/Dense_0"
_COMMON = (
    *affine("patch_embed.proj.", "embedding", CONVOLUTION),
    row("cls_token", "class_token/token"),
    *norm("norm.", "encoder_norm"),
)
DINOV2 = (
    *_COMMON,
    row("register_tokens", "register_tokens/tokens"),
    row("pos_embed", "position_embedding/embedding"),
    *_block(affine("blocks.{i}.mlp.w12.", _HIDDEN, LINEAR)),
)
# A bias beside a mask, their `qkv.bias`; the mask takes that of the keys away.
_MASK, _MASKED = ".attn.qkv.bias_mask", ".attn.qkv.masked_bias"
DINOV3 = (
    *_COMMON,
    row("storage_tokens", "register_tokens/tokens"),
    *_block(
        (
            *affine("blocks.{i}.mlp.w1.", _HIDDEN, LINEAR, half=0),
            *affine("blocks.{i}.mlp.w2.", _HIDDEN, LINEAR, half=1),
        )
    ),
    row(
        f"blocks.{{i}}{_MASKED}",
        "encoder_block_{i}/attention/query/bias",
        "",
        "encoder_block_{i}/attention/value/bias",
    ),
)
# Of a model whose blocks are in chunks: the block has its number among all of them.
_CHUNK = re.compile(r"^blocks\.\d+\.(?=\d+\.)")
_BACKBONE = "backbone."
# Blocks of the models that Meta published, by their width.
_DEPTHS = {384: 12, 768: 12, 1024: 24, 1280: 32, 1536: 40, 4096: 40}


class _MetaFamily(Family):
    """A backbone, alone or beside the heads that it was trained with."""

    project = "meta"
    library = "Meta's code"
    always: ClassVar[Mapping[str, JSON]] = {"gelu": "exact"}

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the backbone, its blocks not in chunks -> names in the file."""
        names = list(names)
        prefix = _BACKBONE if f"{_BACKBONE}cls_token" in names else ""
        return {
            _CHUNK.sub("blocks.", name.removeprefix(prefix)): name
            for name in names
            if name.startswith(prefix)
        }

    def notes(self, file: ArrayFile) -> list[str]:
        """Where blocks may be missing, as nothing states how many there are."""
        inside = self.model_names(file.arrays)
        width = file.arrays[inside["cls_token"]].shape[-1]
        blocks = {name.split(".")[1] for name in inside if name.startswith("blocks.")}
        if _DEPTHS.get(width, len(blocks)) == len(blocks):
            return []
        return [
            f"{len(blocks)} blocks, where Meta's of width {width} have {_DEPTHS[width]}"
        ]


class MetaDINOv2(_MetaFamily):
    """DINOv2, with and without registers."""

    title = "Meta DINOv2"
    mark = "blocks.0.ls1.gamma"
    rows = DINOV2
    ignored = "mask_token"
    always: ClassVar = {**_MetaFamily.always, "norm_epsilon": 1e-6}
    holds = frozenset(
        ("layer_scale", "swiglu", "register_tokens", "prefix_positions"),
    )
    configured: ClassVar = ("heads",)

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """As the base class; none where all names are those of timm, too."""
        inside = super().model_names(names)
        own = {"mask_token", "register_tokens", "blocks.0.mlp.w12.weight"}
        return inside if "pos_embed" in inside and own & inside.keys() else {}

    def guessed(self, file: ArrayFile, shown: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Heads of 64 elements, as all of Meta's have."""
        heads, left = divmod(shown["width"], 64)
        return {} if left else {"heads": heads}

    def prefix_positions(self, prefix: int) -> tuple[int, ...]:
        """Registers come in after the positions are added."""
        return (1,)

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, JSON]:
        """Nothing but the code states it."""
        return "the code of DINOv2", {}

    def preprocessing(
        self, config: dict[str, JSON], model: dict[str, JSON]
    ) -> dict[str, JSON]:
        """The transform of its evaluation, for 224 pixels: dinov2/data/transforms.py.

        Models of 518 pixels keep the same share of an image.
        """
        return {
            "mean": (123.675, 116.28, 103.53),
            "std": (58.395, 57.12, 57.375),
            "interpolation": "bicubic",
            "antialias": True,
            "resize": "small",
            "crop_fraction": 224 / 256,
            "convention": "hugging_face",
        }


class MetaDINOv3(_MetaFamily):
    """DINOv3's ViTs, with GELUs and with SwiGLUs."""

    title = "Meta DINOv3"
    mark = "rope_embed.periods"
    rows = DINOV3
    # Norms of small crops are used in training only.
    ignored = rf"mask_token|rope_embed\.periods|local_cls_norm\..*|.*{re.escape(_MASK)}"
    always: ClassVar = {
        **_MetaFamily.always,
        "rotary": "centered",
        "rotary_pairing": "halves",
        "rotary_axes": "yx",
        "position_embedding": "none",
    }
    assumed: ClassVar = {"norm_epsilon": 1e-5}
    holds = frozenset(
        (
            *("query_bias", "key_bias", "value_bias", "layer_scale", "swiglu"),
            *("register_tokens", "prefix_positions", "position_embedding"),
            *("norm_epsilon", "rotary", "rotary_pairing", "rotary_axes"),
            "rotary_temperature",
        )
    )
    configured: ClassVar = ("norm_epsilon",)

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """As the base class; a bias beside a mask has a name of its own."""
        inside = super().model_names(names)
        for mask in [name for name in inside if name.endswith(_MASK)]:
            bias = mask.removesuffix("_mask")
            if bias in inside:
                inside[mask.replace(_MASK, _MASKED)] = inside.pop(bias)
        return inside

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the periods of the rotation say; masks and norms must be the usual.

        Raises:
            WeightsFileError: They are not.
        """
        inside = self.model_names(file.arrays)
        for bare, name in inside.items():
            if bare.startswith("cls_norm."):
                _refuse(file, name, "one norm for all tokens")
            if bare.endswith(_MASK):
                mask = np.array(file.arrays[name].read(), "float32")
                if not np.array_equal(mask, np.repeat([1, 0, 1], mask.size // 3)):
                    _refuse(file, name, "masks of the keys' biases alone")
                if bare.replace(_MASK, _MASKED) not in inside:
                    _refuse(file, name, "a bias beside each mask")
        name = inside[self.mark]
        periods = np.array(file.arrays[name].read(), "float64")
        base = _base_of(periods)
        if base is None:
            _refuse(file, name, "periods that are the powers i / n of a number")
        token = file.arrays.get(inside.get("cls_token", ""))
        width = token.shape[-1] if token is not None and token.shape else 0
        heads, left = divmod(width, 4 * periods.size)
        if left or not heads:
            _refuse(file, name, f"{periods.size} periods in each of its heads")
        source = f"`{name}`"
        return {
            "heads": Stated(heads, source),
            "rotary_temperature": Stated(base, source),
        }


def _refuse(file: ArrayFile, name: str, wanted: str) -> NoReturn:
    raise WeightsFileError(
        f"A file of Meta's DINOv3 must have {wanted}. Received: "
        f"{str(file.path)!r} with "
        f"another `{name}`"
    )


def _base_of(periods: Array) -> float | None:
    """The base, of two digits, of which the periods are the powers i / n."""
    count = periods.size
    if (
        periods.ndim != 1
        or count < 2
        or not (np.isfinite(periods) & (periods > 0)).all()
    ):
        return None
    with np.errstate(over="ignore"):
        base = float(f"{periods[-1] ** (count / (count - 1)):.1e}")
        exact = base ** (np.arange(count) / count)
    # Of a model that rotates in bfloat16 they are rounded.
    return base if np.allclose(periods, exact, rtol=2**-8, atol=0) else None
