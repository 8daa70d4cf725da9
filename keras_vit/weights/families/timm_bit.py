"""timm's `ResNetV2` with the weights of Big Transfer.

Source: huggingface/pytorch-image-models, models/resnetv2.py.
"""

from typing import TYPE_CHECKING

from keras_vit.typing import JSON
from keras_vit.weights.families.layouts import (
    CONVOLUTION,
    LINEAR_CONVOLUTION,
    ArrayRow,
    affine,
    norm,
    row,
)
from keras_vit.weights.families.timm import Timm, TimmFamily

if TYPE_CHECKING:
    from keras_vit.base import ImageModel


def _bit() -> tuple[ArrayRow, ...]:
    theirs, ours = "stages.{s0}.blocks.{u0}", "stage{s}_unit{u}"
    rows = [
        row("stem.conv.weight", "stem_conv/kernel", layout=CONVOLUTION),
        *norm("norm.", "final_norm"),
        *affine("head.fc.", "head", LINEAR_CONVOLUTION),
    ]
    rows.extend(
        row(f"{theirs}.{conv}.weight", f"{ours}/{conv}/kernel", layout=CONVOLUTION)
        for conv in ("conv1", "conv2", "conv3")
    )
    for part in ("norm1", "norm2", "norm3"):
        rows += norm(f"{theirs}.{part}.", f"{ours}/{part}")
    downsample = f"{theirs}.downsample.conv.weight"
    return (*rows, row(downsample, f"{ours}/conv_proj/kernel", layout=CONVOLUTION))


TIMM_BIT = _bit()
_RESNETS = {
    ((3, 4, 6, 3), 1): "resnetv2_50x1_bit",
    ((3, 4, 6, 3), 3): "resnetv2_50x3_bit",
    ((3, 4, 23, 3), 1): "resnetv2_101x1_bit",
    ((3, 4, 23, 3), 3): "resnetv2_101x3_bit",
    ((3, 8, 36, 3), 2): "resnetv2_152x2_bit",
    ((3, 8, 36, 3), 4): "resnetv2_152x4_bit",
}


class TimmBit(TimmFamily):
    """timm's `ResNetV2` with the weights of Big Transfer."""

    title = "timm BiT ResNet"
    mark = "stages.0.blocks.0.conv1.weight"
    rows = TIMM_BIT
    model = "resnet"
    classes = ("ResNetV2",)
    hybrid_note = Timm.hybrid_note
    holds = frozenset(("blocks", "width_factor"))

    def refusals(self, model: "ImageModel") -> list[str]:
        """timm has the published sizes."""
        if (model.blocks, model.width_factor) in _RESNETS:
            return []
        sizes = f"blocks={model.blocks}, width_factor={model.width_factor}"
        return [f"timm has no BiT with {sizes}"]

    def documents(self, model: "ImageModel") -> dict[str, JSON]:
        """`config.json`."""
        pooling = {ours: theirs for theirs, ours in self.poolings.items()}[
            model.pooling
        ]
        return self.document(
            model,
            _RESNETS[model.blocks, model.width_factor],
            {"global_pool": pooling},
            fixed_input_size=False,
            first_conv="stem.conv",
            classifier="head.fc",
        )
