"""The base of this library's layers: a config that is the constructor's arguments."""

import inspect

from keras_vit.keras_classes import Layer
from keras_vit.typing import Config, Shape


class ConfiguredLayer(Layer):
    """A layer whose config is its constructor's arguments, kept as attributes."""

    def get_config(self) -> Config:
        """The arguments of every layer, and the class's own."""
        parameters = inspect.signature(type(self).__init__).parameters.values()
        named = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        own = {name: getattr(self, name) for name in named[1:]}  # after `self`
        return {**super().get_config(), **own}


class SameShapeLayer(ConfiguredLayer):
    """A layer whose output has the shape of its input."""

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """The shape itself."""
        return input_shape
