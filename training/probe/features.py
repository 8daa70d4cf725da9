"""Frozen features: what a model's classifier reads, for all images of a split."""

from collections.abc import Iterator

import keras
import numpy as np

from keras_vit.base import ImageModel
from keras_vit.typing import Array

from ..data.labeled_images import Split
from ..engine.forward_pass import (
    BATCH_SIZE,
    ForwardPass,
    preprocessing_of,
    strategy_of,
)
from ..engine.jax_strategy import AnyStrategy
from ..errors import RunError


def frozen_model(model: keras.Model) -> keras.Model:
    """The model without its classifier, with which it shares all weights.

    Args:
        model: A `keras_vit.VisionTransformer`, `ResNet` or `ImageClassifier`, with or
            without a classifier.

    Returns:
        A functional model from the same images to features [B, D]: the input of the
        classifier, after the tanh layer of `representation_size` where there is one
        (big_vision's `pre_logits`).

    Raises:
        RunError: The model is none of these, or it does not pool its tokens.
    """
    if not isinstance(model, ImageModel):
        raise RunError(
            "the model must be a VisionTransformer, ResNet or ImageClassifier of "
            f"keras_vit. Received: a {type(model).__name__}"
        )
    output = model.get_layer("head").input if model.classes else model.output
    if len(output.shape) != 2:
        raise RunError(
            "the model must have pooled features [B, D], as with pooling='token', "
            f"'avg' or 'map'. Received: pooling={model.pooling!r}, whose output is "
            f"{output.shape}"
        )
    return keras.Model(model.input, output, name=f"{model.name}_frozen")


class FeatureExtractor:
    """Computes the frozen features of splits, compiled once, on all devices.

    Attributes:
        network: The `frozen_model`.
        width: D, the number of features.
    """

    def __init__(
        self,
        model: ImageModel,
        strategy: AnyStrategy | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        self.model = model
        self.network = frozen_model(model)
        self.width = int(self.network.output_shape[-1])
        strategy = strategy or strategy_of(model)
        self._forward = ForwardPass(self.network, strategy, batch_size)

    def __call__(self, split: Split) -> Array:
        """The features of all images: float32 [n, D]."""
        return np.concatenate(list(self.batches(split)))

    def batches(self, split: Split) -> Iterator[Array]:
        """Yield the features of one batch after the other: float32 [b, D].

        Raises:
            RunError: The model has no preprocessing of its own.
        """
        return self._forward.of_split(split, preprocessing_of(self.model))
