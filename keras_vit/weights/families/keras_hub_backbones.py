"""keras-hub's DeiT, DINOv2 and DINOv3.

Source: keras-team/keras-hub, models/deit, dinov2, dinov3. The variables of one layer
have numbers alone, in the order in which the layer makes them, trainable ones first.
"""

from collections.abc import Iterable
from typing import ClassVar

from keras_vit.errors import WeightsFileError
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
    says,
    says_nothing,
)
from keras_vit.weights.families.family import SILUS
from keras_vit.weights.families.keras_hub import (
    ANY_BACKBONE,
    ATTENTION_BIASES,
    NAMES,
    KerasHubFamily,
    attention,
)
from keras_vit.weights.families.layouts import SAME, ArrayRow, affine, norm, row
from keras_vit.weights.reading import ArrayFile

# Our `gelu` by the names that Keras and keras-hub have for it.
KERAS_GELUS = {
    "gelu": "exact",
    "gelu_approximate": "tanh",
    "quick_gelu": "quick",
    **dict.fromkeys(SILUS, "silu"),
}
_OURS = "encoder_block_{i}"


def _deit() -> tuple[ArrayRow, ...]:
    embeddings, encoder = "layers/dei_t_embeddings", "layers/dei_t_encoder"
    theirs = f"{encoder}/encoder_layers/dei_t_encoder_block_{{i}}"
    return (
        *affine(f"{embeddings}/patch_embedding/", "embedding", SAME, NAMES),
        row(f"{embeddings}/vars/0", "class_token/token"),
        row(f"{embeddings}/vars/1", "register_tokens/tokens"),
        row(f"{embeddings}/vars/2", "position_embedding/embedding"),
        *norm(f"{theirs}/layer_norm_1/", f"{_OURS}/norm1", NAMES),
        *attention(f"{theirs}/mha", f"{_OURS}/attention"),
        *norm(f"{theirs}/layer_norm_2/", f"{_OURS}/norm2", NAMES),
        *affine(f"{theirs}/mlp/dense/", f"{_OURS}/mlp/Dense_0", SAME, NAMES),
        *affine(f"{theirs}/output_layer/dense/", f"{_OURS}/mlp/Dense_1", SAME, NAMES),
        *norm(f"{encoder}/layer_norm/", "encoder_norm", NAMES),
        *affine("predictions/", "head", SAME, NAMES),
    )


class KerasHubDeiT(KerasHubFamily):
    """DeiT, whose distillation token has no classifier of its own here."""

    title = "keras-hub DeiT"
    mark = "layers/dei_t_embeddings/patch_embedding/vars/0"
    rows = _deit()
    always: ClassVar = {"gelu": "exact", "class_token": True, "register_tokens": 1}
    holds = frozenset(
        (
            *("gelu", "norm_epsilon", *ATTENTION_BIASES, "class_token"),
            *("register_tokens", "prefix_positions"),
        )
    )
    configured = ("norm_epsilon", "pooling")
    backbone = "DeiTBackbone"
    inside = "dei_t_backbone"
    block = "dei_t_encoder_block"
    keys: ClassVar = {
        **ANY_BACKBONE,
        "intermediate_dim": says("mlp_dim"),
        "use_mha_bias": says(*ATTENTION_BIASES, default=True),
        "layer_norm_epsilon": says("norm_epsilon", default=1e-6),
        **says_nothing("dropout_rate", "attention_dropout"),
    }


# What both have. Without a mask token the other variables have other numbers.
_DINO: Keys = {
    **ANY_BACKBONE,
    "layer_scale_init_value": says("layer_scale", default=1.0),
    "num_register_tokens": says("register_tokens", default=0),
    "use_mask_token": must_be(True, default=True),
    **says_nothing("drop_path_rate", "apply_layernorm"),
}


def _dino_block(theirs: str) -> tuple[ArrayRow, ...]:
    """Norms and LayerScale of a block."""
    rows: list[ArrayRow] = []
    for number in ("1", "2"):
        scale = f"layer_scale{number}"
        rows += norm(f"{theirs}/norm{number}/", f"{_OURS}/norm{number}", NAMES)
        rows.append(row(f"{theirs}/{scale}/vars/0", f"{_OURS}/{scale}/gamma"))
    return tuple(rows)


class _KerasHubDINO(KerasHubFamily):
    """DINOv2 or DINOv3."""

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the config states, which alone tells mask token and registers apart."""
        if not file.config:
            raise WeightsFileError(
                f"A {self.title} must have its config.json beside it. "
                f"Received: {str(file.path)!r}, without one"
            )
        return super().stated(file)


def _dinov2() -> tuple[ArrayRow, ...]:
    embedding = "layers/dinov2_embedding"
    theirs = "layers/dinov2_encoder/layers/dinov2_layer_{i}"
    rows = [
        *affine(f"{embedding}/patch_embeddings/projection/", "embedding", SAME, NAMES),
        row(f"{embedding}/vars/0", "class_token/token"),
        row(f"{embedding}/registers", "register_tokens/tokens"),
        row(f"{embedding}/positions", "position_embedding/embedding"),
        *_dino_block(theirs),
        *attention(f"{theirs}/attention/attention", f"{_OURS}/attention"),
        *norm("layers/layer_normalization/", "encoder_norm", NAMES),
    ]
    # The names of a GELU's layers, and of a SwiGLU's.
    for first, second in (("fc1", "fc2"), ("weights_in", "weights_out")):
        rows += affine(f"{theirs}/mlp/{first}/", f"{_OURS}/mlp/Dense_0", SAME, NAMES)
        rows += affine(f"{theirs}/mlp/{second}/", f"{_OURS}/mlp/Dense_1", SAME, NAMES)
    return tuple(rows)


def _swiglu(value: JSON, config: Config) -> dict[str, JSON]:
    """`use_swiglu_ffn`, and the hidden width that its class gives it."""
    hidden = config["intermediate_dim"]
    if value:
        hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
    return {"swiglu": bool(value), "mlp_dim": hidden}


class KerasHubDINOv2(_KerasHubDINO):
    """DINOv2, with and without registers, at the size of its images.

    The file has the positions twice: for `image_shape`, which the model computes with
    and which are read here, and for `position_embedding_shape`, from which keras-hub
    resamples them again when it loads the file.
    """

    title = "keras-hub DINOv2"
    mark = "layers/dinov2_embedding/patch_embeddings/projection/vars/0"
    rows = _dinov2()
    ignored = r"layers/dinov2_embedding/(mask|other_positions)"
    always: ClassVar = {"gelu": "exact", "norm_epsilon": 1e-6}
    holds = frozenset(
        (
            *("gelu", "norm_epsilon", "layer_scale", "swiglu", "register_tokens"),
            "prefix_positions",
        )
    )
    backbone = "DINOV2Backbone"
    inside = "dinov2_backbone"
    block = "dinov2_layer"
    keys: ClassVar = {
        **_DINO,
        "intermediate_dim": read_by_another(UNSAID),
        "use_swiglu_ffn": ConfigKey(_swiglu, default=False),
        **says_nothing(
            *("dropout_rate", "position_embedding_shape"),
            "antialias_in_interpolation",
        ),
    }

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the model, those of its tokens in words."""
        inside = super().model_names(names)
        own = "layers/dinov2_embedding/"
        numbers = sorted(bare for bare in inside if bare.startswith(f"{own}vars/"))
        words = ["mask", "registers", "positions", "other_positions"]
        if len(numbers) < 5:
            words.remove("registers")
        for number, word in zip(numbers[1:], words, strict=False):
            inside[f"{own}{word}"] = inside.pop(number)
        return inside

    def prefix_positions(self, prefix: int) -> tuple[int, ...]:
        """Registers come in after the positions are added."""
        return (1,)


def _dinov3(gated: bool) -> tuple[ArrayRow, ...]:
    """Rows of a model whose MLPs have a gate or not: both call a layer `up_proj`."""
    embedding = "layers/dinov3_embedding"
    theirs = "layers/dinov3_encoder/layers/dinov3_layer_{i}"
    rows = [
        *affine(f"{embedding}/patch_embeddings/projection/", "embedding", SAME, NAMES),
        row(f"{embedding}/vars/0", "class_token/token"),
        row(f"{embedding}/vars/2", "register_tokens/tokens"),
        *_dino_block(theirs),
        *norm("layers/layer_normalization/", "encoder_norm", NAMES),
        *affine(f"{theirs}/mlp/down_proj/", f"{_OURS}/mlp/Dense_1", SAME, NAMES),
    ]
    for their_name, name in (
        *(("query", "query"), ("key", "key"), ("value", "value")),
        ("output", "out"),
    ):
        dense = f"{theirs}/attention/{their_name}_dense/"
        rows += affine(dense, f"{_OURS}/attention/{name}", SAME, NAMES)
    first = f"{_OURS}/mlp/Dense_0"
    if gated:
        rows += affine(f"{theirs}/mlp/gate_proj/", first, SAME, NAMES, half=0)
    rows += affine(
        f"{theirs}/mlp/up_proj/", first, SAME, NAMES, half=1 if gated else None
    )
    return tuple(rows)


def _gate(value: JSON, config: Config) -> dict[str, JSON]:
    """`use_gated_mlp`: a SwiGLU, whose activation `hidden_activation` must be."""
    names = dict.fromkeys(SILUS, None) if value else KERAS_GELUS
    activation = OneOf(names)(config["hidden_activation"], config)
    return {"swiglu": bool(value), **({} if value else {"gelu": activation})}


class KerasHubDINOv3(_KerasHubDINO):
    """DINOv3's ViTs, whose MLPs have no gate."""

    title = "keras-hub DINOv3"
    mark = "layers/dinov3_encoder/layers/dinov3_layer_0/layer_scale1/vars/0"
    rows = _dinov3(gated=False)
    ignored = r"layers/dinov3_embedding/vars/1"  # the mask token
    always: ClassVar = {
        "rotary": "centered",
        "rotary_pairing": "halves",
        "rotary_axes": "yx",
        "position_embedding": "none",
    }
    holds = frozenset(
        (
            *("gelu", "norm_epsilon", *ATTENTION_BIASES, "mlp_bias", "layer_scale"),
            *("swiglu", "register_tokens", "prefix_positions", "position_embedding"),
            *("rotary", "rotary_pairing", "rotary_axes", "rotary_temperature"),
        )
    )
    backbone = "DINOV3Backbone"
    inside = "dinov3_backbone"
    block = "dinov3_layer"
    keys: ClassVar = {
        **_DINO,
        "intermediate_dim": says("mlp_dim"),
        "num_register_tokens": says("register_tokens", default=4),
        "hidden_activation": read_by_another("gelu"),
        "use_gated_mlp": ConfigKey(_gate, default=False),
        "use_query_bias": says("query_bias", default=True),
        "use_key_bias": says("key_bias", default=True),
        "use_value_bias": says("value_bias", default=True),
        "use_proj_bias": says("output_bias", default=True),
        "use_mlp_bias": says("mlp_bias", default=True),
        "layer_norm_eps": says("norm_epsilon", default=1e-5),
        "rope_theta": says("rotary_temperature", default=100.0),
        **says_nothing("attention_dropout"),
    }


class KerasHubGatedDINOv3(KerasHubDINOv3):
    """DINOv3's ViTs with SwiGLUs."""

    title = "keras-hub DINOv3 with SwiGLU"
    mark = "layers/dinov3_encoder/layers/dinov3_layer_0/mlp/gate_proj/vars/0"
    rows = _dinov3(gated=True)
