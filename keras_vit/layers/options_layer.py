"""The base of layers whose constructor takes a class of options."""

from typing import Any, ClassVar

import keras

from keras_vit import options


class OptionsLayer(keras.layers.Layer):
    """A layer with options: keyword arguments, attributes, and parts of the config.

    Raises:
        ValueError: An option that is not what its row says.
    """

    options_class: ClassVar[Any]

    def __init__(self, **kwargs):
        made = options.taken(self.options_class, kwargs)
        super().__init__(**kwargs)
        for name, value in options.part_of(self.options_class, made).items():
            setattr(self, name, value)

    def get_config(self):
        own = options.part_of(self.options_class, self)
        return {**super().get_config(), **own}
