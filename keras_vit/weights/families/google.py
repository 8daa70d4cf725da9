"""Google's checkpoints: the paper, AugReg, SAM, hybrids, big_vision, BiT ResNets.

Source: google-research/vision_transformer, google-research/big_vision and
google-research/big_transfer. Their arrays have Keras's layout; attention keeps its
heads apart. The two ViT families differ in how the modules of a block are counted.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from keras_vit.weights.families.family import Family, WritableFamily
from keras_vit.weights.families.layouts import (
    CHANNELS,
    CONVOLUTION_1X1,
    HEADS_FIRST,
    HEADS_LAST,
    SAME,
    ArrayRow,
    affine,
    norm,
    row,
)
from keras_vit.weights.reading import ArrayFile

if TYPE_CHECKING:
    from keras_vit.base import ImageModel
    from keras_vit.preprocessing import ImagePreprocessing

_NORM = ("scale", "bias")
_DENSE = ("kernel", "bias")


def _attention(theirs: str, ours: str) -> tuple[ArrayRow, ...]:
    rows: list[ArrayRow] = []
    for name in ("query", "key", "value"):
        rows += [
            row(f"{theirs}/{name}/kernel", f"{ours}/{name}/kernel", layout=HEADS_LAST),
            row(f"{theirs}/{name}/bias", f"{ours}/{name}/bias", layout=HEADS_LAST),
        ]
    return (*rows, *affine(f"{theirs}/out/", f"{ours}/out", HEADS_FIRST, _DENSE))


def _mlp(theirs: str, ours: str) -> tuple[ArrayRow, ...]:
    return (
        *affine(f"{theirs}/Dense_0/", f"{ours}/Dense_0", SAME, _DENSE),
        *affine(f"{theirs}/Dense_1/", f"{ours}/Dense_1", SAME, _DENSE),
    )


def _transformer(attention: str, norm2: str, mlp: str) -> tuple[ArrayRow, ...]:
    theirs, ours = "Transformer/encoderblock_{i}", "encoder_block_{i}"
    return (
        *affine("embedding/", "embedding", SAME, _DENSE),
        row("cls", "class_token/token"),
        *norm(f"{theirs}/LayerNorm_0/", f"{ours}/norm1", _NORM),
        *_attention(f"{theirs}/{attention}", f"{ours}/attention"),
        *norm(f"{theirs}/{norm2}/", f"{ours}/norm2", _NORM),
        *_mlp(f"{theirs}/{mlp}", f"{ours}/mlp"),
        *norm("Transformer/encoder_norm/", "encoder_norm", _NORM),
        *affine("pre_logits/", "pre_logits", SAME, _DENSE),
        *affine("head/", "head", SAME, _DENSE),
    )


def _hybrid_stem() -> tuple[ArrayRow, ...]:
    theirs, ours = "block{s}/unit{u}", "stage{s}_unit{u}"
    rows = [
        row("conv_root/kernel", "stem_conv/kernel"),
        *norm("gn_root/", "stem_norm", _NORM, CHANNELS),
    ]
    for part in ("1", "2", "3", "_proj"):
        rows += [
            row(f"{theirs}/conv{part}/kernel", f"{ours}/conv{part}/kernel"),
            *norm(f"{theirs}/gn{part}/", f"{ours}/norm{part}", _NORM, CHANNELS),
        ]
    return tuple(rows)


# The modules of a block in the order of their calls, before Flax's Linen.
GOOGLE = (
    *_transformer("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
    row("Transformer/posembed_input/pos_embedding", "position_embedding/embedding"),
    *_hybrid_stem(),
)

# The modules of a block counted by kind.
BIG_VISION = (
    *_transformer("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
    row("pos_embedding", "position_embedding/embedding"),
    # Before 2022, with a position for the class token.
    row("Transformer/pos_embedding", "position_embedding/embedding"),
    row("Transformer/posembed_input/pos_embedding", "position_embedding/embedding"),
    row("MAPHead_0/probe", "attention_pooling/probe"),
    *_attention(
        "MAPHead_0/MultiHeadDotProductAttention_0", "attention_pooling/attention"
    ),
    *norm("MAPHead_0/LayerNorm_0/", "attention_pooling/norm", _NORM),
    *_mlp("MAPHead_0/MlpBlock_0", "attention_pooling/mlp"),
)


def _bit() -> tuple[ArrayRow, ...]:
    theirs, ours = "resnet/block{s}/unit{u02}", "stage{s}_unit{u}"
    convolution, group = "standardized_conv2d/kernel", ("gamma", "beta")
    rows = [
        row(f"resnet/root_block/{convolution}", "stem_conv/kernel"),
        *norm("resnet/group_norm/", "final_norm", group),
        row("resnet/head/conv2d/kernel", "head/kernel", layout=CONVOLUTION_1X1),
        row("resnet/head/conv2d/bias", "head/bias"),
        row(f"{theirs}/a/proj/{convolution}", f"{ours}/conv_proj/kernel"),
    ]
    for part, number in (("a", 1), ("b", 2), ("c", 3)):
        rows += [
            row(f"{theirs}/{part}/{convolution}", f"{ours}/conv{number}/kernel"),
            *norm(f"{theirs}/{part}/group_norm/", f"{ours}/norm{number}", group),
        ]
    return tuple(rows)


BIT = _bit()

# Where the model lies in a training checkpoint or in a model of two towers.
PREFIXES = ("opt/target/", "params/img/", "params/")
_INLINED_HEAD = re.compile(
    r"^(probe|MlpBlock_0|MultiHeadDotProductAttention_0|LayerNorm_0)(/|$)"
)
_FIRST_BLOCK = "Transformer/encoderblock_0"
# Part of a name: of a block, and where a scan over the blocks has stacked their arrays.
ONE_BLOCK, ALL_BLOCKS = "/encoderblock_{}/", "/encoderblock/"


class _GoogleFamily(Family):
    """Arrays in one file, without documents; pixels are mapped to [-1, 1]."""

    project = "google"
    library = "Google"
    names_classes = False
    always: ClassVar = {"gelu": "tanh", "norm_epsilon": 1e-6}

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the model -> names in the file.

        What lies outside of the prefix (an optimizer's state, a text tower) is left
        out. An attention pooling head that was not a module of its own becomes one.
        """
        names = list(names)
        prefix = next((p for p in PREFIXES if f"{p}embedding/kernel" in names), "")
        inside = {n.removeprefix(prefix): n for n in names if n.startswith(prefix)}
        return {_INLINED_HEAD.sub(r"MAPHead_0/\1\2", n): v for n, v in inside.items()}

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, Any]:
        """Nothing but the code states it."""
        return "the official code", {}

    def preprocessing(
        self, config: dict[str, Any], model: dict[str, Any]
    ) -> dict[str, Any]:
        """The layer's own defaults."""
        return {}

    def lost_preprocessing(self, layer: "ImagePreprocessing") -> list[str]:
        """Whatever differs from the code's."""
        usual = type(layer)(layer.image_size)
        names = ("mean", "std", "interpolation", "antialias", "crop_fraction", "resize")
        return [
            f"{name}={value!r}"
            for name in names
            if (value := getattr(layer, name)) != getattr(usual, name)
        ]


class Google(_GoogleFamily, WritableFamily):
    """The paper's ViTs and hybrids, AugReg's and SAM's."""

    title = "Google ViT (.npz of the paper, AugReg, SAM)"
    mark = f"{_FIRST_BLOCK}/MultiHeadDotProductAttention_1/query/kernel"
    suffix = ".npz"
    rows = GOOGLE
    holds = frozenset(
        ("class_token", "prefix_positions", "resnet_blocks", "resnet_width_factor")
    )

    def refusals(self, model: "ImageModel") -> list[str]:
        """The code has a class token exactly where it reads it."""
        found = []
        if model.pooling == "map":
            found.append("pooling must not be 'map'")
        if model.class_token != (model.pooling != "avg"):
            found.append("there must be a class token, but not where pooling='avg'")
        return found


class BigVision(_GoogleFamily):
    """big_vision's ViTs: from plain ones to SigLIP."""

    project = "big_vision"
    library = "big_vision"
    title = "big_vision"
    mark = f"{_FIRST_BLOCK}/MultiHeadDotProductAttention_0/query/kernel"
    rows = BIG_VISION
    # Its models without learned positions have sines.
    assumed: ClassVar = {"position_embedding": "sincos2d"}
    holds = frozenset(("class_token", "position_embedding", "prefix_positions"))

    def prefix_positions(self, prefix: int) -> tuple[int, ...]:
        """The class token has none since 2022."""
        return (0, prefix)


class BigTransfer(_GoogleFamily, WritableFamily):
    """Big Transfer's ResNets."""

    title = "BiT ResNet (.npz of Big Transfer)"
    mark = "resnet/root_block/standardized_conv2d/kernel"
    suffix = ".npz"
    rows = BIT
    model = "resnet"
    holds = frozenset(("blocks", "width_factor"))
