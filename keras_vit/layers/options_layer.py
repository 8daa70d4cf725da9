"""The base of layers whose constructor takes a class of options."""

from typing import Any, ClassVar

from keras_vit import option_rows
from keras_vit.configured_layer import ConfiguredLayer


class OptionsLayer(ConfiguredLayer):
    """A layer with options: keyword arguments, attributes, and parts of the config.

    Raises:
        ValueError: An option that is not what its row says.
    """

    options_class: ClassVar[Any]

    def __init__(self, **kwargs):
        made = option_rows.taken(self.options_class, kwargs)
        super().__init__(**kwargs)
        for name, value in option_rows.part_of(self.options_class, made).items():
            setattr(self, name, value)

    def get_config(self):
        own = option_rows.part_of(self.options_class, self)
        return {**super().get_config(), **own}
