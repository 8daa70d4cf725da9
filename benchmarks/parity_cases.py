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
    title, width, depth, heads, patch=16, size=(224, 224), library="timm", **options
):
    model = {
        "architecture": "vit_base_patch16_224",
        "embed_dim": width,
        "depth": depth,
        "num_heads": heads,
        "patch_size": patch,
        **options,
    }
    small = (max(2 * patch, n * 64 // 224 // patch * patch) for n in size)
    back = library == "timm"
    return Case(title, library, model, SMALL_VIT, size, tuple(small), back)


def _timm(title, architecture, side=224, small_side=64, **options):
    return Case(
        title,
        options.pop("library", "timm"),
        {"architecture": architecture, **options.pop("model", {})},
        SMALL_VIT if "resnetv2" not in architecture else {},
        (side, side),
        (small_side, small_side),
        **options,
    )


def _hub(title, *sizes):
    names = ("hidden_dim", "num_layers", "num_heads", "mlp_dim")
    small = dict(zip(names, (24, 2, 3, 52), strict=True))
    model = dict(zip(names, sizes, strict=True))
    return Case(title, "keras-hub", model, small, back=False)


HF_NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads")


def _transformers(title, library="transformers", **options):
    names = (*HF_NAMES, "intermediate_size")
    model = dict(zip(names, (*B, 3072), strict=True)) | {"patch_size": 16}
    small = dict(zip(names, (24, 2, 3, 52), strict=True))
    return Case(title, library, model, small, **options)


def _dinov2(title, library, *sizes, side=518, **model):
    model |= dict(zip(HF_NAMES, sizes, strict=True)) | {"patch_size": 14}
    small = dict(zip(HF_NAMES, (24, 2, 3), strict=True))
    name = f"transformers-{library}"
    return Case(title, name, model, small, (side, side), (70, 70), back=False)


TI, S, B = (192, 12, 3), (384, 12, 6), (768, 12, 12)
TANH: dict[str, Any] = {"act_layer": "gelu_tanh"}
MEAN = {"global_pool": "avg", "class_token": False}
MAP: dict[str, Any] = {"global_pool": "map", "class_token": False}
NPZ: dict[str, Any] = {"library": "timm .npz", "back": False}

CASES = (
    _timm_vit("Ti/16", *TI),
    _timm_vit("S/32", *S, patch=32),
    _timm_vit("B/16", *B),
    _timm_vit("B/32", *B, patch=32),
    _timm_vit("B/16 at 384", *B, size=(384, 384)),
    _timm_vit("B/16 at 224x320", *B, size=(224, 320)),
    _timm_vit("B/16, tanh GELU", *B, **TANH),
    _timm_vit("B/16, GAP, fc_norm", *B, **MEAN),
    _timm_vit("B/16, GAP, no fc_norm", *B, **MEAN, fc_norm=False),
    _timm_vit("B/16, MAP", *B, **MAP),
    _timm_vit("B/16, 4 registers", *B, reg_tokens=4, no_embed_class=True),
    _timm_vit("B/16, 4 registers with positions", *B, reg_tokens=4),
    _timm_vit("B/16, LayerScale", *B, init_values=0.1, no_embed_class=True),
    _timm_vit("B/16, qk-norm", *B, qk_norm=True),
    _timm("R+Ti/16", "vit_tiny_r_s16_p8_224"),
    _timm("R26+S/32", "vit_small_r26_s32_224"),
    _timm("R50+B/16", "vit_base_r50_s16_224"),
    _timm("BiT R50x1", "resnetv2_50x1_bit"),
    _timm("DeiT III M/16", "deit3_medium_patch16_224"),
    _timm("DeiT III S/16 at 384", "deit3_small_patch16_384", 384, 96),
    _timm("DINOv2 S/14", "vit_small_patch14_dinov2", 518, 70),
    _timm("DINOv2 S/14, 4 registers", "vit_small_patch14_reg4_dinov2", 518, 70),
    # Both directions of a billion parameters would need 20 GB.
    _timm("DINOv2 g/14", "vit_giant_patch14_dinov2", 224, 70, back=False),
    _transformers("B/16"),
    _transformers("B/16 at 224x320", image_size=(224, 320), small_image_size=(48, 64)),
    _transformers("B/16, ViTModel", "transformers-bare"),
    _transformers("DeiT B/16 distilled", "transformers-deit", back=False),
    _dinov2("DINOv2 S/14", "dinov2", *S),
    _dinov2("DINOv2 S/14", "dinov2-registers", *S),
    _dinov2(
        "DINOv2 g/14", "dinov2-registers", 1536, 40, 24, side=224, use_swiglu_ffn=True
    ),
    _hub("B/16", *B, 3072),
    _hub("L/16", 1024, 24, 16, 4096),
    _timm_vit("B/16", *B, library="timm .npz", **TANH),
    _timm("R50+B/16", "vit_base_r50_s16_224", model=TANH, **NPZ),
    _timm_vit("B/16 of big_vision, MAP", *B, library="timm .npz", **(TANH | MAP)),
    _timm("BiT R50x1", "resnetv2_50x1_bit", **NPZ),
)
