"""Narrow copies of OpenCLIP's image towers, beside a text tower."""

from benchmarks import torch_libraries  # noqa: F401  isort: skip

import dataclasses
import pathlib

from benchmarks.narrow_copies import (
    HEAD_WIDTH,
    Model,
    Opened,
    compare,
    randomize,
)
from keras_vit.typing import JSON, Array

OPEN_CLIP_TEXT = {
    "context_length": 8,
    "vocab_size": 50,
    "width": 24,
    "heads": 3,
    "layers": 1,
}
OPEN_CLIP_VISION = {
    "image_size": 32,
    "layers": 2,
    "width": 48,
    "head_width": HEAD_WIDTH,
    "patch_size": 8,
}


@dataclasses.dataclass(frozen=True)
class OpenCLIP:
    """A model of OpenCLIP.

    Args:
        title: What it is.
        vision: Of `vision_cfg`, beside `OPEN_CLIP_VISION`.
        model: Of `model_cfg`.
        kind: Name of its class, which names the arrays of the text tower.
        opens: Whether a model of ours computes it.
    """

    title: str
    vision: dict[str, JSON] = dataclasses.field(default_factory=dict)
    model: dict[str, JSON] = dataclasses.field(default_factory=dict)
    kind: str = "CLIP"
    opens: bool = True


def _timm_tower(
    title: str, name: str, side: int, pool: str, projection: str | None
) -> OpenCLIP:
    """A tower of timm, which OpenCLIP makes in its full size, and its projection."""
    vision = {
        "timm_model_name": name,
        "image_size": side,
        "timm_pool": pool,
        "timm_proj": projection,
    }
    opens = projection != "linear"
    return OpenCLIP(title, vision, kind="CustomTextCLIP", opens=opens)


OPEN_CLIP = (
    OpenCLIP("ViT"),
    OpenCLIP(
        "ViT, QuickGELU, LayerScale",
        {"ls_init_value": 0.1, "mlp_ratio": 2.5},
        {"quick_gelu": True},
        "CustomTextCLIP",
    ),
    OpenCLIP("ViT, mean of the patches", {"pool_type": "avg"}),
    OpenCLIP("ViT, norm after the pooling", {"final_ln_after_pool": True}),
    OpenCLIP(
        "CLIPA",
        {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True},
        kind="CustomTextCLIP",
    ),
    OpenCLIP(
        "CoCa's pooling",
        {"attentional_pool": True, "attn_pooler_heads": 4},
        opens=False,
    ),
    OpenCLIP("ViT, QK norm", {"qk_norm": True}),
    OpenCLIP(
        "ViT, norms in attention and MLP",
        {"scale_attn_inner": True, "scale_fc": True},
        {"quick_gelu": True},
    ),
    OpenCLIP("ViT, cosine attention", {"scaled_cosine_attn": True}, opens=False),
    OpenCLIP("ViT, norm after the attention", {"scale_attn": True}, opens=False),
    OpenCLIP("ResNet", {"layers": [1, 1, 1, 1], "width": 32}, opens=False),
    _timm_tower("timm's, SigLIP's pooling", "test_vit2", 160, "map", "none"),
    _timm_tower("timm's, CLIP's pooling", "vit_tiny_patch16_224", 224, "token", None),
    _timm_tower("timm's EVA-02", "eva02_tiny_patch14_224", 224, "token", None),
    _timm_tower("timm's and a projection", "test_vit", 160, "", "linear"),
)


class _NoTokenizer:
    """What OpenCLIP writes beside a model is of no use to an image tower."""

    def save_pretrained(self, folder: pathlib.Path) -> None:
        """Write nothing."""


def compare_open_clip(case: OpenCLIP, folder: pathlib.Path) -> Opened:
    """Open a model of OpenCLIP, and compare its outputs."""
    import torch
    from open_clip import model as classes
    from open_clip.push_to_hf_hub import save_for_hf

    result = Opened("open_clip", case.title)
    config: dict[str, JSON] = {
        "embed_dim": 20,
        "vision_cfg": {**OPEN_CLIP_VISION, **case.vision},
        "text_cfg": OPEN_CLIP_TEXT,
        **case.model,
    }
    model = randomize(getattr(classes, case.kind)(**config))
    classes.set_model_preprocess_cfg(model, {"mean": [0.5] * 3, "std": [0.5] * 3})
    save_for_hf(model, _NoTokenizer(), config, folder, safe_serialization=True)

    def outputs(model: Model, pixels: Array) -> Array:
        with torch.no_grad():
            images = torch.tensor(pixels.transpose(0, 3, 1, 2))
            found: Array = model.encode_image(images).numpy()
        return found

    side = config["vision_cfg"]["image_size"]
    compare(result, folder, "float32", outputs, model, (side, side))
    return result
