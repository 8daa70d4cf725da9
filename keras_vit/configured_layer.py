"""The base of this library's layers: a config that is the constructor's arguments."""

import inspect

import keras


class ConfiguredLayer(keras.layers.Layer):
    """A layer whose config is its constructor's arguments, kept as attributes."""

    def get_config(self):
        """The arguments of every layer, and the class's own."""
        parameters = inspect.signature(type(self).__init__).parameters.values()
        named = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        own = {name: getattr(self, name) for name in named[1:]}  # after `self`
        return {**super().get_config(), **own}


class SameShapeLayer(ConfiguredLayer):
    """A layer whose output has the shape of its input."""

    def compute_output_shape(self, input_shape):
        """The shape itself."""
        return input_shape
