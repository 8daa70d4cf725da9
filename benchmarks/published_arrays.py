"""The arrays of every published checkpoint, name to shape.

Written from descriptions of the files, not from the tables of `keras_vit.weights`:
google-research/vision_transformer (README.md, models_resnet.py, and models.py before
Linen), google-research/big_vision (models/vit.py) and google-research/big_transfer.
"""

from collections.abc import Sequence

Shapes = dict[str, tuple[int, ...]]
Size = tuple[int, int, int, int]  # a value of `SIZES`

# Width, depth, width of the MLP, heads.
SIZES = {
    "Ti": (192, 12, 768, 3),
    "S": (384, 12, 1536, 6),
    "B": (768, 12, 3072, 12),
    "L": (1024, 24, 4096, 16),
    "H": (1280, 32, 5120, 16),
}
# Units per stage of BiT, and of the hybrids' stems; those of stage 4 may be in 3.
UNITS = {
    "R": (),
    "R26": (2, 2, 2, 2),
    "R50": (3, 4, 6, 3),
    "R50-3": (3, 4, 9),
    "R101": (3, 4, 23, 3),
    "R152": (3, 8, 36, 3),
}
# How the modules of a block are numbered: attention, second norm, MLP.
BY_CALL, BY_KIND = (1, 2, 3), (0, 1, 0)


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}/scale": (width,), f"{name}/bias": (width,)}


def _dense(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def _attention(name: str, width: int, heads: int) -> Shapes:
    size = width // heads
    shapes: Shapes = {}
    for part in ("query", "key", "value"):
        shapes[f"{name}/{part}/kernel"] = (width, heads, size)
        shapes[f"{name}/{part}/bias"] = (heads, size)
    shapes[f"{name}/out/kernel"] = (heads, size, width)
    shapes[f"{name}/out/bias"] = (width,)
    return shapes


def _mlp(name: str, width: int, mlp_dim: int) -> Shapes:
    return {
        **_dense(f"{name}/Dense_0", width, mlp_dim),
        **_dense(f"{name}/Dense_1", mlp_dim, width),
    }


def _encoder(size: Size, numbers: tuple[int, int, int]) -> Shapes:
    width, depth, mlp_dim, heads = size
    attention, norm, mlp = numbers
    shapes = _norm("Transformer/encoder_norm", width)
    for index in range(depth):
        block = f"Transformer/encoderblock_{index}"
        shapes |= _norm(f"{block}/LayerNorm_0", width)
        name = f"{block}/MultiHeadDotProductAttention_{attention}"
        shapes |= _attention(name, width, heads)
        shapes |= _norm(f"{block}/LayerNorm_{norm}", width)
        shapes |= _mlp(f"{block}/MlpBlock_{mlp}", width, mlp_dim)
    return shapes


def stem(units: Sequence[int]) -> Shapes:
    """A hybrid's ResNet: GroupNorm's arrays have an image's axes."""
    shapes: Shapes = {"conv_root/kernel": (7, 7, 3, 64)}
    norms = {"gn_root": 64}
    channels = 64
    for stage, count in enumerate(units, 1):
        width = 32 * 2**stage
        for unit in range(1, count + 1):
            name = f"block{stage}/unit{unit}"
            convolutions = [(1, channels, width), (3, width, width)]
            convolutions += [(1, width, 4 * width)]
            for number, (side, inputs, outputs) in enumerate(convolutions, 1):
                shapes[f"{name}/conv{number}/kernel"] = (side, side, inputs, outputs)
                norms[f"{name}/gn{number}"] = outputs
            if unit == 1:
                shapes[f"{name}/conv_proj/kernel"] = (1, 1, channels, 4 * width)
                norms[f"{name}/gn_proj"] = 4 * width
            channels = 4 * width
    for name, width in norms.items():
        shapes |= {f"{name}/{part}": (1, 1, 1, width) for part in ("scale", "bias")}
    return shapes


def google(
    size: Size,
    patch: int,
    grid: int,
    classes: int,
    pre_logits: bool = False,
    units: Sequence[int] | None = None,
    class_token: bool = True,
) -> Shapes:
    """A ViT of the paper, of AugReg or of SAM; a hybrid where there are `units`.

    Args:
        size: A value of `SIZES`.
        patch: Side of the patches; in a hybrid in pixels of its feature map.
        grid: Rows and columns of patches, as many.
        classes: Number of classes.
        pre_logits: Whether there is a hidden layer before the classifier.
        units: A value of `UNITS`, or None for no ResNet.
        class_token: Whether there is one, with a position of its own.
    """
    width = size[0]
    channels = 3
    shapes: Shapes = {}
    if units is not None:
        shapes = stem(units)
        channels = 128 * 2 ** len(units) if units else 64
    shapes |= _encoder(size, BY_CALL)
    shapes["embedding/kernel"] = (patch, patch, channels, width)
    shapes["embedding/bias"] = (width,)
    tokens = grid * grid
    if class_token:
        tokens += 1
        shapes["cls"] = (1, 1, width)
    shapes["Transformer/posembed_input/pos_embedding"] = (1, tokens, width)
    if pre_logits:
        shapes |= _dense("pre_logits", width, width)
    return shapes | _dense("head", width, classes)


def big_vision(
    size: Size, patch: int, grid: int, classes: int | None = None, pooling: str = "gap"
) -> Shapes:
    """A ViT of big_vision: no position for the class token, a classifier if asked.

    Args:
        size, patch, grid: As for `google`; there are no hybrids.
        classes: Number of classes, or None for no classifier.
        pooling: `"gap"`, `"tok"` or `"map"`.
    """
    width, _, mlp_dim, heads = size
    shapes = _encoder(size, BY_KIND)
    shapes["embedding/kernel"] = (patch, patch, 3, width)
    shapes["embedding/bias"] = (width,)
    shapes["pos_embedding"] = (1, grid * grid, width)
    if pooling == "tok":
        shapes["cls"] = (1, 1, width)
    if pooling == "map":
        shapes["MAPHead_0/probe"] = (1, 1, width)
        name = "MAPHead_0/MultiHeadDotProductAttention_0"
        shapes |= _attention(name, width, heads)
        shapes |= _norm("MAPHead_0/LayerNorm_0", width)
        shapes |= _mlp("MAPHead_0/MlpBlock_0", width, mlp_dim)
    return shapes if classes is None else shapes | _dense("head", width, classes)


def bit(units: Sequence[int], factor: int, classes: int) -> Shapes:
    """A BiT ResNet: `factor` widens it, the classifier is a convolution."""
    channels = 64 * factor
    convolution = "standardized_conv2d/kernel"
    shapes: Shapes = {f"resnet/root_block/{convolution}": (7, 7, 3, channels)}
    norms: dict[str, int] = {}
    for stage, count in enumerate(units, 1):
        width = 32 * 2**stage * factor
        for unit in range(1, count + 1):
            name = f"resnet/block{stage}/unit{unit:02d}"
            shapes[f"{name}/a/{convolution}"] = (1, 1, channels, width)
            shapes[f"{name}/b/{convolution}"] = (3, 3, width, width)
            shapes[f"{name}/c/{convolution}"] = (1, 1, width, 4 * width)
            if unit == 1:
                shapes[f"{name}/a/proj/{convolution}"] = (1, 1, channels, 4 * width)
            norms |= {f"{name}/a": channels, f"{name}/b": width, f"{name}/c": width}
            channels = 4 * width
    for name, width in {**norms, "resnet": channels}.items():
        shapes |= {f"{name}/group_norm/{part}": (width,) for part in ("gamma", "beta")}
    shapes["resnet/head/conv2d/kernel"] = (1, 1, channels, classes)
    return shapes | {"resnet/head/conv2d/bias": (classes,)}
