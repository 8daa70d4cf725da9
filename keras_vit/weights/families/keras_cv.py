"""keras-cv's ViTs: weights and whole models, in Keras 2's HDF5.

Source: keras-team/keras-cv 0.9.0, models/legacy/vit.py.
"""

import re
from collections.abc import Iterable
from typing import ClassVar

from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import (
    Config,
    Keys,
    OneOf,
    Stated,
    read_config,
    says,
    says_nothing,
)
from keras_vit.weights.families.family import Family
from keras_vit.weights.families.keras_config import config_values
from keras_vit.weights.families.layouts import (
    HEADS_FIRST,
    HEADS_LAST,
    SAME,
    WITHOUT_BATCH,
    ArrayRow,
    affine,
    norm,
    row,
)
from keras_vit.weights.reading import ArrayFile

_AFFINE, _NORM = ("kernel", "bias"), ("gamma", "beta")
_PATCHES = "patching_and_embedding_0"


def _block() -> tuple[ArrayRow, ...]:
    theirs, ours = "transformer_encoder_{i}", "encoder_block_{i}"
    attention = f"{theirs}/multi_head_attention_0"
    rows: list[ArrayRow] = []
    for name in ("query", "key", "value"):
        rows += [
            row(
                f"{attention}/{name}/{part}",
                f"{ours}/attention/{name}/{part}",
                layout=HEADS_LAST,
            )
            for part in _AFFINE
        ]
    output = f"{attention}/attention_output/"
    return (
        *rows,
        *affine(output, f"{ours}/attention/out", HEADS_FIRST, _AFFINE),
        *norm(f"{theirs}/layer_normalization_0/", f"{ours}/norm1", _NORM),
        *norm(f"{theirs}/layer_normalization_1/", f"{ours}/norm2", _NORM),
        *affine(f"{theirs}/dense_0/", f"{ours}/mlp/Dense_0", SAME, _AFFINE),
        *affine(f"{theirs}/dense_1/", f"{ours}/mlp/Dense_1", SAME, _AFFINE),
    )


KERAS_CV = (
    *affine(f"{_PATCHES}/conv2d_0/", "embedding", SAME, _AFFINE),
    row(f"{_PATCHES}/class_token", "class_token/token"),
    row(
        f"{_PATCHES}/embedding_0/embeddings",
        "position_embedding/embedding",
        layout=WITHOUT_BATCH,
    ),
    *_block(),
    *norm("layer_normalization_0/", "encoder_norm", _NORM),
    *affine("dense_0/", "head", SAME, _AFFINE),
)

# Arguments of a `ViT`.
VIT: Keys = {
    "patch_size": says("patch_size"),
    "project_dim": says("width"),
    "transformer_layer_num": says("depth"),
    "num_heads": says("heads"),
    "mlp_dim": says("mlp_dim"),
    # Its blocks approximate this one.
    "activation": says("gelu", read=OneOf({"gelu": "tanh"})),
    "classifier_activation": says(
        "classifier_activation",
        read=lambda value, config: value if config["include_top"] else None,
    ),
    **says_nothing(
        *("include_rescaling", "include_top", "name", "input_shape", "input_tensor"),
        *("pooling", "num_classes", "mlp_dropout", "attention_dropout", "trainable"),
    ),
}

# From the last encoder block on, or from another layer; outside are models and groups.
_INSIDE = re.compile(
    r"(?:.*/)?((?:transformer_encoder|patching_and_embedding)(?:_\d+)?/.+):0"
    r"|(?:.*/)?((?:layer_normalization|dense)(?:_\d+)?/\w+):0"
)
_NUMBERED = re.compile(
    r"(transformer_encoder|patching_and_embedding|multi_head_attention"
    r"|layer_normalization|conv2d|embedding|dense)(?:_(\d+))?"
)


class KerasCV(Family):
    """keras-cv's ViTs."""

    project = "keras_cv"
    library = "keras-cv"
    title = "keras-cv ViT"
    mark = "transformer_encoder_0/multi_head_attention_0/query/kernel"
    rows = KERAS_CV
    poolings: ClassVar = {"token_pooling": "token", "avg": "avg"}

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the model, counted from 0 -> names in the file.

        There, layers of a class are numbered over all that their program has made.
        """
        inside = {}
        for name in names:
            match = _INSIDE.fullmatch(name)
            if match and not name.startswith("optimizer_weights/"):
                inside[tuple((match[1] or match[2]).split("/"))] = name
        numbers: dict[tuple[str, ...], list[int]] = {}
        for path in inside:
            for depth, part in enumerate(path[:-1]):
                if match := _NUMBERED.fullmatch(part):
                    found = numbers.setdefault((*path[:depth], match[1]), [])
                    found.append(int(match[2] or 0))

        def renumbered(path: tuple[str, ...]) -> str:
            parts = list(path)
            for depth, part in enumerate(path[:-1]):
                if match := _NUMBERED.fullmatch(part):
                    found = sorted(set(numbers[*path[:depth], match[1]]))
                    number = found.index(int(match[2] or 0))
                    parts[depth] = f"{match[1]}_{number}"
            return "/".join(parts)

        return {renumbered(path): name for path, name in inside.items()}

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """The model's arguments, in the file of a whole one."""
        config = _arguments(file)
        if not config:
            return {}
        return read_config(file.path, VIT, [("`{}` of a ViT", config)])

    def image_size(self, file: ArrayFile) -> JSON:
        """The height and width of `input_shape`."""
        return _arguments(file).get("input_shape", [])[:2]

    def pooling(self, file: ArrayFile) -> tuple[str | None, bool]:
        """The pooling of a model without classifier; `"avg"` is of all tokens."""
        return _arguments(file).get("pooling"), True

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, JSON]:
        """Nothing but the code states it."""
        return "the code of keras-cv", {}

    def preprocessing(
        self, config: dict[str, JSON], model: dict[str, JSON]
    ) -> dict[str, JSON]:
        """The layer's own defaults: it maps pixels to [-1, 1]."""
        return {}


def _arguments(file: ArrayFile) -> Config:
    """Arguments of the ViT in the file of a whole model; {} for weights."""
    for value in config_values(file):
        if "transformer_layer_num" in value and isinstance(value, dict):
            return value
    return {}
