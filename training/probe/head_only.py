"""Head-only training on cached features: `data.cache_features`."""

import dataclasses

import keras

from keras_vit.base import ImageModel

from ..data.labeled_images import Split
from ..data.splits import Splits
from ..engine.jax_strategy import AnyStrategy
from ..errors import RunError
from .feature_cache import cached_features, default_folder
from .features import FeatureExtractor


class HeadModel(keras.Model):
    """The classifier of a model, with which it shares its weights.

    It maps features [B, D], as `probe.features.FeatureExtractor` computes them, to
    logits [B, classes].
    """

    def __init__(self, model: ImageModel) -> None:
        head = model.get_layer("head")
        features = keras.Input(head.input.shape[1:], name="features")
        super().__init__(features, head(features), name=f"{model.name}_head")
        self.preprocessing = model.preprocessing
        self.classes = model.classes
        self.class_names = model.class_names
        self.probabilities = model.probabilities


def with_features(
    splits: Splits,
    model: ImageModel,
    strategy: AnyStrategy,
) -> Splits:
    """The same examples with their features in place of the images.

    They are computed where they are not in the folder of `keras-vit probe` yet.

    Raises:
        RunError: The model has no pooled features, or a second classifier; or the
            folder cannot be written.
    """
    if getattr(model, "distilled", False):
        raise RunError(
            "data.cache_features must be false for a model with a second classifier. "
            "Received: a model with distilled=True"
        )
    folder = default_folder()
    print(f"features of the frozen model: {folder}")
    extractor = FeatureExtractor(model, strategy)

    def featured(split: Split, title: str) -> Split:
        features = cached_features(extractor, split, folder, title)
        return split.with_features(features)

    train = featured(splits.train, "features of the training images")
    validation = splits.validation
    if validation is not None:
        validation = featured(validation, "features of the validation images")
    return dataclasses.replace(splits, train=train, validation=validation)
