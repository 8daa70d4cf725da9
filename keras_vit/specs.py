"""The sizes of the models: one row each, to be compared with the papers' tables."""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class ViTSpec:
    """The size of a Vision Transformer, without its patch size.

    Args:
        width: Width D of every token.
        depth: Number of encoder blocks.
        mlp_dim: Width of the hidden layer in each block's MLP.
        heads: Number of attention heads A; divides `width`.
    """

    width: int
    depth: int
    mlp_dim: int
    heads: int


# Ti, S: arXiv:2012.12877 (DeiT) and arXiv:2106.10270, Table 2. B, L, H: Table 1 of
# arXiv:2010.11929. g, G: arXiv:2106.04560, Table 2. So400m: arXiv:2305.13035.
# mu, M: google-research/big_vision, models/vit.py.
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
    "G": ViTSpec(1664, 48, 8192, 16),
}


def parse_variant(variant: str) -> tuple[ViTSpec, int]:
    """Splits a name such as `"B/16"` into its size and its patch size.

    Args:
        variant: A key of `SPECS`, a slash, and the patch's side P in pixels. Upper
            and lower case differ: `"g/14"` and `"G/14"` are two models.

    Returns:
        The `ViTSpec` and the patch size.

    Raises:
        ValueError: The name is not of this form, or there is no such size.
    """
    match = re.fullmatch(r"(\w+)/([1-9]\d*)", variant)
    if match is None or match[1] not in SPECS:
        raise ValueError(
            "`variant` must be one of the sizes "
            f"{', '.join(SPECS)} with a patch size in pixels, such as 'B/16'. "
            f"Received: variant={variant!r}"
        )
    return SPECS[match[1]], int(match[2])


def image_size_pair(image_size: int | tuple[int, int]) -> tuple[int, int]:
    """One side or (H, W), in pixels, as a pair.

    Raises:
        ValueError: Not one or two positive integers.
    """
    sides = (image_size, image_size) if isinstance(image_size, int) else image_size
    if len(sides) != 2 or not all(isinstance(s, int) and s > 0 for s in sides):
        raise ValueError(
            "`image_size` must be a positive integer or a pair (height, width). "
            f"Received: image_size={image_size}"
        )
    return sides[0], sides[1]
