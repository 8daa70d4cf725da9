"""Arguments of timm's classes, and what each says of our model.

A checkpoint's `config.json` names an architecture and may add arguments. Those of the
architecture are in timm's code alone; `timm_architectures.json` has them, written by
`python -m benchmarks.timm_architectures`.

Source: huggingface/pytorch-image-models, models/vision_transformer.py, deit.py, eva.py,
beit.py, vision_transformer_hybrid.py, naflexvit.py, resnetv2.py.
"""

import contextlib
import functools
import json
import pathlib
from collections.abc import Mapping

from keras_vit.errors import WeightsFileError
from keras_vit.specs import image_size_pair
from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import (
    UNSAID,
    Config,
    ConfigKey,
    Keys,
    OneOf,
    Stated,
    must_be,
    read_by_another,
    read_config,
    says,
    says_nothing,
)
from keras_vit.weights.families.family import GELUS, SILUS
from keras_vit.weights.families.timm_blocks import read_form, read_scale

_TABLE = pathlib.Path(__file__).with_name("timm_architectures.json")


@functools.cache
def architectures() -> Mapping[str, Config]:
    """`class` and its arguments by the name of each architecture."""
    table: Mapping[str, Config] = json.loads(_TABLE.read_text("utf-8"))["architectures"]
    return table


def _name(value: JSON) -> JSON:
    """Name of a class, which the table gives with its own arguments where it has any.

    `SwiGLUPacked` is timm's name for a GLU whose gate comes first, before a SiLU.
    """
    if not isinstance(value, Mapping):
        return value
    packed = {"": "GluMlp", "act_layer": "SiLU", "gate_last": False}
    if value == packed:
        return "SwiGLUPacked"
    if value.get("") == "HybridEmbed":
        return f"HybridEmbed of {value['backbone']}"
    return value.get("")


_NORMS = {
    **dict.fromkeys(("layernorm", "LayerNorm"), "layer"),
    **dict.fromkeys(("rmsnorm", "RmsNorm"), "rms"),
}


def _norm(value: JSON, config: Config) -> dict[str, JSON]:
    """Kind and epsilon of all norms."""
    kind = OneOf(_NORMS)(_name(value), config)
    epsilon = value.get("eps", 1e-6) if isinstance(value, Mapping) else 1e-6
    return {"norm": kind, "norm_epsilon": epsilon}


def _patch_norm(value: JSON, config: Config) -> dict[str, JSON]:
    """Norm of the patches, of the kind of all others."""
    if _norm(value, config) != _norm(config["norm_layer"], config):
        raise ValueError("the same as norm_layer")
    return {"patch_norm": True}


def _is_gated(config: Config) -> bool:
    if "mlp_layer" in config:
        return bool(_MLPS.get(_name(config["mlp_layer"])))
    return bool(config.get("swiglu_mlp"))


_MLPS = {"Mlp": False, "SwiGLUPacked": True, "SwiGLU": True}


def _activation(value: JSON, config: Config) -> JSON:
    if not _is_gated(config):
        return OneOf(GELUS)(value.lower(), config)
    OneOf(dict.fromkeys(SILUS))(value.lower(), config)
    return UNSAID


# timm's names of our `gelu`.
ACTIVATIONS = OneOf(
    {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick", "silu": "silu"}
)


def _mlp_dim(ratio: JSON, config: Config) -> int:
    """Width of the hidden layer; of a packed GLU the argument counts both halves."""
    hidden = int(config["embed_dim"] * ratio)
    if _name(config.get("mlp_layer")) == "SwiGLUPacked":
        return hidden // 2
    step = config.get("swiglu_align_to") if config.get("swiglu_mlp") else None
    return -(-hidden // step) * step if step else hidden


def _prefix(config: Config) -> int:
    registers = config.get("reg_tokens", config.get("num_reg_tokens", 0))
    return int(config["class_token"]) + int(registers)


def _positions(value: JSON, config: Config) -> JSON:
    """`no_embed_class` as our `prefix_positions`."""
    learned = config.get("pos_embed", config.get("use_abs_pos_emb"))
    has_any = learned not in ("", "none", False) and _prefix(config)
    return not value if has_any else UNSAID


_learned = OneOf({True: "learned_1d", False: "none"})


def _norm_before(value: JSON, config: Config) -> dict[str, JSON]:
    """A norm before the blocks; the embedding has no bias then."""
    return {"embedding_norm": value, "embedding_bias": not value}


def _norms_at_end(fc_norm: JSON, config: Config) -> dict[str, JSON]:
    """Of `VisionTransformer`: there is one norm, before or after the pooling."""
    after = config["global_pool"] in _MEANS if fc_norm == "auto" else bool(fc_norm)
    last = bool(config["final_norm"])
    return {"final_norm": last, "fc_norm": last and after}


def _norms_of_eva(fc_norm: JSON, config: Config) -> dict[str, JSON]:
    """Of `Eva` and `Beit`: two arguments, of which neither may follow the other."""
    after = config["global_pool"] == "avg" if fc_norm == "auto" else bool(fc_norm)
    before = config.get("use_post_transformer_norm", "auto")
    before = not after if before == "auto" else bool(before)
    if before and after:
        raise ValueError("false where use_post_transformer_norm is true")
    return {"final_norm": before or after, "fc_norm": after}


_MEANS = ("avg", "avgmax", "max")


_ROTARY = OneOf({"cat": "grid", "dinov3": "centered", "mixed": "mixed"})
_AXES = OneOf({"ij": "yx", "xy": "xy"})


def _rotary(value: JSON, config: Config) -> dict[str, JSON]:
    kind = _ROTARY(config["rope_type"], config) if value else None
    return _rotary_options(kind, config.get("ref_feat_shape"), config)


def _rotary_options(
    kind: str | None, reference: JSON, config: Config
) -> dict[str, JSON]:
    if kind is None:
        return {"rotary": None}
    halves = config["rope_rotate_half"] and kind != "mixed"
    grid = reference if kind == "grid" else None
    return {
        "rotary": kind,
        "rotary_pairing": "halves" if halves else "neighbors",
        "rotary_axes": _AXES(config["rope_grid_indexing"], config),
        "rotary_temperature": float(config["rope_temperature"]),
        "rotary_offset": float(config["rope_grid_offset"]),
        "rotary_reference_grid": None if grid is None else image_size_pair(grid),
    }


def _key_bias(config: Config) -> bool:
    """`EvaAttention` and BEiT's have no bias of the keys, the others have."""
    if config.get("attn_type") == "standard":  # of NaFlexVit
        kind = _NAFLEX_ROTARY(config["rope_type"], config)
        return kind is not None or not _has_eva_blocks(config)
    return bool(config.get("attn_type") == "rope")


def _initial_scale(model: JSON) -> float | None:
    """The weights come from the file, but zero may stand for none."""
    return 1e-5 if model.layer_scale == 0 else model.layer_scale


def _post_norm(model: JSON) -> bool:
    """`EvaBlockPostNorm` has no QK norm."""
    if model.post_norm and model.qk_norm:
        raise ValueError("post_norm without qk_norm")
    return bool(model.post_norm)


def _attention_type(model: JSON) -> str:
    if model.query_bias != model.value_bias or model.key_bias > model.query_bias:
        raise ValueError("query_bias and value_bias alone or with key_bias")
    return "rope" if model.key_bias else "eva"


def _pool_ratio(model: JSON) -> float | None:
    dim = model.pool_mlp_dim
    return None if dim is None else (dim + 0.5) / model.width


def _biases(value: JSON, config: Config) -> dict[str, JSON]:
    keys = bool(value) and _key_bias(config)
    return {"query_bias": bool(value), "key_bias": keys, "value_bias": bool(value)}


def _no_groups(value: JSON, config: Config) -> dict[str, JSON]:
    """Grouped-query attention, in which several queries share a key."""
    if set(value if isinstance(value, list) else [value]) != {config["num_heads"]}:
        raise ValueError(f"{config['num_heads']}, num_heads, in every block")
    return {}


# Keys of each class.
_COMMON: dict[str, ConfigKey] = {
    "patch_size": says("patch_size", default=16),
    "in_chans": says("channels", default=3),
    "num_classes": says(
        "classes",
        default=1000,
        read=lambda value, _: value or None,
        write=lambda model: model.classes or 0,
    ),
    "embed_dim": says("width", default=768),
    "depth": says("depth", default=12),
    "num_heads": says("heads", default=12),
    "mlp_ratio": says(
        "mlp_dim",
        default=4.0,
        read=_mlp_dim,
        write=lambda model: (model.mlp_dim + 0.5) / model.width,
    ),
    "norm_layer": ConfigKey(_norm, default="LayerNorm"),
    **says_nothing(
        *("img_size", "dynamic_img_size", "dynamic_img_pad", "strict_img_size"),
        *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate"),
        *("attn_drop_rate", "drop_path_rate", "head_init_scale", "device", "dtype"),
    ),
}
_VIT: Keys = {
    **_COMMON,
    "global_pool": read_by_another("token"),
    "qkv_bias": says("query_bias", "key_bias", "value_bias", default=True),
    "qk_norm": says("qk_norm", default=False),
    "scale_attn_norm": says("attention_norm", default=False),
    "scale_mlp_norm": says("mlp_norm", default=False),
    "proj_bias": says("output_bias", "mlp_bias", default=True),
    "init_values": says("layer_scale", default=0, read=read_scale),
    "class_token": says("class_token", default=True),
    "pos_embed": says(
        "position_embedding",
        default="learn",
        read=OneOf({"learn": "learned_1d", "": "none", "none": "none"}),
    ),
    "no_embed_class": says("prefix_positions", default=False, read=_positions),
    "reg_tokens": says("register_tokens", default=0),
    "pre_norm": ConfigKey(
        _norm_before,
        default=False,
        write=lambda model: model.embedding_norm,
    ),
    "final_norm": read_by_another(True),
    "fc_norm": ConfigKey(_norms_at_end, default="auto"),
    "embed_layer": ConfigKey(
        lambda value, config: must_be(
            "PatchEmbed", "HybridEmbed of ResNetV2", "HybridEmbed of Sequential"
        ).read(_name(value), config),
    ),
    "embed_norm_layer": ConfigKey(_patch_norm),
    "act_layer": says("gelu", default="gelu", read=_activation),
    "mlp_layer": says(
        "swiglu",
        default="Mlp",
        read=lambda value, config: OneOf(_MLPS)(_name(value), config),
    ),
    "block_fn": ConfigKey(read_form, default="Block"),
    "attn_layer": must_be("Attention", "eager"),
    **says_nothing("pool_include_prefix", "weight_init", "fix_init"),
}
_EVA: Keys = {
    **_COMMON,
    "global_pool": read_by_another("avg", write=lambda model: model.pooling or ""),
    "num_kv_heads": ConfigKey(_no_groups),
    "qkv_bias": ConfigKey(_biases, default=True, write=lambda m: m.query_bias),
    "attn_type": read_by_another("eva", write=_attention_type),
    "qk_norm": says("qk_norm", default=False),
    "swiglu_mlp": says("swiglu", default=False),
    "scale_mlp": says("mlp_norm", default=False),
    "scale_attn_inner": says("attention_norm", default=False),
    "attn_only_layer_scale": must_be(False),
    "gated_attn": must_be(False),
    "init_values": says(
        "layer_scale",
        default=False,
        read=lambda value, config: (
            None if value is False or config["use_post_norm"] else value
        ),
        write=_initial_scale,
    ),
    "class_token": says("class_token", default=True),
    "num_reg_tokens": says("register_tokens", default=0),
    "no_embed_class": says(
        "prefix_positions",
        default=False,
        read=_positions,
        write=lambda model: not model.prefix_positions,
    ),
    "use_abs_pos_emb": says("position_embedding", default=True, read=_learned),
    "use_rot_pos_emb": ConfigKey(
        _rotary, default=False, write=lambda model: model.rotary is not None
    ),
    "rope_type": read_by_another(
        "cat", write=lambda model: _ROTARY.theirs(model.rotary or "grid")
    ),
    "rope_grid_offset": read_by_another(0.0, write=lambda m: m.rotary_offset),
    "rope_grid_indexing": read_by_another(
        "ij", write=lambda model: _AXES.theirs(model.rotary_axes)
    ),
    "rope_temperature": read_by_another(
        10000.0, write=lambda model: model.rotary_temperature
    ),
    "rope_rotate_half": read_by_another(
        False, write=lambda model: model.rotary_pairing == "halves"
    ),
    "ref_feat_shape": read_by_another(
        UNSAID, write=lambda model: model.rotary_reference_grid
    ),
    "rope_shift_coords": says("rotary_shift"),
    "rope_jitter_coords": says("rotary_jitter"),
    "rope_rescale_coords": says("rotary_rescale"),
    "use_post_norm": says("post_norm", default=False, write=_post_norm),
    "use_pre_transformer_norm": ConfigKey(
        _norm_before,
        default=False,
        write=lambda model: model.embedding_norm,
    ),
    "use_post_transformer_norm": read_by_another(
        "auto", write=lambda model: model.final_norm and not model.fc_norm
    ),
    "use_fc_norm": ConfigKey(
        _norms_of_eva, default="auto", write=lambda model: model.fc_norm
    ),
    "attn_pool_num_heads": says("pool_heads"),
    "attn_pool_mlp_ratio": says(
        "pool_mlp_dim",
        read=lambda value, config: int(config["embed_dim"] * value),
        write=_pool_ratio,
    ),
    **says_nothing("qkv_fused", "swiglu_align_to"),
}
_NAFLEX_TABLES = OneOf({"learned": "learned_1d", "none": "none", "": "none"})
_NAFLEX_ROTARY = OneOf(
    {"": None, "none": None, "axial": "grid", "dinov3": "centered", "mixed": "mixed"}
)


def _naflex_positions(value: JSON, config: Config) -> dict[str, JSON]:
    """Its positions are of patches alone."""
    kind = _NAFLEX_TABLES(value, config)
    prefix = {"prefix_positions": False} if kind != "none" and _prefix(config) else {}
    return {"position_embedding": kind, **prefix}


def _naflex_rotary(value: JSON, config: Config) -> dict[str, JSON]:
    kind = _NAFLEX_ROTARY(value, config)
    return _rotary_options(kind, config.get("rope_ref_feat_shape"), config)


def _has_eva_blocks(config: Config) -> bool:
    """Whether its blocks are of the kind of `Eva`'s, as in its `get_block_fn`."""
    return bool(
        config["attn_type"] != "standard"
        or _NAFLEX_ROTARY(config["rope_type"], config)
        or config.get("num_kv_heads") is not None
        or config["swiglu_mlp"]
    )


# Of `NaFlexVitCfg`. What is written has blocks of the kind of `Eva`'s.
_NAFLEX: Keys = {
    **_COMMON,
    **{
        name: _EVA[name]
        for name in (
            *("num_kv_heads", "qkv_bias", "qkv_fused", "qk_norm"),
            *("attn_only_layer_scale", "swiglu_mlp", "swiglu_align_to"),
            *("rope_grid_offset", "rope_grid_indexing", "rope_temperature"),
            *("rope_rotate_half", "rope_shift_coords", "rope_jitter_coords"),
            *("rope_rescale_coords", "attn_pool_num_heads", "attn_pool_mlp_ratio"),
        )
    },
    # Patches are vectors, in which channels cannot be told from pixels.
    "in_chans": says("channels", default=3, read=OneOf({3: 3})),
    "global_pool": read_by_another("map", write=lambda model: model.pooling or ""),
    "attn_type": read_by_another("standard", write=_attention_type),
    "attn_gated": must_be(False),
    "proj_bias": says(
        *("output_bias", "mlp_bias"),
        default=True,
        read=lambda value, config: bool(value) or _has_eva_blocks(config),
    ),
    "scale_mlp_norm": says("mlp_norm", default=False),
    "scale_attn_inner_norm": says("attention_norm", default=False),
    # A SwiGLU has its own, whatever this is.
    "act_layer": says("gelu", default="gelu", read=ACTIVATIONS),
    "init_values": says(
        "layer_scale",
        read=lambda value, config: value if _has_eva_blocks(config) else value or None,
        write=_initial_scale,
    ),
    "class_token": says("class_token", default=False),
    "reg_tokens": says("register_tokens", default=0),
    "pos_embed": ConfigKey(
        _naflex_positions,
        default="learned",
        write=lambda model: _NAFLEX_TABLES.theirs(model.position_embedding),
    ),
    "rope_type": ConfigKey(
        _naflex_rotary,
        default="",
        write=lambda model: _NAFLEX_ROTARY.theirs(model.rotary),
    ),
    "rope_ref_feat_shape": read_by_another(
        UNSAID, write=lambda model: model.rotary_reference_grid
    ),
    "pre_norm": _VIT["pre_norm"],
    "final_norm": read_by_another(True, write=lambda model: model.final_norm),
    "fc_norm": ConfigKey(
        _norms_at_end, default="auto", write=lambda model: model.fc_norm
    ),
    "embed_norm_layer": _VIT["embed_norm_layer"],
    "embed_proj_type": must_be("linear"),
    "patchify_channels_last": must_be(True),
    **says_nothing(
        *("pos_embed_grid_size", "pos_embed_interp_mode", "pos_embed_ar_preserving"),
        *("pos_embed_antialias", "pos_embed_align_corners"),
        *("pos_embed_use_grid_sample", "use_key_only_attn_mask", "weight_init"),
        *("enable_patch_interpolator", "fix_init"),
    ),
    "pool_include_prefix": read_by_another(
        False, write=lambda model: model.pooling == "map" and model.class_token
    ),
}
_RESNET: Keys = {
    "layers": says("blocks", read=lambda value, _: tuple(value)),
    "width_factor": says("width_factor"),
    "in_chans": says("channels", default=3),
    "num_classes": says("classes", default=1000, read=lambda value, _: value or None),
    "conv_layer": ConfigKey(
        lambda value, config: must_be("StdConv2d").read(_name(value), config)
    ),
    "stem_type": must_be("fixed"),
    "global_pool": read_by_another("avg"),
    **says_nothing("drop_rate", "drop_path_rate", "device", "dtype"),
}
_BEIT: Keys = {
    **_COMMON,
    "global_pool": read_by_another("avg", write=lambda model: model.pooling or ""),
    "qkv_bias": ConfigKey(_biases, default=True, write=lambda m: m.query_bias),
    "swiglu_mlp": says("swiglu", default=False),
    "scale_mlp": says("mlp_norm", default=False),
    "init_values": says(
        "layer_scale",
        default=0,
        read=lambda value, _: value or None,
        write=lambda model: _initial_scale(model) or 0,
    ),
    "use_abs_pos_emb": says("position_embedding", default=True, read=_learned),
    "use_rel_pos_bias": says(
        "relative_bias", default=False, read=OneOf({True: "every_layer", False: None})
    ),
    "use_shared_rel_pos_bias": must_be(False),
    "use_fc_norm": ConfigKey(
        _norms_of_eva, default="auto", write=lambda model: model.fc_norm
    ),
}
KEYS: Mapping[str, Keys] = {
    "VisionTransformer": _VIT,
    "VisionTransformerDistilled": _VIT,
    "Eva": _EVA,
    "Beit": _BEIT,
    "NaFlexVit": _NAFLEX,
    "ResNetV2": _RESNET,
}
# What a class has that no argument of its says.
ALWAYS: Mapping[str, dict[str, JSON]] = {
    "VisionTransformerDistilled": {"distilled": True, "register_tokens": 1},
    "Eva": {"gelu": "exact", "output_bias": True, "mlp_bias": True},
    "Beit": {"gelu": "exact", "class_token": True, "register_tokens": 0},
}


def architecture_of(config: Config) -> str | None:
    """Name of the architecture in a `config.json`, without the weights' tag."""
    name = config.get("architecture")
    return name.partition(".")[0] if isinstance(name, str) else None


def arguments_of(config: Config) -> Config:
    """The class's arguments that a `config.json` gives, or its architecture."""
    return {k: v for _, part in reversed(parts_of(config)) for k, v in part.items()}


def parts_of(config: Config) -> list[tuple[str, Config]]:
    """What gives the arguments of the class, as `read_config` takes it."""
    name = architecture_of(config) or ""
    # `global_pool` beside it is information, by which timm builds nothing.
    top = {key: config[key] for key in ("num_classes",) if key in config}
    own = {k: v for k, v in architectures()[name].items() if k != "class"}
    return [
        ("`model_args.{}`", config.get("model_args") or {}),
        ("`{}`", top),
        (f"`{{}}` of timm's {name!r}", own),
    ]


def stated(path: object, config: Config) -> dict[str, Stated]:
    """Options that a `config.json` states, and the architecture that it names."""
    name = architecture_of(config) or ""
    kind = architectures()[name]["class"]
    always = ALWAYS.get(kind, {})
    return {
        **read_config(path, KEYS[kind], parts_of(config)),
        **{k: Stated(value, f"timm's {name!r}") for k, value in always.items()},
    }


@functools.cache
def options_of_architectures() -> tuple[tuple[str, dict[str, JSON]], ...]:
    """Class and our options of each ViT's architecture that has a model here."""
    found = []
    for name, arguments in architectures().items():
        if arguments["class"] in KEYS.keys() - {"ResNetV2"}:
            with contextlib.suppress(WeightsFileError):
                options = stated(name, {"architecture": name})
                values = {key: each.value for key, each in options.items()}
                found.append((arguments["class"], {"rotary": None, **values}))
    return tuple(found)
