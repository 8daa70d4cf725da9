"""Configs of whole Keras models, which other projects' layers are parts of."""

from collections.abc import Iterator

from keras_vit.typing import JSON
from keras_vit.weights.reading import MODEL_CONFIG, ArrayFile, parse_json
from keras_vit.weights.stored_arrays import refusing


def config_values(file: ArrayFile) -> Iterator[JSON]:
    """Every object and list in the config of a whole model; none for weights alone."""
    with refusing(file.path):
        left: list[JSON] = [parse_json(file.metadata.get(MODEL_CONFIG, "{}").encode())]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
        else:
            continue
        yield value
