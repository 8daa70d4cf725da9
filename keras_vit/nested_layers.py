"""The layers inside a layer or model.

Keras makes public only the first level, `Model.layers`, and of models alone: sublayers
of a layer, such as the dense layers of an encoder block, are found by its private
`_flatten_layers`, which is used in this module only.
"""

import keras


def all_layers(parent: keras.layers.Layer) -> list[keras.layers.Layer]:
    """The layer or model itself, and the layers inside it at every depth."""
    return list(parent._flatten_layers())  # noqa: SLF001


def direct_sublayers(parent: keras.layers.Layer) -> list[keras.layers.Layer]:
    """The layers that are attributes of a layer or model, without those in them."""
    return list(parent._flatten_layers(include_self=False, recursive=False))  # noqa: SLF001
