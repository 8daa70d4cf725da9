"""Hugging Face's DINOv2 and DINOv3.

Source: huggingface/transformers, models/dinov2, dinov2_with_registers, dinov3_vit.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import (
    UNSAID,
    Config,
    ConfigKey,
    Keys,
    OneOf,
    Stated,
    read_by_another,
    says,
    says_nothing,
)
from keras_vit.weights.families.family import GELUS, SILUS
from keras_vit.weights.families.hugging_face import (
    ANY_CONFIG,
    RENAMED_ATTENTION,
    HuggingFaceFamily,
    attention,
)
from keras_vit.weights.families.layouts import (
    CONVOLUTION,
    LINEAR,
    ArrayRow,
    affine,
    norm,
    row,
)
from keras_vit.weights.reading import ArrayFile

if TYPE_CHECKING:
    from keras_vit.base import ImageModel


def _dinov2_block() -> tuple[ArrayRow, ...]:
    theirs, ours = "encoder.layer.{i}", "encoder_block_{i}"
    rows = [*attention(f"{theirs}.attention", f"{ours}/attention")]
    for number in ("1", "2"):
        scale = f"layer_scale{number}"
        rows += norm(f"{theirs}.norm{number}.", f"{ours}/norm{number}")
        rows.append(row(f"{theirs}.{scale}.lambda1", f"{ours}/{scale}/gamma"))
    # The names of a GELU's layers, and of a SwiGLU's.
    for first, second in (("fc1", "fc2"), ("weights_in", "weights_out")):
        rows += affine(f"{theirs}.mlp.{first}.", f"{ours}/mlp/Dense_0", LINEAR)
        rows += affine(f"{theirs}.mlp.{second}.", f"{ours}/mlp/Dense_1", LINEAR)
    return tuple(rows)


DINOV2 = (
    *affine("embeddings.patch_embeddings.projection.", "embedding", CONVOLUTION),
    row("embeddings.cls_token", "class_token/token"),
    row("embeddings.register_tokens", "register_tokens/tokens"),
    row("embeddings.position_embeddings", "position_embedding/embedding"),
    *_dinov2_block(),
    *norm("layernorm.", "encoder_norm"),
)


def _gated(value: JSON, config: Config) -> dict[str, JSON]:
    """`use_swiglu_ffn`, and the hidden width that DINOv2's class gives its MLP."""
    hidden = int(config["hidden_size"] * config["mlp_ratio"])
    if value:
        hidden = (hidden * 2 // 3 + 7) // 8 * 8
    return {"swiglu": bool(value), "mlp_dim": hidden}


def _ungated_gelu(value: JSON, config: Config) -> JSON:
    """A SwiGLU does not read `hidden_act`."""
    return UNSAID if config["use_swiglu_ffn"] else OneOf(GELUS)(value, config)


def _ratio(model: "ImageModel") -> int:
    """`mlp_ratio`, an integer, of which the class makes the model's hidden width."""
    for ratio in range(1, model.mlp_dim + 1):
        config = {"hidden_size": model.width, "mlp_ratio": ratio}
        if _gated(model.swiglu, config)["mlp_dim"] == model.mlp_dim:
            return ratio
    raise ValueError("an mlp_dim that an integer times the width gives")


DINOV2_CONFIG: Keys = {
    **ANY_CONFIG,
    "patch_size": says("patch_size", default=14),
    "hidden_size": says("width", default=768),
    "num_hidden_layers": says("depth", default=12),
    "num_attention_heads": says("heads", default=12),
    "mlp_ratio": read_by_another(4, write=_ratio),
    "num_channels": says("channels", default=3),
    "hidden_act": says(
        "gelu",
        default="gelu",
        read=_ungated_gelu,
        write=lambda model: "silu" if model.swiglu else OneOf(GELUS).theirs(model.gelu),
    ),
    "layer_norm_eps": says("norm_epsilon", default=1e-6),
    "qkv_bias": says("query_bias", "key_bias", "value_bias", default=True),
    "layerscale_value": says("layer_scale", default=1.0),
    "use_swiglu_ffn": ConfigKey(
        _gated, default=False, write=lambda model: model.swiglu
    ),
    "num_register_tokens": says("register_tokens", default=0),
    **says_nothing("intermediate_size"),
}


class HuggingFaceDINOv2(HuggingFaceFamily):
    """DINOv2, with and without registers."""

    title = "Hugging Face DINOv2"
    mark = "encoder.layer.0.layer_scale1.lambda1"
    rows = DINOV2
    assumed: ClassVar = {"gelu": "exact"}
    ignored = r"embeddings\.mask_token"
    holds = frozenset(
        (
            *("gelu", "norm_epsilon", "query_bias", "key_bias", "value_bias"),
            *("layer_scale", "swiglu", "register_tokens", "prefix_positions"),
        )
    )
    second_classifiers = ("classifier.",)
    second_classifier = "classifier, of class token and mean of the patches at once,"
    model_types = ("dinov2", "dinov2_with_registers")
    bare_class = "Dinov2Model"
    prefix = "dinov2|dinov2_with_registers"
    new_names = RENAMED_ATTENTION
    keys = DINOV2_CONFIG

    def documents(self, model: "ImageModel") -> dict[str, JSON]:
        """Those of the class with registers, where there are any."""
        documents = super().documents(model)
        config = documents["config.json"]
        if model.register_tokens:
            config["model_type"] = "dinov2_with_registers"
            config["architectures"] = ["Dinov2WithRegistersModel"]
        else:
            del config["num_register_tokens"]
        return documents

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the config states; the classifier's is not our model's."""
        stated = super().stated(file)
        stated.pop("classes", None)
        return stated

    def written_rows(self, model: "ImageModel") -> tuple[ArrayRow, ...]:
        """Those of a GELU's layers, or of a SwiGLU's."""
        others = (".fc1.", ".fc2.") if model.swiglu else (".weights_",)
        rows = (r for r in self.rows if not any(name in r.theirs for name in others))
        return tuple(rows)

    def refusals(self, model: "ImageModel") -> list[str]:
        """Registers have no positions."""
        found = super().refusals(model)
        if model.register_tokens and model.prefix_positions:
            found.append("prefix_positions must be False with register tokens")
        return found

    def prefix_positions(self, prefix: int) -> tuple[int, ...]:
        """Registers come in after the positions are added."""
        return (1,)


def _dinov3_block() -> tuple[ArrayRow, ...]:
    theirs, ours = "layer.{i}", "encoder_block_{i}"
    rows: list[ArrayRow] = []
    for letter, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out")):
        layer = f"{theirs}.attention.{letter}_proj."
        rows += affine(layer, f"{ours}/attention/{name}", LINEAR)
    for number in ("1", "2"):
        scale = f"layer_scale{number}"
        rows += norm(f"{theirs}.norm{number}.", f"{ours}/norm{number}")
        rows.append(row(f"{theirs}.{scale}.lambda1", f"{ours}/{scale}/gamma"))
    return tuple(rows)


def _dinov3(gated: bool) -> tuple[ArrayRow, ...]:
    """Rows of a model whose MLPs have a gate or not: both call a layer `up_proj`."""
    theirs, ours = "layer.{i}.mlp", "encoder_block_{i}/mlp"
    hidden = f"{ours}/Dense_0"
    first: list[ArrayRow] = []
    if gated:
        first += affine(f"{theirs}.gate_proj.", hidden, LINEAR, half=0)
    first += affine(f"{theirs}.up_proj.", hidden, LINEAR, half=1 if gated else None)
    return (
        *affine("embeddings.patch_embeddings.", "embedding", CONVOLUTION),
        row("embeddings.cls_token", "class_token/token"),
        row("embeddings.register_tokens", "register_tokens/tokens"),
        *_dinov3_block(),
        *first,
        *affine(f"{theirs}.down_proj.", f"{ours}/Dense_1", LINEAR),
        *norm("norm.", "encoder_norm"),
    )


def _gate(value: JSON, config: Config) -> dict[str, JSON]:
    """`use_gated_mlp`: a SwiGLU, whose activation `hidden_act` must be."""
    names = dict.fromkeys(SILUS, None) if value else GELUS
    activation = OneOf(names)(config["hidden_act"], config)
    return {"swiglu": bool(value), **({} if value else {"gelu": activation})}


DINOV3_CONFIG: Keys = {
    **ANY_CONFIG,
    "patch_size": says("patch_size", default=16),
    "hidden_size": says("width", default=384),
    "intermediate_size": says("mlp_dim", default=1536),
    "num_hidden_layers": says("depth", default=12),
    "num_attention_heads": says("heads", default=6),
    "num_channels": says("channels", default=3),
    "hidden_act": read_by_another(
        "gelu",
        write=lambda model: "silu" if model.swiglu else OneOf(GELUS).theirs(model.gelu),
    ),
    "layer_norm_eps": says("norm_epsilon", default=1e-5),
    "rope_theta": says("rotary_temperature", default=100.0),
    "query_bias": says("query_bias", default=True),
    "key_bias": says("key_bias", default=False),
    "value_bias": says("value_bias", default=True),
    "proj_bias": says("output_bias", default=True),
    "mlp_bias": says("mlp_bias", default=True),
    "layerscale_value": says("layer_scale", default=1.0),
    "use_gated_mlp": ConfigKey(_gate, default=False, write=lambda m: m.swiglu),
    "num_register_tokens": says("register_tokens", default=0),
    "pos_embed_shift": says("rotary_shift"),
    "pos_embed_jitter": says("rotary_jitter"),
    "pos_embed_rescale": says("rotary_rescale"),
}


class HuggingFaceDINOv3(HuggingFaceFamily):
    """DINOv3's ViTs, whose MLPs have no gate."""

    title = "Hugging Face DINOv3"
    mark = "layer.0.layer_scale1.lambda1"
    rows = _dinov3(gated=False)
    ignored = r"embeddings\.mask_token"
    configured: ClassVar = ("gelu", "heads", "norm_epsilon", "rotary_temperature")
    always: ClassVar = {
        "rotary": "centered",
        "rotary_pairing": "halves",
        "rotary_axes": "yx",
        "position_embedding": "none",
    }
    assumed: ClassVar = {
        "gelu": "exact",
        "norm_epsilon": 1e-5,
        "rotary_temperature": 100.0,
    }
    holds = frozenset(
        (
            *("gelu", "norm_epsilon", "query_bias", "key_bias", "value_bias"),
            *("output_bias", "mlp_bias", "layer_scale", "swiglu", "register_tokens"),
            *("rotary", "rotary_pairing", "rotary_axes", "rotary_temperature"),
            *("position_embedding", "prefix_positions"),
        )
    )
    gated: ClassVar[bool] = False
    model_types = ("dinov3_vit",)
    bare_class = "DINOv3ViTModel"
    prefix = "model|dinov3_vit"
    new_names = ()
    keys = DINOV3_CONFIG

    def refusals(self, model: "ImageModel") -> list[str]:
        """Its MLPs have a gate or not."""
        found = super().refusals(model)
        if model.swiglu != self.gated:
            found.append(f"swiglu must be {self.gated}")
        return found

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the bare model, whose blocks may be in a `model` of its own."""
        inside = super().model_names(names)
        return {bare.removeprefix("model."): name for bare, name in inside.items()}


class HuggingFaceGatedDINOv3(HuggingFaceDINOv3):
    """DINOv3's ViTs with SwiGLUs."""

    title = "Hugging Face DINOv3 with SwiGLU"
    mark = "layer.0.mlp.gate_proj.weight"
    gated = True
    rows = _dinov3(gated=True)
