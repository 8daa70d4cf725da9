"""Hugging Face's BEiT and Data2VecVision.

Source: huggingface/transformers, models/beit, data2vec.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from keras_vit.errors import WeightsFileError
from keras_vit.specs import image_size_pair
from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import (
    Config,
    ConfigKey,
    Keys,
    OneOf,
    Stated,
    read_by_another,
    says,
    says_nothing,
)
from keras_vit.weights.families.hugging_face import (
    RENAMED_ATTENTION,
    VIT_CONFIG,
    HuggingFaceFamily,
    block,
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

_TABLE = "relative_position_bias.relative_position_bias_table"
_OURS = "encoder_block_{i}"
BEIT: tuple[ArrayRow, ...] = (
    *affine("embeddings.patch_embeddings.projection.", "embedding", CONVOLUTION),
    row("embeddings.cls_token", "class_token/token"),
    row("embeddings.position_embeddings", "position_embedding/embedding"),
    *block(),
    row("encoder.layer.{i}.lambda_1", f"{_OURS}/layer_scale1/gamma"),
    row("encoder.layer.{i}.lambda_2", f"{_OURS}/layer_scale2/gamma"),
    row(
        f"encoder.layer.{{i}}.attention.attention.{_TABLE}",
        f"{_OURS}/attention/relative_bias",
    ),
    row(f"encoder.{_TABLE}", "relative_bias/table"),
    *norm("layernorm.", "encoder_norm"),
    *norm("pooler.layernorm.", "fc_norm"),
    *affine("classifier.", "head", LINEAR),
)


def _relative_bias(value: JSON, config: Config) -> dict[str, JSON]:
    """The two keys about tables of relative positions, of which one may be true."""
    if value and config["use_relative_position_bias"]:
        raise ValueError("false where use_relative_position_bias is true")
    if value:
        return {"relative_bias": "shared"}
    own = config["use_relative_position_bias"]
    return {"relative_bias": "every_layer" if own else None}


BEIT_CONFIG: Keys = {
    **{name: key for name, key in VIT_CONFIG.items() if name != "qkv_bias"},
    "layer_scale_init_value": says(
        "layer_scale",
        default=0.1,
        read=lambda value, _: value or None,
        write=lambda model: model.layer_scale or 0,
    ),
    "use_absolute_position_embeddings": says(
        "position_embedding",
        default=False,
        read=OneOf({True: "learned_1d", False: "none"}),
    ),
    "use_relative_position_bias": read_by_another(
        False, write=lambda model: model.relative_bias == "every_layer"
    ),
    "use_shared_relative_position_bias": ConfigKey(
        _relative_bias,
        default=False,
        write=lambda model: model.relative_bias == "shared",
    ),
    "use_mean_pooling": says("fc_norm", default=True),
    **says_nothing(
        *("vocab_size", "pool_scales", "use_auxiliary_head", "auxiliary_loss_weight"),
        *("auxiliary_channels", "auxiliary_num_convs", "auxiliary_concat_input"),
        *("semantic_loss_ignore_index", "add_fpn"),
    ),
}


def _check_square(file: ArrayFile, stated: Mapping[str, Stated]) -> None:
    """Raise WeightsFileError where transformers transposes the tables."""
    height, width = image_size_pair(file.config.get("image_size") or 224)
    if "relative_bias" in stated and stated["relative_bias"].value and height != width:
        raise WeightsFileError(
            "The images of a BEiT with tables of relative positions must be square, as "
            "transformers takes rows for columns. Received: "
            f"image_size={[height, width]} in the config of {str(file.path)!r}"
        )


class HuggingFaceBEiT(HuggingFaceFamily):
    """BEiT and BEiT v2."""

    title = "Hugging Face BEiT"
    mark = "encoder.layer.0.lambda_1"
    rows = BEIT
    ignored = (
        r"embeddings\.mask_token|lm_head\..*|(decode|auxiliary)_head\..*|fpn.*|"
        r".*relative_position_index"
    )
    always: ClassVar = {"query_bias": True, "key_bias": False, "value_bias": True}
    assumed: ClassVar = {"gelu": "exact", "norm_epsilon": 1e-12}
    model_types = ("beit",)
    bare_class = "BeitModel"
    classifier_class = "BeitForImageClassification"
    pools = ("avg", "token", None)
    prefix = "beit|data2vec_vision"
    new_names = (
        *RENAMED_ATTENTION,
        (re.compile(r"^layers\.(\d+)\."), r"encoder.layer.\1."),
    )
    keys = BEIT_CONFIG
    holds = frozenset(
        (
            *("gelu", "norm_epsilon", "query_bias", "key_bias", "value_bias"),
            *("layer_scale", "position_embedding", "prefix_positions", "fc_norm"),
            *("final_norm", "relative_bias"),
        )
    )

    def refusals(self, model: "ImageModel") -> list[str]:
        """It normalizes after a mean, and before it takes the class token."""
        found = super().refusals(model)
        height, width = model.image_size
        if model.relative_bias is not None and height != width:
            found.append("image_size must be square where there is a relative_bias")
        if model.layer_scale is None:
            found.append("layer_scale must not be None")
        if model.fc_norm != (model.pooling == "avg"):
            found.append("fc_norm must be true where pooling='avg', and only there")
        return found

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the config states; some classes have their last norm elsewhere."""
        stated = super().stated(file)
        _check_square(file, stated)
        if stated:
            stated["final_norm"] = Stated(True, "`architectures`")
        kinds = file.config.get("architectures") or ()
        if any("ForMaskedImageModeling" in kind for kind in kinds):
            stated["fc_norm"] = Stated(False, "`architectures`")
        return stated


class HuggingFaceData2Vec(HuggingFaceBEiT):
    """Data2VecVision, whose last norm belongs to a pooler that bare models lack."""

    title = "Hugging Face Data2VecVision"
    model_types = ("data2vec-vision",)
    bare_class = "Data2VecVisionModel"
    classifier_class = "Data2VecVisionForImageClassification"
    prefix = "data2vec_vision|beit"
    keys: ClassVar = {
        **BEIT_CONFIG,
        "use_mean_pooling": says(
            "fc_norm",
            default=True,
            write=lambda model: model.fc_norm or not model.final_norm,
        ),
    }

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the config states, and where the last norm is."""
        stated = super().stated(file)
        kinds = file.config.get("architectures") or ()
        if self.bare_class in kinds:
            after = stated["fc_norm"]
            stated["final_norm"] = Stated(not after.value, after.source)
            stated["fc_norm"] = Stated(False, "`architectures`")
        return stated
