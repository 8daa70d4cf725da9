"""OpenCLIP's checkpoints: image towers, without the text tower, and its own ViTs.

Source: mlfoundations/open_clip, model.py, transformer.py, transform.py. What it pushes
to the Hub are `open_clip_model.safetensors` and `open_clip_config.json`.
"""

from collections.abc import Iterable
from typing import ClassVar

from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import (
    Config,
    Keys,
    OneOf,
    Stated,
    must_be,
    read_config,
    says,
    says_nothing,
)
from keras_vit.weights.families.family import Family, known, scaled
from keras_vit.weights.families.layouts import (
    CONVOLUTION,
    LINEAR,
    ONE_VECTOR,
    WITHOUT_BATCH,
    ArrayRow,
    affine,
    norm,
    row,
)
from keras_vit.weights.reading import OPEN_CLIP_CONFIG, ArrayFile


def _block() -> tuple[ArrayRow, ...]:
    theirs, ours = "transformer.resblocks.{i}", "encoder_block_{i}"
    parts = [f"{ours}/attention/{name}" for name in ("query", "key", "value")]
    kernels = [f"{part}/kernel" for part in parts]
    rows = [
        row(f"{theirs}.attn.in_proj_weight", *kernels, layout=LINEAR),
        row(f"{theirs}.attn.in_proj_bias", *(f"{part}/bias" for part in parts)),
        *norm(f"{theirs}.attn.ln_q.", f"{ours}/attention/query_norm"),
        *norm(f"{theirs}.attn.ln_k.", f"{ours}/attention/key_norm"),
        *norm(f"{theirs}.attn.ln_inner.", f"{ours}/attention/norm"),
        *affine(f"{theirs}.attn.out_proj.", f"{ours}/attention/out", LINEAR),
        *affine(f"{theirs}.mlp.c_fc.", f"{ours}/mlp/Dense_0", LINEAR),
        *norm(f"{theirs}.mlp.ln.", f"{ours}/mlp/norm"),
        *affine(f"{theirs}.mlp.c_proj.", f"{ours}/mlp/Dense_1", LINEAR),
    ]
    for number in ("1", "2"):
        rows += norm(f"{theirs}.ln_{number}.", f"{ours}/norm{number}")
        rows.append(
            row(f"{theirs}.ls_{number}.gamma", f"{ours}/layer_scale{number}/gamma")
        )
    return tuple(rows)


def _rows(last_norm: str) -> tuple[ArrayRow, ...]:
    return (
        *affine("conv1.", "embedding", CONVOLUTION),
        row("class_embedding", "class_token/token", layout=ONE_VECTOR),
        row(
            "positional_embedding",
            "position_embedding/embedding",
            layout=WITHOUT_BATCH,
        ),
        *norm("ln_pre.", "embedding_norm"),
        *_block(),
        *norm("ln_post.", last_norm),
        row("proj", "projection/kernel"),
    )


def _heads(head_width: JSON, config: Config) -> JSON:
    """Number of heads, by the elements K of each."""
    if head_width == 0:
        raise ValueError("a positive integer")
    return config["width"] // head_width


# Keys of `model_cfg` and `vision_cfg` on which no image tower depends.
ANY_CONFIG = says_nothing(
    *("image_size", "patch_dropout", "text_cfg", "custom_text", "multimodal_cfg"),
    *("init_logit_scale", "init_logit_bias", "nonscalar_logit_scale"),
    *("timm_model_name", "timm_model_pretrained", "timm_drop", "timm_drop_path"),
)
CONFIG: Keys = {
    **ANY_CONFIG,
    "layers": says("depth", default=12),
    "width": says("width", default=768),
    "head_width": says("heads", default=64, read=_heads),
    "mlp_ratio": says(
        "mlp_dim",
        default=4.0,
        read=lambda value, config: int(config["width"] * value),
    ),
    "patch_size": says("patch_size", default=16),
    "ls_init_value": says("layer_scale"),
    "no_ln_pre": says("embedding_norm", default=False, read=lambda value, _: not value),
    "final_ln_after_pool": says("fc_norm", default=False),
    "attentional_pool": must_be(False),
    "qk_norm": says("qk_norm", default=False),
    "scale_attn_inner": says("attention_norm", default=False),
    "scale_fc": says("mlp_norm", default=False),
    "scaled_cosine_attn": must_be(False),
    "scale_heads": must_be(False),
    "scale_attn": must_be(False),
    "embed_dim": says("projection"),
    "quick_gelu": says(
        "gelu", default=False, read=OneOf({True: "quick", False: "exact"})
    ),
    **says_nothing(
        *("pool_type", "pos_embed_type", "output_tokens", "attn_pooler_queries"),
        *("attn_pooler_heads", "block_type", "timm_pool", "timm_proj"),
    ),
}
# OpenAI's statistics of pixels from 0 to 1.
_PREPROCESSING = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}
_INTERPOLATIONS = {"bicubic": "bicubic", "bilinear": "bilinear"}
_RESIZES = {"shortest": "small", "squash": "plain"}
OF_TIMM = " of timm"
_CLASS = "VisionTransformer"
_POOLED_FIRST = f"{_CLASS}, normalized after the pooling"


class OpenCLIPFamily(Family):
    """An image tower of OpenCLIP, beside a text tower.

    Attributes:
        inside: Where its arrays lie in the file.
    """

    project = "open_clip"
    library = "OpenCLIP"
    inside: ClassVar[str] = "visual."

    def model_names(self, names: Iterable[str]) -> dict[str, str]:
        """Names inside the image tower -> names in the file, `DataParallel`'s too."""
        bare_names = {name.removeprefix("module."): name for name in names}
        return {
            bare.removeprefix(self.inside): name
            for bare, name in bare_names.items()
            if bare.startswith(self.inside)
        }

    def notes(self, file: ArrayFile) -> list[str]:
        """Which of two towers the model is."""
        texts = [name for name in file.arrays if "token_embedding" in name]
        return ["a text tower beside it, which is left out"] if texts else []

    def described(self, config: Config) -> str | None:
        """The class of the image tower, or timm's name of it."""
        vision = vision_of(config)
        if vision is None:
            return None
        if name := vision.get("timm_model_name"):
            return f"{name}{OF_TIMM}"
        if isinstance(vision.get("layers"), list):
            return "ModifiedResNet"
        return _POOLED_FIRST if vision.get("final_ln_after_pool") else _CLASS

    def parts(self, file: ArrayFile) -> list[tuple[str, Config]]:
        """`vision_cfg` and the keys beside it, as `read_config` takes them."""
        model = dict(file.config["model_cfg"])
        return [
            ("`vision_cfg.{}`", model.pop("vision_cfg")),
            ("`model_cfg.{}`", model),
        ]

    def image_size(self, file: ArrayFile) -> JSON:
        """`image_size`."""
        vision = vision_of(file.config)
        return None if vision is None else vision.get("image_size") or 224

    def preprocessing_config(self, file: ArrayFile) -> tuple[str, JSON]:
        """`preprocess_cfg`."""
        return OPEN_CLIP_CONFIG, file.config.get("preprocess_cfg")

    def preprocessing(
        self, config: dict[str, JSON], model: dict[str, JSON]
    ) -> dict[str, JSON]:
        """Settings of `preprocess_cfg`, of which OpenCLIP has defaults."""
        config = _PREPROCESSING | config
        return {
            "mean": scaled(config["mean"], 255),
            "std": scaled(config["std"], 255),
            "interpolation": known(config, "interpolation", _INTERPOLATIONS),
            "antialias": True,  # as PIL
            "resize": known(config, "resize_mode", _RESIZES),
            "convention": "timm",  # torchvision's, as there
        }


class OpenCLIP(OpenCLIPFamily):
    """OpenCLIP's ViT: features behind the projection."""

    title = "OpenCLIP ViT"
    mark = "transformer.resblocks.0.attn.in_proj_weight"
    rows = _rows("encoder_norm")
    always: ClassVar = {
        "class_token": True,
        "embedding_bias": False,
        "norm_epsilon": 1e-5,
    }
    assumed: ClassVar = {"gelu": "exact"}
    holds = frozenset(
        (
            *("gelu", "norm_epsilon", "class_token", "embedding_bias"),
            *("embedding_norm", "fc_norm", "layer_scale"),
            *("qk_norm", "attention_norm", "mlp_norm"),
        )
    )
    configured = ("gelu", "heads", "pooling")
    poolings: ClassVar = {"tok": "token", "avg": "avg"}
    described_as: ClassVar[str] = _CLASS

    def opens(self, name: str) -> bool:
        """Whether it is OpenCLIP's own ViT."""
        return name == self.described_as

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What `vision_cfg` and the keys beside it state."""
        return read_config(file.path, CONFIG, self.parts(file)) if file.config else {}

    def pooling(self, file: ArrayFile) -> tuple[str | None, bool]:
        """`pool_type`; a mean is of the patches."""
        vision = vision_of(file.config)
        return None if vision is None else vision.get("pool_type") or "tok", False


class OpenCLIPPooledFirst(OpenCLIP):
    """OpenCLIP's ViT whose last norm follows the pooling, such as CLIPA's."""

    title = "OpenCLIP ViT with a norm after the pooling"
    rows = _rows("fc_norm")
    described_as = _POOLED_FIRST


def vision_of(config: Config) -> Config | None:
    """`vision_cfg`, {} where it is malformed; None in a config of another project."""
    model = config.get("model_cfg")
    if not isinstance(model, dict):
        return None
    vision = model.get("vision_cfg")
    return vision if isinstance(vision, dict) else {}
