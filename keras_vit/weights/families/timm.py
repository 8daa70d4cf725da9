"""timm's checkpoints, as its state dicts name the arrays of its ViTs.

Source: huggingface/pytorch-image-models, models/vision_transformer.py, deit.py, eva.py,
beit.py, vision_transformer_hybrid.py. What its classes' arguments mean is in
`timm_arguments`; the blocks' arrays are in `timm_blocks`, NaFlexVit is in
`timm_naflex`, BiT in `timm_bit`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from keras_vit.errors import WeightsFileError
from keras_vit.option_rows import rows as option_rows
from keras_vit.options import ViTOptions
from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import Config, Stated, written
from keras_vit.weights.families.family import (
    WritableFamily,
    known,
    lost_to_pillow,
    pixels_of,
    scaled,
)
from keras_vit.weights.families.layouts import (
    CONVOLUTION,
    LINEAR,
    ArrayRow,
    affine,
    norm,
    row,
    together,
)
from keras_vit.weights.families.timm_arguments import (
    ACTIVATIONS,
    KEYS,
    architecture_of,
    architectures,
    arguments_of,
    options_of_architectures,
    stated,
)
from keras_vit.weights.families.timm_blocks import (
    ASSUMED_OF_BLOCKS,
    BLOCK_OPTIONS,
    BLOCK_ROWS,
    form_of,
    mlp_rows,
    rows_of_form,
)
from keras_vit.weights.reading import ArrayFile

if TYPE_CHECKING:
    from keras_vit.base import ImageModel
    from keras_vit.preprocessing import ImagePreprocessing


def _attention_pooling() -> tuple[ArrayRow, ...]:
    theirs, ours = "attn_pool", "attention_pooling"
    return (
        row(f"{theirs}.latent", f"{ours}/probe"),
        *affine(f"{theirs}.q.", f"{ours}/attention/query", LINEAR),
        *together(f"{theirs}.kv", f"{ours}/attention", ("key", "value")),
        *affine(f"{theirs}.proj.", f"{ours}/attention/out", LINEAR),
        *norm(f"{theirs}.norm.", f"{ours}/norm"),
        *mlp_rows(f"{theirs}.mlp", f"{ours}/mlp"),
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


# What follows patches, other tokens and positions.
ENCODER = (
    row("rope.freqs", "rotary/frequencies"),
    *norm("norm_pre.", "embedding_norm"),
    *BLOCK_ROWS,
    *norm("norm.", "encoder_norm"),
    *norm("fc_norm.", "fc_norm"),
    *_attention_pooling(),
    *affine("head.", "head", LINEAR),
)
TIMM = (
    *affine("patch_embed.proj.", "embedding", CONVOLUTION),
    *norm("patch_embed.norm.", "patch_norm"),
    row("cls_token", "class_token/token"),
    row("reg_token", "register_tokens/tokens"),
    # DeiT's distillation token is a register with a classifier of its own.
    row("dist_token", "register_tokens/tokens"),
    row("pos_embed", "position_embedding/embedding"),
    *ENCODER,
    *affine("head_dist.", "head_dist", LINEAR),
    *_hybrid_stem(),
)


# Names that the arrays of `VisionTransformer` do not have.
_OF_EVA = re.compile(r"\.gamma_\d$|\.(q|v)_bias$|\.(q|k|v)_proj\.|^rope\.|_bias_table$")
# What changes the outputs and no array shows, but for the kind of GELU and the heads.
_UNSHOWN = ("norm_epsilon", "rotary", *ASSUMED_OF_BLOCKS)
# Options that a checkpoint may have changed in an architecture.
_ADAPTED = ("classes", "channels", "patch_size")
_POOLINGS = {"token": "token", "avg": "avg", "map": "map", "": None}
_HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_INTERPOLATIONS = {
    "nearest": "nearest",
    "lanczos": "lanczos3",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
}
_CROP_MODES = {"center": "small", "squash": "plain"}
# What timm assumes of keys that `pretrained_cfg` leaves out.
_PREPROCESSING: dict[str, JSON] = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "interpolation": "bicubic",
    "crop_pct": 0.875,
    "crop_mode": "center",
}


def _class_of(architecture: str) -> str | None:
    """Name of an architecture's class in timm."""
    return architectures().get(architecture, {}).get("class")


class TimmFamily(WritableFamily):
    """Arrays beside a `config.json`; its `pretrained_cfg` has the preprocessing.

    Attributes:
        classes: Classes of timm whose models are read.
    """

    project = "timm"
    library = "timm"
    poolings = _POOLINGS
    classes: ClassVar[tuple[str, ...]]

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the model -> names in the file, `DataParallel`'s too."""
        return {name.removeprefix("module."): name for name in names}

    def described(self, config: Config) -> str | None:
        """The `architecture`."""
        return architecture_of(config)

    def opens(self, name: str) -> bool:
        """Whether it is of a class that this family reads."""
        return _class_of(name) in self.classes

    def explained(self, name: str) -> str:
        """With its class, where it is one of the table."""
        kind = _class_of(name)
        return super().explained(name) + (f", of its class {kind}" if kind else "")

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What `model_args` states, and the architecture in timm's code."""
        return stated(file.path, file.config) if file.config else {}

    def pooling(self, file: ArrayFile) -> tuple[str | None, bool]:
        """`global_pool`; attention pooling of `Eva` reads all tokens."""
        if not file.config:
            return None, False
        arguments = arguments_of(file.config)
        kind = architectures()[architecture_of(file.config) or ""]["class"]
        usual = KEYS[kind]["global_pool"].default
        name = arguments.get("global_pool", usual)
        prefix = name == "map" and kind == "Eva"
        return name, arguments.get("pool_include_prefix", prefix)

    def class_names(self, file: ArrayFile, classes: int) -> list[str] | None:
        """`label_names`, a list or by number; absent for ImageNet's."""
        pretrained = file.config.get("pretrained_cfg", {})
        names: JSON = file.config.get("label_names") or pretrained.get("label_names")
        if isinstance(names, dict):
            names = [names.get(str(index)) for index in range(classes)]
        return None if names is None else list(names)

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, JSON]:
        """`pretrained_cfg`."""
        return "config.json", file.config.get("pretrained_cfg") or None

    def preprocessing(
        self, config: dict[str, JSON], model: dict[str, JSON]
    ) -> dict[str, JSON]:
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

    def preprocessing_differences(self, policy: dict[str, JSON]) -> list[str]:
        """Pillow's nearest neighbor rounds in another way."""
        if policy["interpolation"] != "nearest":
            return []
        return ['resizes by interpolation="nearest": single rows differ']

    def lost_preprocessing(self, layer: "ImagePreprocessing") -> list[str]:
        """What Pillow does not compute."""
        return lost_to_pillow(layer, "timm")

    def document(
        self,
        model: "ImageModel",
        architecture: str,
        arguments: dict[str, JSON],
        **pretrained: JSON,
    ) -> dict[str, JSON]:
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


def _are_shown(options: Mapping[str, JSON], shown: Mapping[str, JSON]) -> bool:
    """Whether an architecture's arrays show these options."""
    with_arrays = {"position_embedding": "learned_1d", "rotary": "mixed"}
    for name, kind in with_arrays.items():
        if options[name] == kind and name not in shown:
            return False
    for name, value in shown.items():
        stated = options.get(name, getattr(ViTOptions, name, value))
        if name == "layer_scale":
            stated, value = stated is None, value is None
        if name not in _ADAPTED and stated != value:
            return False
    return True


class Timm(TimmFamily):
    """timm's `VisionTransformer`, with or without a hybrid's stem."""

    title = "timm ViT"
    mark = "patch_embed.proj.weight"
    rows = TIMM
    configured = ("gelu", "heads", "norm_epsilon", "pooling", *ASSUMED_OF_BLOCKS)
    hybrid_note = (
        "timm computes its ResNets with other epsilons than the official code, whose "
        "this model has: outputs may differ where kernels are small"
    )
    classes: ClassVar[tuple[str, ...]] = (
        "VisionTransformer",
        "VisionTransformerDistilled",
    )
    assumed: ClassVar = {"gelu": "exact", **ASSUMED_OF_BLOCKS}
    holds = frozenset(
        (
            *("query_bias", "key_bias", "value_bias", "output_bias", "mlp_bias"),
            *("norm", "norm_epsilon", "qk_norm", "attention_norm", "mlp_norm"),
            *("patch_norm", "embedding_norm", "embedding_bias", "final_norm"),
            *("fc_norm", "layer_scale", "gelu", "swiglu", "class_token", "distilled"),
            *("register_tokens", "position_embedding", "prefix_positions"),
            *("relative_bias", "pool_heads", "pool_mlp_dim", "resnet_blocks"),
            *BLOCK_OPTIONS,
            *(name for name in option_rows(ViTOptions) if name.startswith("rotary")),
        )
    )

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the arguments state; what none of them makes, the class has not."""
        said = super().stated(file)
        if not said:
            return said
        source = f"timm's {file.config['architecture']!r}"
        usual = {
            name: Stated(getattr(ViTOptions, name), source)
            for name in option_rows(ViTOptions)
            if name in self.holds and name not in ("resnet_blocks", "gelu")
        }
        return usual | said

    def guessed(self, file: ArrayFile, shown: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """What all architectures with such arrays have in common.

        Raises:
            WeightsFileError: They differ in what no array shows, or there is none.
        """
        if file.config:
            return self.assumed
        kinds = self.kinds(file)
        alike = [
            options
            for kind, options in options_of_architectures()
            if kind in kinds and _are_shown(options, shown)
        ]
        if not alike and "VisionTransformer" in kinds:
            return super().guessed(file, shown)
        shared = {
            name: value
            for name, value in (alike[0] if alike else {}).items()
            if name not in shown and all(each.get(name) == value for each in alike)
        }
        doubtful = [name for name in _UNSHOWN if name not in {**shown, **shared}]
        if doubtful:
            raise WeightsFileError(
                "A checkpoint of timm must have its config.json, as models with such "
                f"arrays differ in {', '.join(doubtful)}. Received: "
                f"{str(file.path)!r} without one"
            )
        return {**self.assumed, **shared}

    def kinds(self, file: ArrayFile) -> tuple[str, ...]:
        """Classes whose models have such arrays."""
        others = any(_OF_EVA.search(name) for name in file.arrays)
        return ("Eva", "Beit") if others else (*Timm.classes, "Eva", "Beit")

    def image_size(self, file: ArrayFile) -> JSON:
        """`img_size` of `model_args`, or the size that the weights were trained on."""
        size = file.config.get("model_args", {}).get("img_size")
        trained = file.config.get("pretrained_cfg", {}).get("input_size", [None])
        return size or trained[1:]

    def prefix_positions(self, prefix: int) -> tuple[int, ...]:
        """All of them have one, or none with `no_embed_class`."""
        return prefix, 0

    def refusals(self, model: "ImageModel") -> list[str]:
        """What no argument of timm's class makes."""
        found = self.refused_pooling(model)
        if form_of(model) is None:
            found.append(f"timm has no model with norm={model.norm!r} and such blocks")
        if model.resnet_blocks is not None and model.resnet_blocks not in _HYBRIDS:
            found.append(f"timm has no hybrid with resnet_blocks={model.resnet_blocks}")
        if model.representation_size is not None:
            found.append("representation_size must be None")
        if model.embedding_bias == model.embedding_norm:
            found.append("embedding_bias must be the opposite of embedding_norm")
        mapped = model.pooling == "map"
        if model.swiglu and (mapped or model.resnet_blocks is not None):
            found.append(
                "swiglu must be False in a hybrid, and where pooling='map'",
            )
        if model.distilled and model.register_tokens != 1:
            found.append("register_tokens must be 1 where distilled=True")
        return found

    def refused_pooling(self, model: "ImageModel") -> list[str]:
        """Attention pooling is of all tokens or of the patches alone."""
        found = _refused_pooling(model)
        if model.pooling == "map" and model.class_token and model.register_tokens:
            found.append(
                "pooling='map' must have no class token beside register tokens"
            )
        return found

    def written_rows(self, model: "ImageModel") -> tuple[ArrayRow, ...]:
        """Of the class: AIMv2 alone has a gate of its own."""
        others = [r"\.gamma_\d", "(q|k|v)_(proj|bias)"]
        others.append(r"mlp\.fc1\." if model.norm == "rms" else "fc1_(g|x)")
        return _without(rows_of_form(self.rows, model), others)

    def file_name(self, name: str, model: "ImageModel") -> str:
        """R+Ti/16's stem has no module of its own; DeiT's register has a name."""
        if model.distilled and name == "reg_token":
            return "dist_token"
        if model.resnet_blocks == ():
            return name.replace(".backbone.stem.", ".backbone.")
        return name

    def documents(self, model: "ImageModel") -> dict[str, JSON]:
        """`config.json`, with `model_args` for an architecture of this kind."""
        first = "patch_embed.proj"
        if model.resnet_blocks is not None:
            first = self.file_name("patch_embed.backbone.stem.conv", model)
        architecture, arguments = _architecture(model)
        return self.document(
            model,
            architecture,
            arguments,
            fixed_input_size=True,
            # What timm replaces for other channels or classes.
            first_conv=first,
            classifier="head",
        )


class TimmEva(Timm):
    """timm's `Eva`: EVA, EVA-02, DINOv3, Perception Encoder, ViTs with RoPE."""

    title = "timm EVA"
    classes: ClassVar = ("Eva",)

    def written_rows(self, model: "ImageModel") -> tuple[ArrayRow, ...]:
        """Biases beside the matrix, unless the keys have one too."""
        others = [r"\.ls\d\.", "(q|k|v)_proj"]
        if model.swiglu:
            others.append(r"^blocks.*\.fc1\." if model.mlp_norm else "fc1_(g|x)")
        return _without(rows_of_form(self.rows, model), others)

    def refusals(self, model: "ImageModel") -> list[str]:
        """What no argument of the class makes."""
        found = self.refused_pooling(model)
        if model.resnet_blocks is not None or model.representation_size is not None:
            found.append("resnet_blocks and representation_size must be None")
        if model.embedding_bias == model.embedding_norm:
            found.append("embedding_bias must be the opposite of embedding_norm")
        return found

    def refused_pooling(self, model: "ImageModel") -> list[str]:
        """Attention pooling of the class is of all tokens."""
        found = _refused_pooling(model)
        if model.pooling == "map" and model.register_tokens:
            found.append("pooling='map' must have no register tokens")
        return found

    def documents(self, model: "ImageModel") -> dict[str, JSON]:
        """`config.json`; the architecture alone states the epsilon."""
        return self.document(
            model,
            "vit_base_patch16_dinov3"
            if model.norm_epsilon == 1e-5
            else "vit_base_patch16_rope_224",
            {
                **written(KEYS["Eva"], model),
                "img_size": list(model.image_size),
                "dynamic_img_size": False,
            },
            fixed_input_size=True,
            first_conv="patch_embed.proj",
            classifier="head",
        )


class TimmBeit(Timm):
    """timm's `Beit`."""

    title = "timm BEiT"
    classes: ClassVar = ("Beit",)

    def written_rows(self, model: "ImageModel") -> tuple[ArrayRow, ...]:
        """Biases beside the matrix."""
        rows = rows_of_form(self.rows, model)
        return _without(rows, [r"\.ls\d\.", "(q|k|v)_proj"])

    def refusals(self, model: "ImageModel") -> list[str]:
        """What no argument of the class makes."""
        found = _refused_pooling(model)
        if model.resnet_blocks is not None or model.representation_size is not None:
            found.append("resnet_blocks and representation_size must be None")
        if model.swiglu or model.pooling == "map":
            found.append("swiglu must be False, and pooling not 'map'")
        return found

    def documents(self, model: "ImageModel") -> dict[str, JSON]:
        """`config.json`."""
        return self.document(
            model,
            "beit_base_patch16_224",
            {**written(KEYS["Beit"], model), "img_size": list(model.image_size)},
            fixed_input_size=True,
            first_conv="patch_embed.proj",
            classifier="head",
        )


def _refused_pooling(model: "ImageModel") -> list[str]:
    known = tuple(_POOLINGS.values())
    if model.pooling in known:
        return []
    return [f"pooling must be one of {', '.join(map(repr, known))}"]


def _without(rows: tuple[ArrayRow, ...], others: list[str]) -> tuple[ArrayRow, ...]:
    """The rows whose names contain none of these patterns."""
    pattern = re.compile("|".join(others))
    return tuple(row for row in rows if not pattern.search(row.theirs))


def _architecture(model: "ImageModel") -> tuple[str, dict[str, JSON]]:
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
        # Earlier releases lack these arguments.
        **({"pre_norm": True} if model.embedding_norm else {}),
        **({} if model.final_norm else {"final_norm": False}),
        **({"scale_attn_norm": True} if model.attention_norm else {}),
        **({"scale_mlp_norm": True} if model.mlp_norm else {}),
        **{
            name: getattr(model, name) for name in ("qk_norm", "class_token", "fc_norm")
        },
        "act_layer": ACTIVATIONS.theirs(model.gelu),
    }
    form = form_of(model)
    if form is not None and form.architectures:
        return form.architectures[model.norm], {"pre_norm": False, **arguments}
    if model.distilled:
        del arguments["reg_tokens"]
        return "deit_base_distilled_patch16_224", arguments
    # No JSON names the kind of norm or MLP; these architectures have them.
    if model.norm == "rms":
        arguments |= {"proj_bias": model.output_bias, "act_layer": "silu"}
        arguments["mlp_ratio"] = (model.mlp_dim + 0.5) / model.width
        return "aimv2_large_patch14_224", arguments
    if model.swiglu:
        return "vit_giant_patch14_dinov2", {**arguments, "act_layer": "silu"}
    if model.norm_epsilon == 1e-5 and model.resnet_blocks is None:
        return "vit_base_patch16_clip_224", {"pre_norm": False, **arguments}
    if model.resnet_blocks is None:
        return "vit_base_patch16_224", arguments
    return _HYBRIDS[model.resnet_blocks], arguments


def written_preprocessing(model: "ImageModel") -> dict[str, JSON]:
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
