"""vit-keras's checkpoints: whole models and weights, in the HDF5 of Keras 2 and 3.

Source: faustomorales/vit-keras 0.1.2 (Keras 2) and 0.2.0 (Keras 3).
"""

import re
from collections.abc import Iterable
from typing import ClassVar

from keras_vit.errors import WeightsFileError
from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import (
    Keys,
    Stated,
    read_config,
    says,
    says_nothing,
)
from keras_vit.weights.families.family import Family
from keras_vit.weights.families.keras_config import config_values
from keras_vit.weights.families.layouts import SAME, ArrayRow, affine, norm, row
from keras_vit.weights.reading import ArrayFile

# Arguments of a `TransformerBlock`.
BLOCK: Keys = {
    "num_heads": says("heads"),
    "mlp_dim": says("mlp_dim"),
    **says_nothing("name", "trainable", "dtype", "dropout"),
}
_DENSE, _NORM = ("kernel", "bias"), ("gamma", "beta")
_VARIABLES = ("vars/0", "vars/1")


def _block() -> tuple[ArrayRow, ...]:
    theirs, ours = "Transformer/encoderblock_{i}", "encoder_block_{i}"
    rows: list[ArrayRow] = []
    for name in ("query", "key", "value", "out"):
        dense = f"{theirs}/MultiHeadDotProductAttention_1/{name}/"
        rows += affine(dense, f"{ours}/attention/{name}", SAME, _DENSE)
    for name in ("Dense_0", "Dense_1"):
        rows += affine(f"{theirs}/{name}/", f"{ours}/mlp/{name}", SAME, _DENSE)
    return (
        *rows,
        *norm(f"{theirs}/LayerNorm_0/", f"{ours}/norm1", _NORM),
        *norm(f"{theirs}/LayerNorm_2/", f"{ours}/norm2", _NORM),
    )


VIT_KERAS = (
    *affine("embedding/", "embedding", SAME, _DENSE),
    row("class_token/cls", "class_token/token"),
    row("Transformer/posembed_input/pos_embedding", "position_embedding/embedding"),
    *_block(),
    *norm("Transformer/encoder_norm/", "encoder_norm", _NORM),
    *affine("pre_logits/", "pre_logits", SAME, _DENSE),
    *affine("head/", "head", SAME, _DENSE),
)


def _variables_block() -> tuple[ArrayRow, ...]:
    theirs, ours = "transformer_block_{i}", "encoder_block_{i}"
    rows: list[ArrayRow] = []
    for name, projection in (
        ("query_dense", "query"),
        ("key_dense", "key"),
        ("value_dense", "value"),
        ("combine_heads", "out"),
    ):
        attention = f"{ours}/attention/{projection}"
        rows += affine(f"{theirs}/att/{name}/", attention, SAME, _VARIABLES)
    for name, layer in (("dense", "Dense_0"), ("dense_1", "Dense_1")):
        dense = f"{theirs}/mlpblock/layers/{name}/"
        rows += affine(dense, f"{ours}/mlp/{layer}", SAME, _VARIABLES)
    for name in ("1", "2"):
        rows += norm(f"{theirs}/layernorm{name}/", f"{ours}/norm{name}", _VARIABLES)
    return tuple(rows)


VIT_KERAS_VARIABLES = (
    *affine("conv2d/", "embedding", SAME, _VARIABLES),
    row("class_token/vars/0", "class_token/token"),
    row("add_position_embs/vars/0", "position_embedding/embedding"),
    *_variables_block(),
    *norm("layer_normalization/", "encoder_norm", _VARIABLES),
    *affine("pre_logits/", "pre_logits", SAME, _VARIABLES),
    *affine("head/", "head", SAME, _VARIABLES),
)

# From the last layer of the model on: outside of it are the names of models and groups.
_INSIDE = re.compile(
    r"(?:.*/)?(?P<name>(?:embedding|class_token|pre_logits|head)/\w+"
    r"|Transformer[/_](?:posembed_input|encoderblock_\d+|encoder_norm)/.+?)(?::0)?"
)
# What Keras 3 adds to Keras 2's names.
_OF_KERAS_3 = (
    (re.compile(r"^Transformer_"), "Transformer/"),
    (re.compile(r"/MlpBlock_3/Transformer_encoderblock_\d+_"), "/"),
)


class ViTKeras(Family):
    """vit-keras's ViTs: whole models, and weights, by the names of their layers."""

    project = "vit_keras"
    library = "vit-keras"
    title = "vit-keras"
    mark = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/bias"
    rows = VIT_KERAS
    always: ClassVar = {"gelu": "exact"}

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the model, those of Keras 2 -> names in the file.

        The optimizer is left out, and layers that a user has put around the model.
        """
        inside = {}
        for name in names:
            match = _INSIDE.fullmatch(name)
            if match is None or name.startswith("optimizer_weights/"):
                continue
            bare = match["name"]
            for pattern, replacement in _OF_KERAS_3:
                bare = pattern.sub(replacement, bare)
            inside[bare] = name
        return inside

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the layers' configs state, in the file of a whole model."""
        layers = _layers(file)
        blocks = [config for kind, config in layers if kind == "TransformerBlock"]
        if not blocks:
            return {}
        parts = [("`{}` of a TransformerBlock", blocks[0])]
        stated = read_config(file.path, BLOCK, parts)
        stated["depth"] = Stated(len(blocks), "the number of TransformerBlocks")
        for name in ("num_heads", "mlp_dim"):
            if len(values := {config[name] for config in blocks}) > 1:
                raise WeightsFileError(
                    f"`{name}` must be the same in all blocks. Received: "
                    f"{sorted(values)} in the config of {str(file.path)!r}"
                )
        for _, config in layers:
            if config["name"] == "head" and config["activation"] != "linear":
                activation = Stated(config["activation"], "`activation` of the head")
                stated["classifier_activation"] = activation
        return stated

    def image_size(self, file: ArrayFile) -> JSON:
        """The height and width of the model's input."""
        for kind, config in _layers(file):
            if kind == "InputLayer":
                # The name of Keras 3, and of Keras 2.
                shape = config.get("batch_shape") or config["batch_input_shape"]
                return shape[1], shape[2]
        return None

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, JSON]:
        """Nothing but the code states it."""
        return "the code of vit-keras", {}

    def preprocessing(
        self, config: dict[str, JSON], model: dict[str, JSON]
    ) -> dict[str, JSON]:
        """The layer's own defaults: to [-1, 1], and bilinear without antialiasing."""
        return {}


class ViTKerasVariables(ViTKeras):
    """vit-keras's weights in Keras's newer HDF5, by the classes of their layers."""

    title = "vit-keras (.weights.h5)"
    mark = "transformer_block_0/att/query_dense/vars/1"
    rows = VIT_KERAS_VARIABLES

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the model, every block numbered -> names in the file.

        Dense layers are numbered: the last is the classifier, one before it is
        `pre_logits`.
        """
        names = list(names)
        token = next((n for n in names if n.endswith("/class_token/vars/0")), "")
        prefix = token.removesuffix("class_token/vars/0")
        two = f"{prefix}dense_1/vars/0" in names
        inside = {}
        for name in names:
            if not prefix or not name.startswith(prefix):
                continue
            bare = name.removeprefix(prefix)
            bare = re.sub(r"^dense/", "pre_logits/" if two else "head/", bare)
            bare = re.sub(r"^dense_1/", "head/", bare)
            inside[re.sub(r"^transformer_block/", "transformer_block_0/", bare)] = name
        return inside


def _layers(file: ArrayFile) -> list[tuple[str, dict[str, JSON]]]:
    """Class and config of each layer of the ViT in a whole model; [] for weights."""
    for value in config_values(file):
        if isinstance(value, list):
            layers = [v for v in value if isinstance(v, dict) and "class_name" in v]
            # Registered classes have a package in front.
            kinds = [layer["class_name"].rpartition(">")[2] for layer in layers]
            if "ClassToken" in kinds:
                configs = [layer["config"] for layer in layers]
                return list(zip(kinds, configs, strict=True))
    return []
