"""OpenCLIP's checkpoints whose image towers are timm's, such as SigLIP's and EVA-02's.

Source: mlfoundations/open_clip, timm_model.py. The tower has timm's arrays, and the
architecture's own size of images.
"""

import copy
from collections.abc import Mapping
from typing import ClassVar

from keras_vit.errors import WeightsFileError
from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import (
    Keys,
    Stated,
    read_config,
    says_nothing,
)
from keras_vit.weights.families.family import Family
from keras_vit.weights.families.open_clip import (
    ANY_CONFIG,
    OF_TIMM,
    OpenCLIPFamily,
    vision_of,
)
from keras_vit.weights.families.timm import Timm, TimmEva
from keras_vit.weights.reading import ArrayFile

_CONFIG: Keys = {
    **ANY_CONFIG,
    **says_nothing(
        *("timm_pool", "timm_proj", "embed_dim", "quick_gelu"),
        # timm's name overrides them.
        *("layers", "width", "head_width", "mlp_ratio", "patch_size"),
    ),
}
# Values of `timm_proj`: no projection, or timm's classifier as the projection.
_PROJECTIONS = ("none", None, "")


class OpenCLIPTimm(OpenCLIPFamily):
    """A tower of timm's `VisionTransformer`.

    Attributes:
        tower: timm's family of such arrays.
    """

    tower: ClassVar[Family] = Timm()
    title = "OpenCLIP with timm's ViT"
    mark = Timm.mark
    rows = Timm.rows
    holds = Timm.holds
    poolings = Timm.poolings
    configured = Timm.configured
    inside = "visual.trunk."

    def opens(self, name: str) -> bool:
        """Whether it is a tower of timm that opens."""
        theirs = name.removesuffix(OF_TIMM)
        return theirs != name and self.tower.opens(theirs)

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What timm's code states of the architecture.

        Raises:
            WeightsFileError: OpenCLIP's own layers follow the tower's.
        """
        if file.config:
            read_config(file.path, _CONFIG, self.parts(file))
            projection = file.config["model_cfg"]["vision_cfg"].get(
                "timm_proj", "linear"
            )
            if projection not in _PROJECTIONS:
                raise WeightsFileError(
                    f"`vision_cfg.timm_proj` must be one of {_PROJECTIONS}, as other "
                    "layers after timm's have no place in models here. Received: "
                    f"{projection!r} in the config of {str(file.path)!r}"
                )
        return self.tower.stated(_timm_file(file))

    def guessed(self, file: ArrayFile, shown: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """What all of timm's architectures with such arrays have in common."""
        return self.tower.guessed(file, shown)

    def pooling(self, file: ArrayFile) -> tuple[str | None, bool]:
        """`timm_pool`."""
        return self.tower.pooling(_timm_file(file))

    def prefix_positions(self, prefix: int) -> tuple[int, ...]:
        """As in timm."""
        return self.tower.prefix_positions(prefix)


class OpenCLIPTimmEva(OpenCLIPTimm):
    """A tower of timm's `Eva`."""

    tower: ClassVar[Family] = TimmEva()
    title = "OpenCLIP with timm's EVA"


def _timm_file(file: ArrayFile) -> ArrayFile:
    """The file with the config that timm would write of the tower."""
    twin = copy.copy(file)
    twin.config = {}
    vision = vision_of(file.config)
    if vision is not None:
        own = vision.get("timm_proj") == "none"
        twin.config = {
            "architecture": vision["timm_model_name"],
            # The tower's classifier is the projection, where OpenCLIP adds none.
            "num_classes": 0 if own else file.config["model_cfg"]["embed_dim"],
            "model_args": {"global_pool": vision.get("timm_pool", "avg")},
        }
    return twin
