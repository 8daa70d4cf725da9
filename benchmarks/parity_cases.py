"""The models of other libraries that `benchmarks.parity` compares, and small copies."""

import dataclasses
from typing import Any

SMALL_VIT = {"embed_dim": 24, "depth": 2, "num_heads": 3}


@dataclasses.dataclass(frozen=True)
class Case:
    """One model of another library.

    Args:
        title: What it is, in our grammar.
        library: Key of `LIBRARIES`.
        model: The library's arguments for the published size.
        small: What replaces them in the small copy.
        image_size: (H, W) in pixels.
        small_image_size: The same for the small copy.
        back: Whether the library reads what we write.
    """

    title: str
    library: str
    model: dict[str, Any]
    small: dict[str, Any]
    image_size: tuple[int, int] = (224, 224)
    small_image_size: tuple[int, int] = (64, 64)
    back: bool = True


def _timm_vit(
    title,
    width,
    depth,
    heads,
    patch=16,
    image_size=(224, 224),
    library="timm",
    **options,
):
    model = {
        "architecture": "vit_base_patch16_224",
        "embed_dim": width,
        "depth": depth,
        "num_heads": heads,
        "patch_size": patch,
        **options,
    }
    smaller = (image_size[0] * 64 // 224, image_size[1] * 64 // 224)
    side = 2 * patch
    smaller = tuple(max(side, length // patch * patch) for length in smaller)
    back = library == "timm"
    return Case(title, library, model, SMALL_VIT, image_size, smaller, back)


TI, S, B, L = (192, 12, 3), (384, 12, 6), (768, 12, 12), (1024, 24, 16)
HF_B = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "patch_size": 16,
}
HF_SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 52,
}
DINOV2_S = {
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "patch_size": 14,
}
DINOV2_G = {
    **DINOV2_S,
    "hidden_size": 1536,
    "num_hidden_layers": 40,
    "num_attention_heads": 24,
    "use_swiglu_ffn": True,
}
DINOV2_SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
HUB_SMALL = {"num_layers": 2, "num_heads": 3, "hidden_dim": 24, "mlp_dim": 52}


def _hub(width, layers, heads, mlp_dim):
    names = ("hidden_dim", "num_layers", "num_heads", "mlp_dim")
    return dict(zip(names, (width, layers, heads, mlp_dim), strict=True))


def _timm_architecture(title, architecture, side, small_side, back=True):
    model, large, small = {"architecture": architecture}, (side,) * 2, (small_side,) * 2
    return Case(title, "timm", model, SMALL_VIT, large, small, back)


def _dinov2(title, library, model):
    side = 224 if model.get("use_swiglu_ffn") else 518
    return Case(title, library, model, DINOV2_SMALL, (side, side), (70, 70), False)


CASES = (
    _timm_vit("Ti/16", *TI),
    _timm_vit("S/32", *S, patch=32),
    _timm_vit("B/16", *B),
    _timm_vit("B/32", *B, patch=32),
    _timm_vit("B/16 at 384", *B, image_size=(384, 384)),
    _timm_vit("B/16 at 224x320", *B, image_size=(224, 320)),
    _timm_vit("B/16, tanh GELU", *B, act_layer="gelu_tanh"),
    _timm_vit("B/16, GAP, fc_norm", *B, global_pool="avg", class_token=False),
    _timm_vit(
        "B/16, GAP, no fc_norm",
        *B,
        global_pool="avg",
        class_token=False,
        fc_norm=False,
    ),
    _timm_vit("B/16, MAP", *B, global_pool="map", class_token=False),
    _timm_vit("B/16, 4 registers", *B, reg_tokens=4, no_embed_class=True),
    _timm_vit("B/16, 4 registers with positions", *B, reg_tokens=4),
    _timm_vit("B/16, LayerScale", *B, init_values=0.1, no_embed_class=True),
    _timm_vit("B/16, qk-norm", *B, qk_norm=True),
    Case(
        "R+Ti/16",
        "timm",
        {"architecture": "vit_tiny_r_s16_p8_224"},
        SMALL_VIT,
    ),
    Case(
        "R26+S/32",
        "timm",
        {"architecture": "vit_small_r26_s32_224"},
        SMALL_VIT,
    ),
    Case(
        "R50+B/16",
        "timm",
        {"architecture": "vit_base_r50_s16_224"},
        SMALL_VIT,
    ),
    Case("BiT R50x1", "timm", {"architecture": "resnetv2_50x1_bit"}, {}),
    _timm_architecture("DeiT III M/16", "deit3_medium_patch16_224", 224, 64),
    _timm_architecture("DeiT III S/16 at 384", "deit3_small_patch16_384", 384, 96),
    _timm_architecture("DINOv2 S/14", "vit_small_patch14_dinov2", 518, 70),
    _timm_architecture(
        "DINOv2 S/14, 4 registers", "vit_small_patch14_reg4_dinov2", 518, 70
    ),
    # Both directions of a billion parameters would need 20 GB.
    _timm_architecture("DINOv2 g/14", "vit_giant_patch14_dinov2", 224, 70, back=False),
    Case("B/16", "transformers", HF_B, HF_SMALL),
    Case("B/16 at 224x320", "transformers", HF_B, HF_SMALL, (224, 320), (48, 64)),
    Case("B/16, ViTModel", "transformers-bare", HF_B, HF_SMALL),
    Case("DeiT B/16 distilled", "transformers-deit", HF_B, HF_SMALL, back=False),
    _dinov2("DINOv2 S/14", "transformers-dinov2", DINOV2_S),
    _dinov2("DINOv2 S/14", "transformers-dinov2-registers", DINOV2_S),
    _dinov2("DINOv2 g/14", "transformers-dinov2-registers", DINOV2_G),
    Case("B/16", "keras-hub", _hub(768, 12, 12, 3072), HUB_SMALL, back=False),
    Case("L/16", "keras-hub", _hub(1024, 24, 16, 4096), HUB_SMALL, back=False),
    _timm_vit("B/16", *B, library="timm .npz", act_layer="gelu_tanh"),
    Case(
        "R50+B/16",
        "timm .npz",
        {"architecture": "vit_base_r50_s16_224", "act_layer": "gelu_tanh"},
        SMALL_VIT,
        back=False,
    ),
    _timm_vit(
        "B/16 of big_vision, MAP",
        *B,
        library="timm .npz",
        act_layer="gelu_tanh",
        global_pool="map",
        class_token=False,
    ),
    Case(
        "BiT R50x1",
        "timm .npz",
        {"architecture": "resnetv2_50x1_bit"},
        {},
        back=False,
    ),
)
