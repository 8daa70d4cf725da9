"""All analyses of one model, computed and drawn: `keras-vit inspect`, TensorBoard."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from keras import ops
from rich.console import Console
from rich.progress import track

from keras_vit.analysis import figures
from keras_vit.analysis.distance import attention_distance, patch_distances
from keras_vit.analysis.filters import embedding_filters
from keras_vit.analysis.maps import attention_rollout, class_attention
from keras_vit.analysis.models import check_full_attention
from keras_vit.analysis.similarity import position_similarity
from keras_vit.base import ImageModel
from keras_vit.errors import NotApplicableError
from keras_vit.preprocessing import ImagePreprocessing
from keras_vit.typing import Array, Arrays, Images

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Compute: TypeAlias = Callable[[], Array]
_Draw: TypeAlias = Callable[[Array], "Figure"]


class Inspection(NamedTuple):
    """What was found in a model.

    Args:
        arrays: By property what its function returns; positions that each block has of
            its own have the block as their first axis.
        figures: By property its matplotlib figure.
        missing: By property why it is not among them.
    """

    arrays: Arrays
    figures: "dict[str, Figure]"
    missing: dict[str, str]


def inspect_model(
    model: ImageModel, images: Array | None = None, progress: bool = False
) -> Inspection:
    """Compute and draw all that applies to a model.

    Args:
        model: A model of this library.
        images: uint8 [n, H, W, C], of the model's size; without them only filters and
            positions.
        progress: Whether to show it on stderr, if that is a terminal.
    """
    found = Inspection({}, {}, {})
    console = Console(stderr=True)
    for name, (compute, draw) in track(
        _properties(model, images).items(),
        "Inspecting",
        console=console,
        disable=not (progress and console.is_terminal),
    ):
        try:
            array = compute()
            found.arrays[name] = array
            found.figures[name] = draw(array)
        except NotApplicableError as error:
            found.missing[name] = str(error)
    return found


def _properties(
    model: ImageModel, images: Array | None
) -> dict[str, tuple[_Compute, _Draw]]:
    """By name: the computation, and the drawing of its array."""

    def given() -> Array:
        if images is None:
            raise NotApplicableError("it is seen on images, and none are given")
        return images

    @functools.cache
    def inputs() -> Images:
        return model_inputs(model, given())

    def of_images(analysis: Callable[[ImageModel, Images], Array]) -> Array:
        check_full_attention(model)
        return analysis(model, inputs())

    def draw_distances(distances: Array) -> "Figure":
        uniform = patch_distances(model.grid, model.image_size).mean()
        return figures.draw_distances(distances, uniform)

    return {
        "filters": (lambda: embedding_filters(model), figures.draw_filters),
        "positions": (lambda: _similarities(model), figures.draw_positions),
        "distance": (lambda: of_images(attention_distance), draw_distances),
        "class_attention": (
            lambda: of_images(class_attention),
            lambda array: figures.draw_class_attention(given(), array),
        ),
        "rollout": (
            lambda: of_images(attention_rollout),
            lambda array: figures.draw_rollout(given(), array),
        ),
    }


def _similarities(model: ImageModel) -> Array:
    """[h, w, h, w], or [depth, h, w, h, w] where each block has its own positions."""
    if getattr(model, "position_placement", None) != "every_layer":
        return position_similarity(model)
    return np.stack([position_similarity(model, i) for i in range(model.depth)])


def model_inputs(model: ImageModel, images: Array) -> Array:
    """Images uint8 [n, H, W, C] of the model's size, as the model reads them.

    Returns:
        The images themselves where the model normalizes them, else float32, normalized
        by the model's `preprocessing`, and to [-1, 1] without one.
    """
    if model.pixels == "raw":
        return images
    return np.asarray(
        ops.convert_to_numpy(preprocessing_of(model)(images, fitted=True))
    )


def preprocessing_of(model: ImageModel) -> ImagePreprocessing:
    """The model's own preprocessing, or that of Google's models."""
    return model.preprocessing or ImagePreprocessing(model.image_size)
