"""timm's checkpoints: ViT, DeiT, DINOv2, hybrids, BiT, as its state dicts name them.

Source: huggingface/pytorch-image-models, models/vision_transformer.py, deit.py,
vision_transformer_hybrid.py, resnetv2.py. Query, key and value are one matrix.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from keras_vit.weights.families.family import (
    QKV_BIASES,
    WritableFamily,
    gelu_of,
    known,
    lost_to_pillow,
    other_than_qkv_bias,
    pixels_of,
    qkv_biases,
    refuse_config,
    renamed,
    scaled,
)
from keras_vit.weights.families.layouts import (
    CONVOLUTION,
    LINEAR,
    LINEAR_CONVOLUTION,
    ArrayRow,
    affine,
    norm,
    row,
)
from keras_vit.weights.reading import ArrayFile

if TYPE_CHECKING:
    from keras_vit.base import ImageModel
    from keras_vit.preprocessing import ImagePreprocessing


def _together(theirs: str, ours: str, names: tuple[str, ...]) -> tuple[ArrayRow, ...]:
    """Several dense layers of ours in one of theirs."""
    return (
        row(f"{theirs}.weight", *(f"{ours}/{n}/kernel" for n in names), layout=LINEAR),
        row(f"{theirs}.bias", *(f"{ours}/{n}/bias" for n in names)),
    )


def _mlp(theirs: str, ours: str) -> tuple[ArrayRow, ...]:
    return (
        *affine(f"{theirs}.fc1.", f"{ours}/Dense_0", LINEAR),
        *affine(f"{theirs}.fc2.", f"{ours}/Dense_1", LINEAR),
    )


def _block() -> tuple[ArrayRow, ...]:
    theirs, ours = "blocks.{i}", "encoder_block_{i}"
    return (
        *norm(f"{theirs}.norm1.", f"{ours}/norm1"),
        *_together(
            f"{theirs}.attn.qkv", f"{ours}/attention", ("query", "key", "value")
        ),
        *norm(f"{theirs}.attn.q_norm.", f"{ours}/attention/query_norm"),
        *norm(f"{theirs}.attn.k_norm.", f"{ours}/attention/key_norm"),
        *affine(f"{theirs}.attn.proj.", f"{ours}/attention/out", LINEAR),
        row(f"{theirs}.ls1.gamma", f"{ours}/layer_scale1/gamma"),
        *norm(f"{theirs}.norm2.", f"{ours}/norm2"),
        *_mlp(f"{theirs}.mlp", f"{ours}/mlp"),
        row(f"{theirs}.ls2.gamma", f"{ours}/layer_scale2/gamma"),
    )


def _attention_pooling() -> tuple[ArrayRow, ...]:
    theirs, ours = "attn_pool", "attention_pooling"
    return (
        row(f"{theirs}.latent", f"{ours}/probe"),
        *affine(f"{theirs}.q.", f"{ours}/attention/query", LINEAR),
        *_together(f"{theirs}.kv", f"{ours}/attention", ("key", "value")),
        *affine(f"{theirs}.proj.", f"{ours}/attention/out", LINEAR),
        *norm(f"{theirs}.norm.", f"{ours}/norm"),
        *_mlp(f"{theirs}.mlp", f"{ours}/mlp"),
    )


def _hybrid_stem() -> tuple[ArrayRow, ...]:
    backbone = "patch_embed.backbone"
    rows: list[ArrayRow] = []
    for stem in (f"{backbone}.stem.", f"{backbone}."):  # the second: R+Ti/16
        rows += [
            row(f"{stem}conv.weight", "stem_conv/kernel", layout=CONVOLUTION),
            *norm(f"{stem}norm.", "stem_norm"),
        ]
    unit, ours = f"{backbone}.stages.{{s0}}.blocks.{{u0}}", "stage{s}_unit{u}"
    for conv, group, part in (
        ("conv1", "norm1", "1"),
        ("conv2", "norm2", "2"),
        ("conv3", "norm3", "3"),
        ("downsample.conv", "downsample.norm", "_proj"),
    ):
        rows += [
            row(
                f"{unit}.{conv}.weight", f"{ours}/conv{part}/kernel", layout=CONVOLUTION
            ),
            *norm(f"{unit}.{group}.", f"{ours}/norm{part}"),
        ]
    return tuple(rows)


TIMM = (
    *affine("patch_embed.proj.", "embedding", CONVOLUTION),
    row("cls_token", "class_token/token"),
    row("reg_token", "register_tokens/tokens"),
    # DeiT's distillation token is a register with a classifier of its own.
    row("dist_token", "register_tokens/tokens"),
    row("pos_embed", "position_embedding/embedding"),
    *_block(),
    *norm("norm.", "encoder_norm"),
    *norm("fc_norm.", "fc_norm"),
    *_attention_pooling(),
    *affine("head.", "head", LINEAR),
    *_hybrid_stem(),
)


def _bit() -> tuple[ArrayRow, ...]:
    theirs, ours = "stages.{s0}.blocks.{u0}", "stage{s}_unit{u}"
    rows = [
        row("stem.conv.weight", "stem_conv/kernel", layout=CONVOLUTION),
        *norm("norm.", "final_norm"),
        *affine("head.fc.", "head", LINEAR_CONVOLUTION),
    ]
    rows.extend(
        row(f"{theirs}.{conv}.weight", f"{ours}/{conv}/kernel", layout=CONVOLUTION)
        for conv in ("conv1", "conv2", "conv3")
    )
    for part in ("norm1", "norm2", "norm3"):
        rows += norm(f"{theirs}.{part}.", f"{ours}/{part}")
    downsample = f"{theirs}.downsample.conv.weight"
    return (*rows, row(downsample, f"{ours}/conv_proj/kernel", layout=CONVOLUTION))


TIMM_BIT = _bit()


# Architectures that use the tanh approximation of GELU.
_TANH = re.compile(
    r"vit_(base_patch32|so400m_patch16|giantopt_patch16)_siglip_"
    r"|vit_large_patch16_siglip_(gap_)?512"
)
# Those that pool the prefix tokens too, which only their names say.
_POOLS_PREFIX = re.compile(r"test_vit3")
# Our names of what `model_args` states; these booleans have the same ones.
_OPTIONS = {
    "patch_size": "patch_size",
    "embed_dim": "width",
    "depth": "depth",
    "num_heads": "heads",
    "in_chans": "channels",
    # Not written: without it the MLPs have no biases either, and ours have.
    "proj_bias": "output_bias",
}
_BOOLEANS = ("qk_norm", "class_token", "fc_norm")
_GELUS = {"tanh": "gelu_tanh", "exact": "gelu"}
_POOLINGS = {"token": "token", "avg": "avg", "map": "map", "": None}
_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_RESNETS = {
    ((3, 4, 6, 3), 1): "resnetv2_50x1_bit",
    ((3, 4, 6, 3), 3): "resnetv2_50x3_bit",
    ((3, 4, 23, 3), 1): "resnetv2_101x1_bit",
    ((3, 4, 23, 3), 3): "resnetv2_101x3_bit",
    ((3, 8, 36, 3), 2): "resnetv2_152x2_bit",
    ((3, 8, 36, 3), 4): "resnetv2_152x4_bit",
}
_INTERPOLATIONS = {
    "nearest": "nearest",
    "lanczos": "lanczos3",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
}
_CROP_MODES = {"center": "small", "squash": "plain"}
# What timm assumes of keys that `pretrained_cfg` leaves out.
_PREPROCESSING: dict[str, Any] = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "interpolation": "bicubic",
    "crop_pct": 0.875,
    "crop_mode": "center",
}


class _TimmFamily(WritableFamily):
    """Arrays beside a `config.json`; its `pretrained_cfg` has the preprocessing."""

    project = "timm"
    poolings = _POOLINGS

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the model -> names in the file, `DataParallel`'s too."""
        return {name.removeprefix("module."): name for name in names}

    def pooling(self, file: ArrayFile) -> tuple[str | None, bool]:
        """`global_pool` of `model_args`, else of the config itself."""
        options = file.config.get("model_args", {})
        name = options.get("global_pool", file.config.get("global_pool"))
        implied = _POOLS_PREFIX.match(file.config.get("architecture", ""))
        return name, options.get("pool_include_prefix", bool(implied))

    def class_names(self, file: ArrayFile, classes: int) -> list[str] | None:
        """`label_names`, which is absent for ImageNet's."""
        pretrained: dict[str, Any] = file.config.get("pretrained_cfg", {})
        return pretrained.get("label_names")

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, Any]:
        """`pretrained_cfg`."""
        return "config.json", file.config.get("pretrained_cfg") or None

    def preprocessing(
        self, config: dict[str, Any], model: dict[str, Any]
    ) -> dict[str, Any]:
        """Settings of `pretrained_cfg`, where zero and null count as left out."""
        config = _PREPROCESSING | {key: value for key, value in config.items() if value}
        size = config.get("input_size")  # (channels, H, W)
        return {
            "mean": scaled(config["mean"], 255),
            "std": scaled(config["std"], 255),
            "interpolation": known(config, "interpolation", _INTERPOLATIONS),
            "antialias": True,  # as PIL
            "crop_fraction": config["crop_pct"],
            "resize": known(config, "crop_mode", _CROP_MODES),
            "convention": "timm",
            "image_size": (int(size[1]), int(size[2])) if size else None,
        }

    def preprocessing_differences(self, policy: dict[str, Any]) -> list[str]:
        """Pillow's nearest neighbor rounds in another way."""
        if policy["interpolation"] != "nearest":
            return []
        return ['resizes by interpolation="nearest": single rows differ']

    def lost_preprocessing(self, layer: "ImagePreprocessing") -> list[str]:
        """What Pillow does not compute."""
        return lost_to_pillow(layer, "timm")

    def _document(
        self,
        model: "ImageModel",
        architecture: str,
        arguments: dict[str, Any],
        **pretrained: Any,
    ) -> dict[str, Any]:
        """`config.json`; `pretrained` is of the model's kind."""
        classes = model.classes or 0
        document = {
            "architecture": architecture,
            "num_classes": classes,
            "num_features": getattr(model, "width", None) or 2048 * model.width_factor,
            "model_args": {**arguments, "in_chans": model.channels},
            "pretrained_cfg": {
                "input_size": [model.channels, *model.image_size],
                "num_classes": classes,
                **written_preprocessing(model),
                **pretrained,
            },
        }
        if model.class_names is not None:
            document["pretrained_cfg"]["label_names"] = list(model.class_names)
        return {"config.json": document}


class Timm(_TimmFamily):
    """timm's `VisionTransformer`, with or without a hybrid's stem."""

    title = "timm ViT"
    mark = "patch_embed.proj.weight"
    rows = TIMM
    configured = ("gelu", "heads", "pooling")
    second_classifiers = ("head_dist.",)
    hybrid_note = (
        "timm computes its ResNets with other epsilons than the official code, whose "
        "this model has: outputs may differ where kernels are small"
    )
    holds = frozenset(
        (
            *("gelu", "swiglu", "layer_scale", "register_tokens"),
            *("prefix_positions", "resnet_blocks", *QKV_BIASES, *_BOOLEANS),
        )
    )

    def stated(self, file: ArrayFile, swiglu: bool) -> dict[str, Any]:
        """What `model_args` states, and what follows from the architecture's name."""
        arguments = file.config.get("model_args", {})
        architecture = file.config.get("architecture", "")
        if "_rpn_" in architecture:  # its arrays are those of pre-norm blocks
            rule = "LayerNorms must precede attention and MLP, not follow them"
            refuse_config(file, rule, architecture)
        name = "gelu_tanh" if _TANH.match(architecture) else None
        name = "quick_gelu" if "quickgelu" in architecture else name
        name = arguments.get("act_layer", name)
        return {
            **renamed(arguments, _OPTIONS),
            **qkv_biases(arguments),
            **{
                each: value
                for each in _BOOLEANS
                if isinstance(value := arguments.get(each), bool)
            },
            **gelu_of(file, name, swiglu),
        }

    def image_size(self, file: ArrayFile) -> Any:
        """`img_size` of `model_args`, or the size that the weights were trained on."""
        size = file.config.get("model_args", {}).get("img_size")
        trained = file.config.get("pretrained_cfg", {}).get("input_size", [None])
        return size or trained[1:]

    def prefix_positions(self, prefix: int) -> tuple[int, ...]:
        """All of them have one, or none with `no_embed_class`."""
        return prefix, 0

    def refusals(self, model: "ImageModel") -> list[str]:
        """What no argument of timm's class makes."""
        found = other_than_qkv_bias(model)
        if model.gelu not in _GELUS:
            found.append(f"gelu must be one of {', '.join(map(repr, _GELUS))}")
        if model.resnet_blocks is not None and model.resnet_blocks not in _HYBRIDS:
            found.append(f"timm has no hybrid with resnet_blocks={model.resnet_blocks}")
        if model.representation_size is not None:
            found.append("representation_size must be None")
        mapped = model.pooling == "map"
        if mapped and model.class_token and model.register_tokens:
            found.append(
                "pooling='map' must have no class token beside register tokens"
            )
        if model.swiglu and (mapped or model.resnet_blocks is not None):
            found.append(
                "swiglu must be False in a hybrid, and where pooling='map'",
            )
        return found

    def file_name(self, name: str, model: "ImageModel") -> str:
        """R+Ti/16's stem has no module of its own."""
        if model.resnet_blocks == ():
            return name.replace(".backbone.stem.", ".backbone.")
        return name

    def documents(self, model: "ImageModel") -> dict[str, Any]:
        """`config.json`, with `model_args` for an architecture of this kind."""
        first = "patch_embed.proj"
        if model.resnet_blocks is not None:
            first = self.file_name("patch_embed.backbone.stem.conv", model)
        architecture, arguments = _architecture(model)
        return self._document(
            model,
            architecture,
            arguments,
            fixed_input_size=True,
            # What timm replaces for other channels or classes.
            first_conv=first,
            classifier="head",
        )


class TimmBit(_TimmFamily):
    """timm's `ResNetV2` with the weights of Big Transfer."""

    title = "timm BiT ResNet"
    mark = "stages.0.blocks.0.conv1.weight"
    rows = TIMM_BIT
    model = "resnet"
    hybrid_note = Timm.hybrid_note
    holds = frozenset(("blocks", "width_factor"))

    def refusals(self, model: "ImageModel") -> list[str]:
        """timm has the published sizes."""
        if (model.blocks, model.width_factor) in _RESNETS:
            return []
        sizes = f"blocks={model.blocks}, width_factor={model.width_factor}"
        return [f"timm has no BiT with {sizes}"]

    def documents(self, model: "ImageModel") -> dict[str, Any]:
        """`config.json`."""
        pooling = {ours: theirs for theirs, ours in _POOLINGS.items()}[model.pooling]
        return self._document(
            model,
            _RESNETS[model.blocks, model.width_factor],
            {"global_pool": pooling},
            fixed_input_size=False,
            first_conv="stem.conv",
            classifier="head.fc",
        )


def _architecture(model: "ImageModel") -> tuple[str, dict[str, Any]]:
    """Name of an architecture of the model's kind, and the arguments that make it."""
    outputs = model.mlp_dim * (1 + model.swiglu)  # of the MLP's first layer
    ratio = outputs / model.width
    if int(model.width * ratio) != outputs:  # rounded down to one less
        ratio = (outputs + 0.5) / model.width
    arguments = {
        "img_size": list(model.image_size),
        "patch_size": model.patch_size,
        "embed_dim": model.width,
        "depth": model.depth,
        "num_heads": model.heads,
        "mlp_ratio": ratio,
        "global_pool": {ours: theirs for theirs, ours in _POOLINGS.items()}[
            model.pooling
        ],
        # Our attention pooling includes the class token.
        "pool_include_prefix": model.pooling == "map" and model.class_token,
        "no_embed_class": not model.prefix_positions,
        "reg_tokens": model.register_tokens,
        # timm takes 0 for none; the weights come from the file.
        "init_values": 1e-5 if model.layer_scale == 0 else model.layer_scale,
        "qkv_bias": model.query_bias,
        **{name: getattr(model, name) for name in _BOOLEANS},
        "act_layer": _GELUS[model.gelu],
    }
    if model.swiglu:
        # No JSON names the kind of MLP; this architecture has it.
        return "vit_giant_patch14_dinov2", {**arguments, "act_layer": "silu"}
    if model.resnet_blocks is None:
        return "vit_base_patch16_224", arguments
    return _HYBRIDS[model.resnet_blocks], arguments


def written_preprocessing(model: "ImageModel") -> dict[str, Any]:
    """The part of `pretrained_cfg` about preprocessing."""
    layer, mean, std = pixels_of(model)
    names = {ours: theirs for theirs, ours in _INTERPOLATIONS.items()}
    fraction = layer.crop_fraction
    # timm corrects no rounding error; a little less gives it the whole size.
    floored = tuple(int(side / fraction) for side in layer.image_size)
    exact = floored == layer.whole_size
    return {
        "mean": mean,
        "std": std,
        "interpolation": names.get(layer.interpolation, "lanczos"),
        "crop_pct": fraction if exact else fraction * (1 - 1e-6),
        "crop_mode": {ours: theirs for theirs, ours in _CROP_MODES.items()}[
            layer.resize
        ],
    }
