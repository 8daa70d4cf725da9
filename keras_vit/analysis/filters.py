"""Principal components of a model's first filters (section 4.5, Figure 7 left)."""

from collections.abc import Iterator

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.models import describe
from keras_vit.base import ImageModel
from keras_vit.checks import check_count
from keras_vit.errors import NotApplicableError
from keras_vit.resnet import StdConv2D
from keras_vit.typing import Array

COMPONENTS = 28  # in the paper's figure


def embedding_filters(model: ImageModel, components: int = COMPONENTS) -> Array:
    """Principal components of the filters that are applied to the pixels.

    The D filters of a Vision Transformer's patch embedding are points in a space of
    P * P * C dimensions; the directions in which they differ most look like a basis
    for the fine structure within a patch. A hybrid and a `ResNet` have their root
    convolution in its place, with standardized kernels, as they are applied; an
    `ImageClassifier` the first convolution of its backbone.

    Args:
        model: A model of this library.
        components: Largest number of components: fewer where the filters have fewer.

    Returns:
        float64 [n, P, P, C], the component of the largest variance first; each has
        the length 1, and its sign makes its largest number positive.

    Raises:
        NotApplicableError: No convolution reads the pixels.
        ValueError: `components` is less than 1.
    """
    check_count("components", components)
    kernel = first_kernel(model)
    filters = kernel.reshape(-1, kernel.shape[-1]).T  # [D, P * P * C]
    centered = filters - filters.mean(axis=0)
    directions: Array = np.linalg.svd(centered, full_matrices=False)[2]
    directions = directions[: min(components, len(filters) - 1)]
    largest = np.abs(directions).argmax(axis=1, keepdims=True)
    signs = np.sign(np.take_along_axis(directions, largest, axis=1))
    pictures: Array = (directions * signs).reshape(-1, *kernel.shape[:-1])
    return pictures


def first_kernel(model: ImageModel) -> Array:
    """The kernel that is applied to the pixels, float64 [P, P, C, D]."""
    convolutions = (StdConv2D, keras.layers.Conv2D)
    layers = _in_order(model) if isinstance(model, ImageModel) else ()
    first = next((each for each in layers if isinstance(each, convolutions)), None)
    if first is None or first.kernel.shape[2] != model.channels:
        raise NotApplicableError(
            "`model` must be one of keras_vit with a convolution that reads the "
            f"pixels. Received: {describe(model)}"
        )
    standardized = isinstance(first, StdConv2D)
    kernel = first.standardized_kernel() if standardized else first.kernel
    return np.asarray(ops.convert_to_numpy(kernel), "float64")


def _in_order(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """A model's layers from the input on, and in their place those of models in it."""
    for layer in model.layers:
        yield from _in_order(layer) if isinstance(layer, keras.Model) else (layer,)
