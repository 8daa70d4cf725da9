"""The recipe's section `model`."""

from dataclasses import field
from typing import Annotated, Literal, get_args

from keras_vit.option_rows import options
from keras_vit.options import (
    REQUIRED,
    Count,
    Depth,
    EncoderOptions,
    HeadBiasInit,
    Heads,
    MLPDim,
    PatchSize,
    Width,
)

from .errors import number_check, require, require_rows
from .typed_values import COMMON

IMAGE_SIZE = 224
LoraLayer = Literal["query", "key", "value", "out", "mlp"]


Share = Annotated[float, number_check("in (0, 1]", lambda value: 0 < value <= 1)]


@options
class ModelConfig(EncoderOptions):
    """The network.

    It has the options of `keras_vit.VisionTransformer`, and what is training's alone.
    With `weights`, those that are left at their default take the values stored with the
    weights, except `representation_size`, `dropout` and `stochastic_depth`; for
    `pooling` see below.
    """

    architecture: Annotated[
        Literal["vit", "bit", "resnet", "cnn"],
        "vit (a Vision Transformer or a hybrid), bit (keras_vit.ResNet, the paper's "
        '"ResNet (BiT)"), resnet (keras.applications) or cnn (a small convolutional '
        "network, the baseline of small images).",
    ] = "vit"
    variant: Annotated[
        str | None,
        "A published size: B/16 or R50+B/16 of vit, R50x1 of bit, ResNet50 of resnet. "
        "Null for a vit where patch_size, width, depth, mlp_dim and heads are given; "
        "where both are, these win; and for a bit where resnet_blocks are given. A "
        "run given as `weights` has its own size, whatever this is.",
    ] = field(default="S/16", metadata=COMMON)
    weights: Annotated[
        str | None,
        "Published or own weights to begin with: a name that `keras_vit.list_weights()`"
        " has, or what `keras_vit.open_model` opens, such as a run's folder or a file; "
        "for resnet imagenet. Null for random ones.",
    ] = field(default=None, metadata=COMMON)
    patch_size: PatchSize | None = None
    width: Width | None = None
    depth: Depth | None = None
    mlp_dim: MLPDim | None = None
    heads: Heads | None = None
    resnet_blocks: tuple[int, ...] | None = None
    image_size: Annotated[
        int | tuple[int, int] | None,
        "Side of the input in pixels, or (height, width). Null for that of the run's "
        "`.keras` file given as `weights`, and for 224 without one.",
    ] = field(default=IMAGE_SIZE, metadata=COMMON)
    channels: Annotated[Literal[1, 3], "Channels C of the images."] = 3
    pooling: Annotated[
        Literal["token", "avg", "map", "query"] | None,
        "What the classifier reads: token, avg, map or query. Null for what a run's "
        "`.keras` file given as `weights` has, and for token without one.",
    ] = None
    head_bias_init: HeadBiasInit = 0.0
    head_stddev: Annotated[
        float,
        number_check("at least 0", lambda value: value >= 0),
        "Standard deviation of a new classifier's initial kernel; the paper's is zero "
        "(section 3.2), Hugging Face's is drawn with 0.02.",
    ] = 0.0
    rematerialize: Annotated[
        bool,
        "Whether to compute the activations of each encoder block again in the "
        "backward pass, instead of keeping them.",
    ] = False
    lora_rank: Annotated[
        Count | None,
        "Rank of LoRA's matrices (arXiv:2106.09685), or null to train all weights. "
        "Only they and the classifier are then trained, which needs a fraction of the "
        "optimizer's memory; the saved model is an ordinary one.",
    ] = None
    lora_layers: Annotated[
        tuple[LoraLayer, ...],
        "What LoRA adapts in each encoder block: some of query, key, value, out and "
        "mlp.",
    ] = get_args(LoraLayer)
    pixel_mean: Annotated[
        float | tuple[float, ...],
        "Subtracted from the pixels inside the model, these scaled to 0..1: one "
        "number, or one for each channel, such as ImageNet's [0.485, 0.456, 0.406].",
    ] = 0.5
    pixel_std: Annotated[
        float | tuple[float, ...],
        "What they are then divided by; ImageNet's is [0.229, 0.224, 0.225].",
    ] = 0.5
    interpolation: Annotated[
        Literal["nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"],
        "How images of another size are resized.",
    ] = "bilinear"
    antialias: Annotated[bool, "Whether to filter before shrinking."] = False
    crop_fraction: Annotated[
        Share, "Fraction of each side that evaluation keeps, by a center crop."
    ] = 1.0
    resize: Annotated[
        Literal["plain", "small"],
        "How evaluation resizes before the crop: plain (both sides, the aspect ratio "
        "changes) or small (the shorter side, the aspect ratio stays).",
    ] = "plain"

    def __post_init__(self) -> None:
        given = [name for name in REQUIRED if getattr(self, name) is not None]
        missing = [name for name in REQUIRED if name not in given]
        require(
            self.variant is not None
            or (self.weights is not None and self.architecture != "resnet")
            or not missing
            or (self.resnet_blocks is not None and self.architecture == "bit")
            or self.architecture not in ("vit", "bit", "resnet"),
            "model.variant",
            f"given, or else model.{', model.'.join(missing)}",
            self.variant,
        )
        require_rows("model", self)
        require(
            self.variant in (None, ModelConfig.variant) or bool(missing),
            "model.variant",
            f"null where all of model.{', model.'.join(REQUIRED)} are given, as here",
            self.variant,
        )
        require(
            self.lora_rank is None or bool(self.lora_layers),
            "model.lora_layers",
            "at least one of query, key, value, out and mlp",
            self.lora_layers,
        )
        for name in ("pixel_mean", "pixel_std"):
            self._require_share(name)

    def _require_share(self, name: str) -> None:
        """A number of 0 to 1, above 0 for a deviation, or one for each channel."""
        value = getattr(self, name)
        values = value if isinstance(value, (list, tuple)) else [value] * self.channels
        least = 0 if name == "pixel_mean" else 1e-6
        require(
            len(values) == self.channels and all(least <= v <= 1 for v in values),
            f"model.{name}",
            f"of pixels scaled to 0..1: a number in {'[' if least == 0 else '('}0, 1], "
            f"or one for each of the {self.channels} channels",
            value,
        )
