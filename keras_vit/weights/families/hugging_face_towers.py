"""Image towers of Hugging Face's CLIP, SigLIP and AIMv2.

Source: huggingface/transformers, models/clip, siglip, siglip2, aimv2. A file of both
towers has a `vision_config` inside of its config; the text tower is left out.
"""

import math
from typing import TYPE_CHECKING, ClassVar

from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import (
    Config,
    Keys,
    OneOf,
    Stated,
    must_be,
    read_by_another,
    says,
    says_nothing,
)
from keras_vit.weights.families.family import GELUS, SILUS
from keras_vit.weights.families.hugging_face import ANY_CONFIG, HuggingFaceFamily
from keras_vit.weights.families.layouts import (
    CONVOLUTION,
    FLAT_PATCHES,
    LINEAR,
    ONE_VECTOR,
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


def _projections(theirs: str, ours: str, out: str = "out_proj") -> tuple[ArrayRow, ...]:
    rows: list[ArrayRow] = []
    names = (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), (out, "out"))
    for name, our_name in names:
        rows += affine(f"{theirs}.{name}.", f"{ours}/{our_name}", LINEAR)
    return tuple(rows)


def _encoder() -> tuple[ArrayRow, ...]:
    """What CLIP and SigLIP share."""
    theirs = "encoder.layers.{i}"
    return (
        row(
            "embeddings.position_embedding.weight",
            "position_embedding/embedding",
            layout=WITHOUT_BATCH,
        ),
        *norm(f"{theirs}.layer_norm1.", f"{_OURS}/norm1"),
        *_projections(f"{theirs}.self_attn", f"{_OURS}/attention"),
        *norm(f"{theirs}.layer_norm2.", f"{_OURS}/norm2"),
        *affine(f"{theirs}.mlp.fc1.", f"{_OURS}/mlp/Dense_0", LINEAR),
        *affine(f"{theirs}.mlp.fc2.", f"{_OURS}/mlp/Dense_1", LINEAR),
        *norm("post_layernorm.", "encoder_norm"),
    )


CLIP: tuple[ArrayRow, ...] = (
    *affine("embeddings.patch_embedding.", "embedding", CONVOLUTION),
    row("embeddings.class_embedding", "class_token/token", layout=ONE_VECTOR),
    *norm("pre_layrnorm.", "embedding_norm"),
    *_encoder(),
    row("visual_projection.weight", "projection/kernel", layout=LINEAR),
)


def _siglip_pooling() -> tuple[ArrayRow, ...]:
    theirs, ours = "head", "attention_pooling"
    parts = [f"{ours}/attention/{name}" for name in ("query", "key", "value")]
    kernels = [f"{part}/kernel" for part in parts]
    return (
        row(f"{theirs}.probe", f"{ours}/probe"),
        row(f"{theirs}.attention.in_proj_weight", *kernels, layout=LINEAR),
        row(f"{theirs}.attention.in_proj_bias", *(f"{part}/bias" for part in parts)),
        *affine(f"{theirs}.attention.out_proj.", f"{ours}/attention/out", LINEAR),
        *norm(f"{theirs}.layernorm.", f"{ours}/norm"),
        *affine(f"{theirs}.mlp.fc1.", f"{ours}/mlp/Dense_0", LINEAR),
        *affine(f"{theirs}.mlp.fc2.", f"{ours}/mlp/Dense_1", LINEAR),
    )


SIGLIP: tuple[ArrayRow, ...] = (
    *affine("embeddings.patch_embedding.", "embedding", CONVOLUTION),
    *_encoder(),
    *_siglip_pooling(),
)
# Its patches are vectors before they reach the model.
SIGLIP2: tuple[ArrayRow, ...] = (
    *affine("embeddings.patch_embedding.", "embedding", FLAT_PATCHES),
    *_encoder(),
    *_siglip_pooling(),
)


def _aimv2() -> tuple[ArrayRow, ...]:
    theirs, head, ours = "encoder.layers.{i}", "head", "attention_pooling"
    rows = [
        *affine("embeddings.patch_embed.", "embedding", CONVOLUTION),
        *norm("embeddings.rms_norm.", "patch_norm"),
        row(
            "embeddings.position_embedding.weight",
            "position_embedding/embedding",
            layout=WITHOUT_BATCH,
        ),
        *norm(f"{theirs}.rms_norm1.", f"{_OURS}/norm1"),
        *_projections(f"{theirs}.attention", f"{_OURS}/attention"),
        *norm(f"{theirs}.rms_norm2.", f"{_OURS}/norm2"),
    ]
    for half, name in enumerate(("gate_proj", "up_proj")):
        layer = f"{theirs}.ffn.{name}."
        rows += affine(layer, f"{_OURS}/mlp/Dense_0", LINEAR, half=half)
    rows += affine(f"{theirs}.ffn.down_proj.", f"{_OURS}/mlp/Dense_1", LINEAR)
    rows += norm("rms_norm.", "encoder_norm")
    rows.append(row(f"{head}.cls_token", f"{ours}/probe"))
    for name, our_name in (
        ("k_proj", "key"),
        ("v_proj", "value"),
        ("output_proj", "out"),
    ):
        rows += affine(f"{head}.{name}.", f"{ours}/attention/{our_name}", LINEAR)
    rows.append(row("visual_projection.weight", "projection/kernel", layout=LINEAR))
    return tuple(rows)


AIMV2 = _aimv2()

_SIZES: Keys = {
    **ANY_CONFIG,
    "hidden_size": says("width", default=768),
    "intermediate_size": says("mlp_dim", default=3072),
    "num_hidden_layers": says("depth", default=12),
    "num_attention_heads": says("heads", default=12),
    "num_channels": says("channels", default=3),
}
CLIP_CONFIG: Keys = {
    **_SIZES,
    "patch_size": says("patch_size", default=32),
    "hidden_act": says("gelu", default="quick_gelu", read=OneOf(GELUS)),
    "layer_norm_eps": says("norm_epsilon", default=1e-5),
    **says_nothing("projection_dim"),
}
SIGLIP_CONFIG: Keys = {
    **_SIZES,
    "patch_size": says("patch_size", default=16),
    "hidden_act": says("gelu", default="gelu_pytorch_tanh", read=OneOf(GELUS)),
    "layer_norm_eps": says("norm_epsilon", default=1e-6),
    "vision_use_head": read_by_another(True, write=lambda m: m.pooling == "map"),
    **says_nothing("num_patches", "projection_dim"),
}
AIMV2_CONFIG: Keys = {
    **_SIZES,
    "hidden_size": says("width", default=1024),
    "intermediate_size": says("mlp_dim", default=2816),
    "num_hidden_layers": says("depth", default=24),
    "num_attention_heads": says("heads", default=8),
    "patch_size": says("patch_size", default=14),
    "hidden_act": must_be(*SILUS, default="silu"),
    "rms_norm_eps": says("norm_epsilon", default=1e-5),
    "qkv_bias": says(
        *("query_bias", "key_bias", "value_bias", "output_bias"), default=False
    ),
    "mlp_bias": says("mlp_bias", default=False),
    "is_native": must_be(False),  # sines of the row first, then of the column
    "use_head": read_by_another(True, write=lambda m: m.pooling == "query"),
    **says_nothing("projection_dim"),
}


class _Tower(HuggingFaceFamily):
    """An image tower, by itself or beside a text tower.

    Attributes:
        two_towers: The `model_type`s of models with a text tower.
        head_key: Key of the config that says whether it has attention pooling.
        inside: Where the tower's arrays lie in a file of it alone.
    """

    inside: ClassVar[str] = "vision_model."
    head_key: ClassVar[str | None] = None
    poolings: ClassVar = {"map": "map", "query": "query"}

    prefix = "vision_model"
    new_names = ()
    configured = ("gelu", "heads", "norm_epsilon")
    two_towers: ClassVar[tuple[str, ...]]
    ignored = (
        r"text_model\..*|text_projection\..*|logit_(scale|bias)|"
        r"embeddings\.position_ids"
    )

    def notes(self, file: ArrayFile) -> list[str]:
        """Which of two towers the model is."""
        texts = [name for name in file.arrays if name.startswith("text_model.")]
        return ["a text tower beside it, which is left out"] if texts else []

    def file_name(self, name: str, model: "ImageModel") -> str:
        """The projection lies outside of the tower."""
        outside = name.startswith("visual_projection.")
        return name if outside else f"{self.inside}{name}"

    def pooling(self, file: ArrayFile) -> tuple[str | None, bool]:
        """Attention pooling of the patches, unless the config says no."""
        _, config = self.config(file)
        has_head = self.head_key is not None and config.get(self.head_key, True)
        return self.pools[0] if config and has_head else None, False

    def opens(self, name: str) -> bool:
        """Whether it is the tower, or a model around it."""
        return name in (*self.model_types, *self.two_towers)

    def config(self, file: ArrayFile) -> tuple[str, Config]:
        """The tower's own config."""
        # The first of release 4, which comes before the other there too.
        old = file.config.get("vision_config_dict")
        inner = old or file.config.get("vision_config")
        if inner is None:
            return super().config(file)
        return "`vision_config.{}`", inner


class HuggingFaceCLIP(_Tower):
    """CLIP's image tower: features before, or behind the projection."""

    title = "Hugging Face CLIP"
    mark = "pre_layrnorm.weight"
    rows = CLIP
    always: ClassVar = {"embedding_bias": False, "embedding_norm": True}
    assumed: ClassVar = {"gelu": "quick", "norm_epsilon": 1e-5}
    model_types = ("clip_vision_model",)
    bare_class = "CLIPVisionModel"
    pools = ("token",)  # its tokens are those before the last norm
    two_towers = ("clip",)
    keys = CLIP_CONFIG
    holds = frozenset(("gelu", "norm_epsilon", "embedding_bias", "embedding_norm"))
    second_classifiers = ("classifier.",)
    second_classifier = "classifier, of the mean of patches before the last norm,"

    def documents(self, model: "ImageModel") -> dict[str, JSON]:
        """Those of the class with a projection, where there is one."""
        documents = super().documents(model)
        if model.projection is not None:
            config = documents["config.json"]
            config["architectures"] = [f"{self.bare_class}WithProjection"]
            config["projection_dim"] = model.projection
        return documents

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the config states; some classes have a projection."""
        stated = super().stated(file)
        kinds = file.config.get("architectures") or ()
        dim = file.config.get("projection_dim", 512)
        both = self.bare_class.replace("Vision", "")
        if {both, f"{self.bare_class}WithProjection"} & set(kinds):
            stated["projection"] = Stated(dim, "`projection_dim`")
        stated.pop("classes", None)
        return stated


class HuggingFaceMetaCLIP2(HuggingFaceCLIP):
    """MetaCLIP 2's image tower, a CLIP's."""

    title = "Hugging Face MetaCLIP 2"
    model_types = ("metaclip_2_vision_model",)
    bare_class = "MetaClip2VisionModel"
    two_towers = ("metaclip_2",)


class HuggingFaceSigLIP(_Tower):
    """SigLIP's image tower, of SigLIP 2 too where its resolution is fixed."""

    title = "Hugging Face SigLIP"
    mark = "post_layernorm.weight"
    rows = SIGLIP
    always: ClassVar = {"class_token": False}
    assumed: ClassVar = {"gelu": "tanh", "norm_epsilon": 1e-6}
    model_types = ("siglip_vision_model",)
    bare_class = "SiglipVisionModel"
    pools = ("map", None)
    head_key = "vision_use_head"
    two_towers = ("siglip",)
    keys = SIGLIP_CONFIG
    holds = frozenset(("gelu", "norm_epsilon", "class_token"))
    second_classifiers = ("classifier.",)
    second_classifier = "classifier, of the mean of all tokens,"

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the config states; the classifier's is not our model's."""
        stated = super().stated(file)
        stated.pop("classes", None)
        return stated


class HuggingFaceSigLIP2(HuggingFaceSigLIP):
    """SigLIP 2's image tower of any resolution, at that of its positions."""

    title = "Hugging Face SigLIP 2"
    rows = SIGLIP2
    model_types = ("siglip2_vision_model",)
    bare_class = "Siglip2VisionModel"
    two_towers = ("siglip2",)

    def image_size(self, file: ArrayFile) -> JSON:
        """Side of a square image of `num_patches`."""
        _, config = self.config(file)
        patches = config.get("num_patches", 256)
        return math.isqrt(patches) * config.get("patch_size", 16)

    def notes(self, file: ArrayFile) -> list[str]:
        """How transformers resamples the positions for images of another size."""
        resampled = "for images of another size, transformers resamples as "
        return [*super().notes(file), f"{resampled}resample='antialiased' does"]


class HuggingFaceAIMv2(_Tower):
    """AIMv2's image tower."""

    title = "Hugging Face AIMv2"
    mark = "embeddings.rms_norm.weight"
    rows = AIMV2
    always: ClassVar = {"class_token": False, "norm": "rms", "swiglu": True}
    assumed: ClassVar = {"norm_epsilon": 1e-5}
    model_types = ("aimv2_vision_model",)
    bare_class = "Aimv2VisionModel"
    pools = ("query", None)
    head_key = "use_head"
    inside = ""
    two_towers = ("aimv2",)
    keys = AIMV2_CONFIG
    holds = frozenset(
        (
            *("norm", "norm_epsilon", "class_token", "swiglu", "patch_norm"),
            *("query_bias", "key_bias", "value_bias", "output_bias", "mlp_bias"),
            "prefix_positions",
        )
    )
