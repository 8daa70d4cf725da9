"""The base of layers whose constructor takes a class of options."""

from typing import Any, ClassVar

from keras_vit import option_rows
from keras_vit.configured_layer import ConfiguredLayer
from keras_vit.typing import Config


class OptionsLayer(ConfiguredLayer):
    """A layer with options: keyword arguments, attributes, and parts of the config.

    Raises:
        ValueError: An option that is not what its row says.
    """

    options_class: ClassVar[type]

    def __init__(self, **kwargs: Any) -> None:
        made: object = option_rows.taken(self.options_class, kwargs)
        super().__init__(**kwargs)
        for name, value in option_rows.part_of(self.options_class, made).items():
            setattr(self, name, value)

    def get_config(self) -> Config:
        own = option_rows.part_of(self.options_class, self)
        return {**super().get_config(), **own}
