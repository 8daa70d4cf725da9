"""keras-hub's DeiT, DINOv2 and DINOv3.

Source: keras-team/keras-hub, models/deit, dinov2, dinov3. The variables of one layer
have numbers alone, in the order in which the layer makes them, trainable ones first.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from keras_vit.errors import WeightsFileError
from keras_vit.typing import JSON, Array, Arrays
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
    DROPOUT,
    NAMES,
    KerasHubFamily,
    attention,
)
from keras_vit.weights.families.layouts import SAME, ArrayRow, affine, norm, row
from keras_vit.weights.reading import ArrayFile

if TYPE_CHECKING:
    from keras_vit.base import ImageModel

# Our `gelu` by the names that Keras has for it; some backbones know one more.
KERAS_GELUS = {"gelu": "exact", **dict.fromkeys(SILUS, "silu")}
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
    classifier = "DeiTImageClassifier"
    converter = "DeiTImageConverter"
    inside = "dei_t_backbone"
    block = "dei_t_encoder_block"
    keys: ClassVar = {
        **ANY_BACKBONE,
        "intermediate_dim": says("mlp_dim"),
        "use_mha_bias": says(*ATTENTION_BIASES, default=True),
        "layer_norm_epsilon": says("norm_epsilon", default=1e-6),
        **DROPOUT,
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
        row(_POSITIONS, "position_embedding/embedding"),
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


def _intermediate(model: "ImageModel") -> int:
    """`intermediate_dim`, of which the class makes the model's hidden width."""
    hidden: int = model.mlp_dim
    if model.swiglu and hidden % 8:
        raise ValueError("a SwiGLU's mlp_dim that is a multiple of 8")
    return hidden * 3 // 2 if model.swiglu else hidden


_POSITIONS = "layers/dinov2_embedding/positions"
_OTHER_POSITIONS = "layers/dinov2_embedding/other_positions"


class KerasHubDINOv2(_KerasHubDINO):
    """DINOv2, with and without registers, at the size of its images.

    The file has the positions twice: for `image_shape`, which the model computed with
    and which are read here, and for `position_embedding_shape`, from which keras-hub
    resamples them again when it loads the file. The two are written with one shape.
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
    converter = "DINOV2ImageConverter"
    square = True
    inside = "dinov2_backbone"
    block = "dinov2_layer"
    keys: ClassVar = {
        **_DINO,
        "intermediate_dim": read_by_another(UNSAID, write=_intermediate),
        "use_swiglu_ffn": ConfigKey(
            _swiglu, default=False, write=lambda model: model.swiglu
        ),
        "position_embedding_shape": read_by_another(
            (518, 518, 3), write=lambda model: [*model.image_size, model.channels]
        ),
        **says_nothing("dropout_rate", "antialias_in_interpolation"),
    }

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the model, those of its tokens in words."""
        inside = super().model_names(names)
        own = "layers/dinov2_embedding"
        words = _token_words(registers=f"{own}/vars/4" in inside)
        for number, word in enumerate(words, start=1):
            if (name := inside.pop(f"{own}/vars/{number}", None)) is not None:
                inside[f"{own}/{word}"] = name
        return inside

    def file_name(self, name: str, model: "ImageModel") -> str:
        """The number of a token that has a word inside the model."""
        own, _, word = name.rpartition("/")
        words = _token_words(registers=model.register_tokens > 0)
        if own == "layers/dinov2_embedding" and word in words:
            return f"{own}/vars/{words.index(word) + 1}"
        return super().file_name(name, model)

    def written_rows(self, model: "ImageModel") -> tuple[ArrayRow, ...]:
        """Those of a GELU's layers, or of a SwiGLU's."""
        others = ("/fc1/", "/fc2/") if model.swiglu else ("/weights_",)
        rows = (r for r in self.rows if not any(name in r.theirs for name in others))
        return tuple(rows)

    def further_arrays(self, arrays: Arrays, model: "ImageModel") -> Arrays:
        """The mask token, which no image shows, and the positions a second time."""
        mask = np.zeros((1, model.width), "float32")
        own = "layers/dinov2_embedding/"
        return {f"{own}mask": mask, _OTHER_POSITIONS: arrays[_POSITIONS]}

    def refusals(self, model: "ImageModel") -> list[str]:
        """Registers have no positions."""
        found = super().refusals(model)
        if model.register_tokens and model.prefix_positions:
            found.append("prefix_positions must be False with register tokens")
        return found

    def notes(self, file: ArrayFile) -> list[str]:
        """That its two tables of positions contradict each other.

        They do where a model was saved after training and the second table was not
        made anew of the first, or is of another grid, on the way to which and back
        details are lost.
        """
        names = self.model_names(file.arrays)
        if not {_POSITIONS, _OTHER_POSITIONS} <= names.keys():
            return []
        read, loaded = names[_POSITIONS], names[_OTHER_POSITIONS]
        ours = np.asarray(file.arrays[read].read(), "float32")
        theirs = _resampled(
            np.asarray(file.arrays[loaded].read(), "float32"),
            ours.shape[1],
            antialias=bool(self.config(file)[1].get("antialias_in_interpolation")),
        )
        distance = np.abs(ours - theirs).max() / max(np.abs(ours).max(), 1e-12)
        if distance < _SAME_POSITIONS:
            return []
        return [
            f"`{read}` and `{loaded}` contradict each other, by {distance:.1%} of the "
            "largest value: the model was saved with the first, which is read here, "
            "and keras-hub opens it with the second"
        ]

    def prefix_positions(self, prefix: int) -> tuple[int, ...]:
        """Registers come in after the positions are added."""
        return (1,)


# Part of the largest position by which the tables of one model differ: by rounding.
_SAME_POSITIONS = 1e-3


def _token_words(registers: bool) -> list[str]:
    """Words for the variables of a DINOv2's embedding behind the class token."""
    words = ["mask", "registers", "positions", "other_positions"]
    return words if registers else [word for word in words if word != "registers"]


def _resampled(positions: Array, tokens: int, antialias: bool) -> Array:
    """Positions [1, 1 + N, D] of another square grid, as keras-hub makes them."""
    if positions.shape[1] == tokens:
        return positions
    from keras import ops

    old, new = (math.isqrt(count - 1) for count in (positions.shape[1], tokens))
    token, patches = np.split(positions, [1], axis=1)
    resized = ops.image.resize(
        patches.reshape(1, old, old, -1),
        (new, new),
        interpolation="bicubic",
        antialias=antialias,
        data_format="channels_last",
    )
    image = ops.convert_to_numpy(resized).reshape(1, new * new, -1)
    return np.concatenate([token, image], axis=1)


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


def _hidden_activation(model: "ImageModel") -> JSON:
    return SILUS[0] if model.swiglu else OneOf(KERAS_GELUS).theirs(model.gelu)


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
    converter = "DINOV3ImageConverter"
    gated: ClassVar[bool] = False
    inside = "dinov3_backbone"
    block = "dinov3_layer"
    keys: ClassVar = {
        **_DINO,
        "intermediate_dim": says("mlp_dim"),
        "num_register_tokens": says("register_tokens", default=4),
        "hidden_activation": read_by_another("gelu", write=_hidden_activation),
        "use_gated_mlp": ConfigKey(
            _gate, default=False, write=lambda model: model.swiglu
        ),
        "use_query_bias": says("query_bias", default=True),
        "use_key_bias": says("key_bias", default=True),
        "use_value_bias": says("value_bias", default=True),
        "use_proj_bias": says("output_bias", default=True),
        "use_mlp_bias": says("mlp_bias", default=True),
        "layer_norm_eps": says("norm_epsilon", default=1e-5),
        "rope_theta": says("rotary_temperature", default=100.0),
        **says_nothing("attention_dropout"),
    }

    def refusals(self, model: "ImageModel") -> list[str]:
        """Its MLPs have a gate or not."""
        found = super().refusals(model)
        if model.swiglu != self.gated:
            found.append(f"swiglu must be {self.gated}")
        return found

    def further_arrays(self, arrays: Arrays, model: "ImageModel") -> Arrays:
        """The mask token, which no image shows."""
        mask = np.zeros((1, 1, model.width), "float32")
        return {"layers/dinov3_embedding/vars/1": mask}


class KerasHubGatedDINOv3(KerasHubDINOv3):
    """DINOv3's ViTs with SwiGLUs."""

    title = "keras-hub DINOv3 with SwiGLU"
    mark = "layers/dinov3_encoder/layers/dinov3_layer_0/mlp/gate_proj/vars/0"
    rows = _dinov3(gated=True)
    gated = True
