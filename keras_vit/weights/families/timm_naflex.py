"""timm's NaFlexVit: SigLIP 2 of any resolution, C-RADIO, timm's own.

It takes images of any size, and resamples its table of positions for each. Our model of
it is for one size: that of the table, unless the caller asks for another.

Source: huggingface/pytorch-image-models, models/naflexvit.py.
"""

import math
from typing import TYPE_CHECKING, ClassVar

from keras_vit.errors import WeightsFileError
from keras_vit.typing import JSON
from keras_vit.weights.families.config_keys import Stated, written
from keras_vit.weights.families.layouts import (
    FLAT_PATCHES,
    ArrayRow,
    affine,
    norm,
    of_grid,
    row,
)
from keras_vit.weights.families.timm import ENCODER, Timm, TimmEva
from keras_vit.weights.families.timm_arguments import KEYS, arguments_of
from keras_vit.weights.reading import ArrayFile

if TYPE_CHECKING:
    from keras_vit.base import ImageModel

_TABLE = "embeds.pos_embed"
NAFLEX = (
    *affine("embeds.proj.", "embedding", FLAT_PATCHES),
    *norm("embeds.norm.", "patch_norm"),
    row("embeds.cls_token", "class_token/token"),
    row("embeds.reg_token", "register_tokens/tokens"),
    *ENCODER,
)
# Our `resample` by the arguments of timm's: mode, antialias, align_corners.
_RESAMPLES = {
    ("bicubic", True, False): "timm",
    ("bicubic", False, False): "bicubic",
    ("bilinear", True, False): "antialiased",
    ("bilinear", False, False): "bilinear",
    ("bilinear", False, True): "google",
}


class TimmNaFlex(TimmEva):
    """timm's `NaFlexVit`, at the image size of its positions."""

    title = "timm NaFlexVit"
    mark = "embeds.proj.weight"
    rows = (*NAFLEX, row(_TABLE, "position_embedding/embedding", layout=of_grid()))
    classes: ClassVar = ("NaFlexVit",)

    def kinds(self, file: ArrayFile) -> tuple[str, ...]:
        """No other class has arrays of these names."""
        return self.classes

    def prefix_positions(self, prefix: int) -> tuple[int, ...]:
        """Only patches have positions."""
        return (0,)

    def stated(self, file: ArrayFile) -> dict[str, Stated]:
        """What the arguments state; the grid must be that of the table.

        Raises:
            WeightsFileError: Another grid, or what no model of ours computes.
        """
        said = super().stated(file)
        table = self._shape(file, _TABLE, axes=4)
        if said and table:
            grid = arguments_of(file.config).get("pos_embed_grid_size") or (16, 16)
            if tuple(grid) != table[1:3]:
                raise WeightsFileError(
                    "The grid of the positions must be the same in the config and in "
                    f"the arrays. Received: {str(file.path)!r}, which states "
                    f"pos_embed_grid_size={tuple(grid)}, where `{_TABLE}` has the "
                    f"shape {table}"
                )
        return said

    def image_size(self, file: ArrayFile) -> JSON:
        """That of the table of positions; the trained one without a table."""
        table = self._shape(file, _TABLE, axes=4)
        kernel = self._shape(file, self.mark, axes=2)
        if not table or not kernel:
            return super().image_size(file)
        side = math.isqrt(kernel[1] // 3)
        return table[1] * side, table[2] * side

    def _shape(self, file: ArrayFile, name: str, axes: int) -> tuple[int, ...]:
        """Shape of an array; () where there is none with so many axes."""
        names = self.model_names(file.arrays)
        shape = file.arrays[names[name]].shape if name in names else ()
        return shape if len(shape) == axes else ()

    def notes(self, file: ArrayFile) -> list[str]:
        """How timm resamples the table for images of another size."""
        if not file.config or not self._shape(file, _TABLE, axes=4):
            return []
        given = arguments_of(file.config)
        mode = given.get("pos_embed_interp_mode") or "bicubic"
        antialias = given.get("pos_embed_antialias", True)
        corners = given.get("pos_embed_align_corners", False)
        ours = _RESAMPLES.get((mode, antialias, corners))
        how = f"resample={ours!r} does" if ours else f"no `resample` does ({mode})"
        only = ", squares alone" if given.get("pos_embed_ar_preserving") else ""
        return [f"for images of another size{only}, timm resamples as {how}"]

    def written_rows(self, model: "ImageModel") -> tuple[ArrayRow, ...]:
        """Those of blocks as in `Eva`, and the table with the model's grid."""
        table = row(_TABLE, "position_embedding/embedding", layout=of_grid(*model.grid))
        return (table, *super().written_rows(model))

    def refusals(self, model: "ImageModel") -> list[str]:
        """What no argument of the class makes."""
        found = super().refusals(model)
        if model.channels != 3:
            found.append("channels must be 3")
        return found

    def refused_pooling(self, model: "ImageModel") -> list[str]:
        """As in `VisionTransformer`."""
        return Timm.refused_pooling(self, model)

    def documents(self, model: "ImageModel") -> dict[str, JSON]:
        """`config.json`, with all arguments that this architecture does not have."""
        return self.document(
            model,
            "naflexvit_base_patch16_siglip",
            {
                **written(KEYS["NaFlexVit"], model),
                "pos_embed_grid_size": list(model.grid),
            },
            fixed_input_size=False,
            first_conv="embeds.proj",
            classifier="head",
        )
