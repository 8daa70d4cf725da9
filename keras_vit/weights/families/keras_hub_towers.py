"""Image towers of keras-hub's CLIP and SigLIP.

Source: keras-team/keras-hub, models/clip, siglip. A preset of both towers has a
`vision_encoder` inside of its config; the text tower is left out.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from keras_vit.errors import WeightsFileError
from keras_vit.typing import Arrays
from keras_vit.weights.families.config_keys import (
    Config,
    OneOf,
    Stated,
    must_be,
    says,
    says_nothing,
)
from keras_vit.weights.families.keras_hub import (
    ANY_BACKBONE,
    NAMES,
    KerasHubFamily,
    attention,
)
from keras_vit.weights.families.keras_hub_backbones import KERAS_GELUS
from keras_vit.weights.families.layouts import (
    ONE_VECTOR,
    SAME,
    WITHOUT_BATCH,
    ArrayRow,
    affine,
    norm,
    row,
)
from keras_vit.weights.reading import ArrayFile

if TYPE_CHECKING:
    from keras_vit.base import ImageModel

_OURS = "encoder_block_{i}"


def _clip() -> tuple[ArrayRow, ...]:
    embedding, theirs = "layers/clip_vision_embedding", "layers/clip_encoder_layer_{i}"
    return (
        *affine(f"{embedding}/patch_embedding/", "embedding", SAME, NAMES),
        row(f"{embedding}/vars/0", "class_token/token", layout=ONE_VECTOR),
        row(
            f"{embedding}/position_embedding/vars/0",
            "position_embedding/embedding",
            layout=WITHOUT_BATCH,
        ),
        *norm("layers/layer_normalization/", "embedding_norm", NAMES),
        *norm(f"{theirs}/layer_norm_1/", f"{_OURS}/norm1", NAMES),
        *attention(f"{theirs}/attention", f"{_OURS}/attention"),
        *norm(f"{theirs}/layer_norm_2/", f"{_OURS}/norm2", NAMES),
        *affine(f"{theirs}/dense_1/", f"{_OURS}/mlp/Dense_0", SAME, NAMES),
        *affine(f"{theirs}/dense_2/", f"{_OURS}/mlp/Dense_1", SAME, NAMES),
        *norm("layers/layer_normalization_1/", "encoder_norm", NAMES),
        row("projection/vars/0", "projection/kernel"),
    )


def _siglip() -> tuple[ArrayRow, ...]:
    embedding = "layers/sig_lip_vision_embedding"
    theirs = "layers/sig_lip_encoder_layer_{i}"
    pooling = "layers/sig_lip_multi_head_attention_pooling"
    rows = [
        *affine(f"{embedding}/patch_embedding/", "embedding", SAME, NAMES),
        row(
            f"{embedding}/position_embedding/vars/0",
            "position_embedding/embedding",
            layout=WITHOUT_BATCH,
        ),
        *norm(f"{theirs}/layer_norm1/", f"{_OURS}/norm1", NAMES),
        *attention(f"{theirs}/self_attn", f"{_OURS}/attention"),
        *norm(f"{theirs}/layer_norm2/", f"{_OURS}/norm2", NAMES),
        *norm("layers/layer_normalization/", "encoder_norm", NAMES),
        row(f"{pooling}/vars/0", "attention_pooling/probe"),
        *attention(f"{pooling}/attention", "attention_pooling/attention"),
        *norm(f"{pooling}/layer_norm/", "attention_pooling/norm", NAMES),
    ]
    for mlp, ours in ((theirs, _OURS), (pooling, "attention_pooling")):
        rows += affine(f"{mlp}/mlp/fc1/", f"{ours}/mlp/Dense_0", SAME, NAMES)
        rows += affine(f"{mlp}/mlp/fc2/", f"{ours}/mlp/Dense_1", SAME, NAMES)
    return tuple(rows)


class _Tower(KerasHubFamily):
    """An image tower, by itself or beside a text tower.

    Attributes:
        two_towers: The class of the model with a text tower.
        projection: Name of the projection in that model's file, if it has one.
        position_ids: Name of the array of the numbers of the positions.
    """

    square = True
    two_towers: ClassVar[str]
    projection: ClassVar[str | None] = None
    position_ids: ClassVar[str]

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the tower, every block numbered -> names in the file."""
        names = [name for name in names if not name.startswith("optimizer/")]
        tower = f"layers/{self.inside}/"
        if not any(name.startswith(tower) for name in names):
            return {self.numbered(name): name for name in names}
        inside = {
            self.numbered(name.removeprefix(tower)): name
            for name in names
            if name.startswith(tower)
        }
        if self.projection in names:
            inside["projection/vars/0"] = self.projection
        return inside

    def notes(self, file: ArrayFile) -> list[str]:
        """Which of two towers the model is."""
        texts = [name for name in file.arrays if "_text_encoder/" in name]
        return ["a text tower beside it, which is left out"] if texts else []

    def opens(self, name: str) -> bool:
        """Whether it is the tower, or the model around it."""
        return name in (self.backbone, self.two_towers)

    def config(self, file: ArrayFile) -> tuple[str, Config]:
        """The tower's own config."""
        config = file.config["config"]
        if "vision_encoder" not in config:
            return super().config(file)
        return "`vision_encoder.{}`", config["vision_encoder"]["config"]

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the config states; positions must be in their order.

        keras-hub's CLIP numbers them all 0 until weights are loaded.
        """
        name = self.model_names(file.arrays).get(self.position_ids)
        ids = None if name is None else np.ravel(file.arrays[name].read())
        if ids is not None and not np.array_equal(ids, np.arange(len(ids))):
            raise WeightsFileError(
                f"`{name}` must be the numbers from 0 on, as positions of models here "
                f"are in their order. Received: {ids[:4]}... in {str(file.path)!r}"
            )
        return super().stated(file)

    def further_arrays(self, arrays: Arrays, model: "ImageModel") -> Arrays:
        """The numbers of the positions."""
        embedding = self.position_ids.partition("/vars/")[0]
        positions = arrays[f"{embedding}/position_embedding/vars/0"]
        return {self.position_ids: np.arange(len(positions), dtype="int64")[None]}


class KerasHubCLIP(_Tower):
    """CLIP's image tower: features before, or behind the projection."""

    title = "keras-hub CLIP"
    mark = "layers/clip_vision_embedding/patch_embedding/vars/0"
    rows = _clip()
    ignored = r"layers/clip_vision_embedding/vars/1"
    always: ClassVar = {
        "embedding_bias": False,
        "embedding_norm": True,
        "norm_epsilon": 1e-5,
    }
    assumed: ClassVar = {"gelu": "quick"}
    holds = frozenset(("gelu", "norm_epsilon", "embedding_bias", "embedding_norm"))
    configured = ("gelu",)
    backbone = "CLIPVisionEncoder"
    converter = "CLIPImageConverter"
    inside = "clip_vision_encoder"
    block = "clip_encoder_layer"
    two_towers = "CLIPBackbone"
    projection = "layers/dense/vars/0"
    position_ids = "layers/clip_vision_embedding/vars/1"
    keys: ClassVar = {
        **ANY_BACKBONE,
        "intermediate_dim": says("mlp_dim"),
        "intermediate_activation": says(
            "gelu",
            default="quick_gelu",
            read=OneOf({**KERAS_GELUS, "quick_gelu": "quick"}),
        ),
        **says_nothing("intermediate_output_index"),
    }

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the configs of the tower and of the model around it state."""
        stated = super().stated(file)
        dim = file.config.get("config", {}).get("projection_dim")
        if file.config:
            stated["projection"] = Stated(dim, "`projection_dim`")
        return stated


class KerasHubSigLIP(_Tower):
    """SigLIP's image tower, of SigLIP 2 too."""

    title = "keras-hub SigLIP"
    mark = "layers/sig_lip_vision_embedding/patch_embedding/vars/0"
    rows = _siglip()
    ignored = r"layers/sig_lip_vision_embedding/vars/0"
    always: ClassVar = {"class_token": False, "norm_epsilon": 1e-6}
    assumed: ClassVar = {"gelu": "tanh"}
    holds = frozenset(("gelu", "norm_epsilon", "class_token"))
    configured = ("gelu",)
    poolings: ClassVar = {"map": "map"}
    backbone = "SigLIPVisionEncoder"
    converter = "SigLIPImageConverter"
    inside = "sig_lip_vision_encoder"
    block = "sig_lip_encoder_layer"
    two_towers = "SigLIPBackbone"
    position_ids = "layers/sig_lip_vision_embedding/vars/0"
    keys: ClassVar = {
        **ANY_BACKBONE,
        "intermediate_dim": says("mlp_dim"),
        "intermediate_activation": says(
            "gelu",
            default="gelu_approximate",
            read=OneOf({**KERAS_GELUS, "gelu_approximate": "tanh"}),
        ),
        # The norm after the blocks has 1e-6 whatever it is.
        "layer_norm_epsilon": must_be(1e-6, default=1e-6),
    }

    def pooling(self, file: ArrayFile) -> tuple[str | None, bool]:
        """Its own, which is part of the tower."""
        return "map", True

    def pools(self, model: "ImageModel") -> tuple[str | None, ...]:
        """The same."""
        return ("map",)
