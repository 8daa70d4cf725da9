"""Published model sizes, one row each as in the papers' tables, and their names."""

import dataclasses
import re
from collections.abc import Sequence
from numbers import Integral
from typing import Any


@dataclasses.dataclass(frozen=True)
class ViTSpec:
    """Size of a Vision Transformer, without its patch size.

    Args:
        width: Width D of every token.
        depth: Number of encoder blocks.
        mlp_dim: Width of the hidden layer in each block's MLP.
        heads: Number of attention heads A; divides `width`.
        resnet_blocks: Units in each stage of a hybrid's ResNet stem, `()` for its root
            alone, `None` for no stem.
        swiglu: Whether the MLP is a SwiGLU, of hidden width `mlp_dim`.
    """

    width: int
    depth: int
    mlp_dim: int
    heads: int
    resnet_blocks: tuple[int, ...] | None = None
    swiglu: bool = False


# Ti, S: arXiv:2012.12877 (DeiT) and arXiv:2106.10270, Table 2. B, L, H: Table 1 of
# arXiv:2010.11929. g, G: arXiv:2106.04560, Table 2. So400m: arXiv:2305.13035.
# mu, M, g-opt, G-opt, e: google-research/big_vision, models/vit.py. g-dinov2:
# arXiv:2304.07193 and its code, whose SwiGLU is two thirds as wide as an MLP of 4 D.
SPECS: dict[str, ViTSpec] = {
    #                width depth mlp_dim heads
    "mu": ViTSpec(32, 1, 128, 2),
    "Ti": ViTSpec(192, 12, 768, 3),
    "S": ViTSpec(384, 12, 1536, 6),
    "M": ViTSpec(512, 12, 2048, 8),
    "B": ViTSpec(768, 12, 3072, 12),
    "L": ViTSpec(1024, 24, 4096, 16),
    "So400m": ViTSpec(1152, 27, 4304, 16),
    "H": ViTSpec(1280, 32, 5120, 16),
    "g": ViTSpec(1408, 40, 6144, 16),
    "g-opt": ViTSpec(1536, 40, 6144, 16),
    "g-dinov2": ViTSpec(1536, 40, 4096, 24, swiglu=True),
    "G": ViTSpec(1664, 48, 8192, 16),
    "G-opt": ViTSpec(1536, 48, 8192, 16),
    "e": ViTSpec(1792, 56, 15360, 16),
}

# Units in each stage by the number of layers. 50 to 152: Table 1 of arXiv:1512.03385;
# 26, 200: google-research/big_vision, models/bit.py.
RESNET_DEPTHS: dict[int, tuple[int, ...]] = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}


# How timm, Hugging Face, torchvision and others write B/16.
_LONG_NAMES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}
_OTHER_NAMES = re.compile(
    r"(?<![a-z])(?:vit[_-]?)?(tiny|small|base|large|huge|ti|s|b|l|h)"
    r"[/_-]?(?:patch)?(8|14|16|32)(?!\d)"
)


def meant_variant(name: str) -> str | None:
    """The variant that another project's name stands for, such as "B/16", or None."""
    match = _OTHER_NAMES.search(name.lower())
    if match is None:
        return None
    return f"{_LONG_NAMES.get(match[1], match[1].capitalize())}/{match[2]}"


def parse_variant(variant: str) -> tuple[ViTSpec, int]:
    """Split a name such as `"B/16"` or `"R50+B/16"` into its size and patch size.

    In a hybrid's name the number after the slash is the down-sampling of stem and
    patches together (section 4.1): with 32 the ResNet has its four stages, with 16 the
    units of stage 4 are in stage 3 (section 3.1), and a patch is one pixel of the
    feature map. The stem alone, `"R+Ti/16"`, is named as if it scaled by 2, as the
    official configuration assumes; it scales by 4, and the model by 32.

    Args:
        variant: A key of `SPECS`, a slash, and the patch's side P in pixels. Upper
            and lower case differ: `"g/14"` and `"G/14"` are two models. A hybrid has
            `"R50+"` or another depth of `RESNET_DEPTHS` in front, or `"R+"`.

    Returns:
        The `ViTSpec` and the patch size, a hybrid's in pixels of its feature map.

    Raises:
        ValueError: The name is not of this form, or the size is unknown.
    """
    match = re.fullmatch(r"(?:R(\d*)\+)?([\w-]+)/([1-9]\d*)", variant)
    if match is None or match[2] not in SPECS:
        meant = meant_variant(variant)
        raise ValueError(
            "`variant` must be one of the sizes "
            f"{', '.join(SPECS)} with a patch size in pixels, such as 'B/16', for a "
            f"hybrid after a ResNet, such as 'R50+B/16'. Received: variant={variant!r}"
            f"{f'. Did you mean {meant}?' if meant else ''}"
        )
    depth, spec, total = match[1], SPECS[match[2]], int(match[3])
    if depth is None:
        return spec, total
    blocks, patch_size = _hybrid(depth, total, variant)
    return dataclasses.replace(spec, resnet_blocks=blocks), patch_size


def _hybrid(depth: str, total: int, variant: str) -> tuple[tuple[int, ...], int]:
    """Units of the stem, and the patch size on its feature map."""
    if not depth:
        if total % 2:
            raise ValueError(
                "After the stem alone, 'R+', the patch size in `variant` must be even. "
                f"Received: variant={variant!r}"
            )
        return (), total // 2
    first, second, third, fourth = _resnet_blocks(depth, variant)
    if total == 32:
        return (first, second, third, fourth), 1
    if total == 16:
        return (first, second, third + fourth), 1
    raise ValueError(
        "A hybrid's down-sampling in `variant` must be 16 or 32. "
        f"Received: variant={variant!r}"
    )


def parse_resnet(variant: str) -> tuple[tuple[int, ...], int]:
    """Split a name such as `"R50x1"` into units per stage and width factor.

    Raises:
        ValueError: The name is not of this form, or the depth is unknown.
    """
    match = re.fullmatch(r"R(\d+)x([1-9]\d*)", variant)
    if match is None:
        raise ValueError(
            "`variant` must be a ResNet's depth and width factor, such as 'R50x1'. "
            f"Received: variant={variant!r}"
        )
    return _resnet_blocks(match[1], variant), int(match[2])


def _resnet_blocks(depth: str, variant: str) -> tuple[int, ...]:
    if int(depth) not in RESNET_DEPTHS:
        raise ValueError(
            "The ResNet's depth in `variant` must be one of "
            f"{', '.join(map(str, RESNET_DEPTHS))}. Received: variant={variant!r}"
        )
    return RESNET_DEPTHS[int(depth)]


def resnet_blocks_tuple(name: str, blocks: Sequence[int]) -> tuple[int, ...]:
    """Units per stage as a tuple of plain integers; ValueError for anything else."""
    integers = isinstance(blocks, Sequence) and not isinstance(blocks, str)
    if not integers or not all(isinstance(b, Integral) and b > 0 for b in blocks):
        raise ValueError(
            f"`{name}` must be a sequence of positive integers, the units of each "
            f"stage. Received: {name}={blocks!r}"
        )
    return tuple(int(units) for units in blocks)


def stem_scale(blocks: Sequence[int] | None) -> int:
    """Down-sampling of a hybrid's stem along each side.

    The root scales by 4, each stage after the first by 2; without a stem it is 1.
    """
    return 1 if blocks is None else 4 * 2 ** max(len(blocks) - 1, 0)


def patch_side(patch_size: int, resnet_blocks: tuple[int, ...] | None) -> int:
    """Side of the square of the image that becomes one token, in pixels."""
    return patch_size * stem_scale(resnet_blocks)


def image_size_pair(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """One side or (H, W), in pixels, as a pair.

    Raises:
        ValueError: Not one or two positive integers.
    """
    one = isinstance(image_size, Integral)
    sides: Any = (image_size, image_size) if one else image_size
    pair = isinstance(sides, Sequence) and len(sides) == 2
    if not pair or not all(isinstance(s, Integral) and int(s) > 0 for s in sides):
        raise ValueError(
            "`image_size` must be a positive integer or a pair (height, width). "
            f"Received: image_size={image_size}"
        )
    return int(sides[0]), int(sides[1])  # NumPy's integers cannot be written as JSON
